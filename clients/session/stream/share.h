// Maps memory of a session into this process. The daemon of this machine passes it as a file
// descriptor over the socket beside its own (proto/wire/share.h). On systems without memfd, every
// call returns UNIMPLEMENTED, and streams are used instead.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "clients/session/stream/channel.h"
#include "engine/core/dtype.h"
#include "engine/core/os/unique_fd.h"
#include "engine/core/status.h"
#include "proto/wire/share.h"

namespace teletensor::client {

// The socket, and the identity for requests.
struct ShareAddress {
  std::string socket;  // Path of the socket.
  std::uint64_t session = 0;
  std::string ticket;
  Origin origin = {};  // The process in which the session was opened.
  // A counter: each mapping has a copy of this pointer.
  std::shared_ptr<const int> users = std::make_shared<const int>(0);
  // Number of mappings that were created with this address.
  std::size_t live() const { return static_cast<std::size_t>(users.use_count()) - 1; }
};

// Mapped memory. The daemon keeps its side as long as the object exists. After a fork the child has
// the mapping as well, and the daemon waits until both have closed it.
class Mapping {
 public:
  // Maps the value of bulk fetch `seq`, which has `bytes` bytes; waits until it was computed.
  // Writes to the mapping stay in this process. On any failure, use the stream.
  static core::Result<Mapping> take(const ShareAddress& from, std::uint64_t seq,
                                    std::uint64_t bytes, const Stop& stop);
  // Maps new zeroed memory that the daemon reads in upload(). With `way`, it is memory for send(),
  // which the daemon ends within a second after the last transfer. RESOURCE_EXHAUSTED if the
  // session's quota does not allow it.
  static core::Result<Mapping> open(const ShareAddress& from, std::uint64_t bytes, bool way,
                                    const Stop& stop);

  Mapping(Mapping&& other) noexcept { *this = std::move(other); }
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  char* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }
  // Returns true for memory that upload() can use, in the second form only if it was created with
  // `address`.
  bool readable() const { return readable_; }
  bool readable_at(const ShareAddress& address) const {
    return readable_ && user_ == address.users;
  }

  // Uploads the range [from, from + bytes) of the memory of open(). Returns the upload's number
  // when the daemon has copied it. One thread at a time. If `stop` returns true while the last
  // bytes are copied, it returns the number nevertheless, because the caller must bind the upload
  // to free it.
  core::Result<std::uint64_t> upload(const ShareAddress& to, core::Device device,
                                     std::uint64_t from, std::uint64_t bytes, const Stop& stop);
  // Uploads other bytes through the memory of open(), in pieces: the next pieces are written while
  // the daemon copies earlier ones. One thread at a time.
  core::Result<std::uint64_t> send(const ShareAddress& to, core::Device device,
                                   std::string_view bytes, const Stop& stop);

 private:
  Mapping() = default;
  // Connects, sends the request, and maps the file of the reply, which must contain `bytes` bytes.
  static core::Result<Mapping> ask(const ShareAddress& from, const wire::ShareRequest& request,
                                   std::uint64_t bytes, int flags, const Stop& stop);
  core::Status tell(const wire::ShareRequest& request);
  core::Status hear(wire::ShareReply& reply, const Stop& stop);
  // After an interrupted upload: reads its remaining replies.
  core::Status settle(const Stop& stop);
  // Reads the outstanding replies, for a moment longer than `stop` allows.
  core::Status hear_last(wire::ShareReply& reply, const Stop& stop);
  // Makes the daemon end an incomplete upload.
  void give_up(wire::ShareRequest request);

  char* base_ = nullptr;
  std::size_t length_ = 0;
  char* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  core::UniqueFd hold_;  // The connection that keeps the memory alive.
  int due_ = 0;          // Number of replies that were not received yet.
  std::shared_ptr<const int> user_;
  bool readable_ = false;
};

// Makes a new connection the Run stream of attach `attach`, and returns its socket. If it fails,
// the daemon has not accepted the stream, except with DEADLINE_EXCEEDED: then it may have, and only
// a later attach can have a stream.
core::Result<int> open_local_stream(const ShareAddress& from, std::uint64_t attach);

// Memory of a GPU, which CUDA maps (cuMemImportFromShareableHandle).
struct GpuMemory {
  // Descriptor of the memory. Owned by the caller, like `hold`, the connection that keeps the
  // memory alive (see Mapping).
  int descriptor = -1;
  int hold = -1;
  char gpu[16] = {};  // UUID of the GPU that has the memory.
};

// Copies the value of bulk fetch `seq`, which has `bytes` bytes on a GPU, to memory on that GPU
// that this process may read and write. UNIMPLEMENTED or RESOURCE_EXHAUSTED if the daemon cannot
// provide such memory.
core::Result<GpuMemory> take_gpu(const ShareAddress& from, std::uint64_t seq, std::uint64_t bytes,
                                 const Stop& stop);

}  // namespace teletensor::client
