// A session's memory, mapped here: what the daemon of this machine passes by descriptor over the
// socket beside its own (proto/wire/share.h). Nothing here exists on systems without memfd: there
// every call is UNIMPLEMENTED, and streams are the way.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "clients/session/channel.h"
#include "engine/core/dtype.h"
#include "engine/core/status.h"
#include "proto/wire/share.h"

namespace teletensor::client {

// Where to ask, and as whom.
struct ShareAddress {
  std::string socket;  // path
  std::uint64_t session = 0;
  std::string ticket;
  Origin origin = {};  // of the session
  // Each mapping has a copy.
  std::shared_ptr<const int> users = std::make_shared<const int>(0);
  // How many mappings there are of what was had here.
  std::size_t live() const { return static_cast<std::size_t>(users.use_count()) - 1; }
};

// Mapped memory, until the end of its life; the daemon keeps its side for so long. After a fork
// it is the child's as well: the daemon waits for both.
class Mapping {
 public:
  // The value of bulk fetch `seq`, which has `bytes` bytes; waits until it has been computed. What
  // is written here stays here. Any failure means: use the stream.
  static core::Result<Mapping> take(const ShareAddress& from, std::uint64_t seq,
                                    std::uint64_t bytes, const Stop& stop);
  // New zeroed memory that the daemon reads in upload(); `way`: for send(), which the daemon ends
  // when nothing has been sent for a second at most. RESOURCE_EXHAUSTED over the session's quota.
  static core::Result<Mapping> open(const ShareAddress& from, std::uint64_t bytes, bool way,
                                    const Stop& stop);

  Mapping(Mapping&& other) noexcept { *this = std::move(other); }
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  char* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }
  // Memory for upload(), had here.
  bool readable() const { return readable_; }
  bool readable_at(const ShareAddress& address) const {
    return readable_ && user_ == address.users;
  }

  // An upload of bytes [from, from + bytes) of open()'s memory: its number once the daemon has
  // copied them. One thread at a time. Where `stop` comes while the last bytes are copied, the
  // number all the same: somebody has to bind the upload, or it stays.
  core::Result<std::uint64_t> upload(const ShareAddress& to, core::Device device,
                                     std::uint64_t from, std::uint64_t bytes, const Stop& stop);
  // An upload of other bytes by way of open()'s memory, in pieces: the next ones are written there
  // while the daemon copies those before. One thread at a time.
  core::Result<std::uint64_t> send(const ShareAddress& to, core::Device device,
                                   std::string_view bytes, const Stop& stop);

 private:
  Mapping() = default;
  // Dials, asks, and maps the file of the reply, which is to hold `bytes`.
  static core::Result<Mapping> ask(const ShareAddress& from, const wire::ShareRequest& request,
                                   std::uint64_t bytes, int flags, const Stop& stop);
  core::Status tell(const wire::ShareRequest& request);
  core::Status hear(wire::ShareReply& reply, const Stop& stop);
  // After an upload that was interrupted: lets its answers pass.
  core::Status settle(const Stop& stop);
  // Hears what is due, for a moment beyond `stop`.
  core::Status hear_last(wire::ShareReply& reply, const Stop& stop);
  // Has the daemon end an upload that is not whole.
  void give_up(wire::ShareRequest request);

  char* base_ = nullptr;
  std::size_t length_ = 0;
  char* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  int hold_ = -1;  // the connection
  int due_ = 0;    // replies that have not come
  std::shared_ptr<const int> user_;
  bool readable_ = false;
};

// Memory of a GPU, which CUDA maps (cuMemImportFromShareableHandle).
struct GpuMemory {
  int descriptor =
      -1;  // the caller's, as the hold is: the connection, kept open as Mapping keeps it
  int hold = -1;
  char gpu[16] = {};  // its UUID
};

// The value of bulk fetch `seq`, which has `bytes` bytes on a GPU: a copy there that is this
// process's to read and write. UNIMPLEMENTED, RESOURCE_EXHAUSTED: the daemon has no such memory.
core::Result<GpuMemory> take_gpu(const ShareAddress& from, std::uint64_t seq, std::uint64_t bytes,
                                 const Stop& stop);

}  // namespace teletensor::client
