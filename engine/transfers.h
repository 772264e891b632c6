// Transfers: how the bytes of large values enter a session (Uploads) and leave it (Downloads). Both
// are thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/core/dtype.h"
#include "engine/core/geometry.h"
#include "engine/core/status.h"

namespace teletensor::engine {

// The contents that a Fetch command requested.
struct Fetched {
  std::uint64_t seq = 0;  // seq of the Fetch command
  // If the value failed: the error of the command `root`, from which the failure comes.
  core::Status status;
  std::uint64_t root = 0;
  core::DType dtype = core::DType::kF32;
  core::Dims shape;
  std::string bytes;  // elements in row-major order
  // The layout in place of the contents, for a Fetch with `describe`.
  struct Description {
    core::Device device;
    core::Dims strides;
    bool requires_grad = false;
  };
  std::optional<Description> description;
};

// A session's memory that other processes of this machine can map.
struct Shared {
  std::uint64_t id = 0;                 // identifies the memory in later calls on the session
  int descriptor = -1;                  // file descriptor; the caller owns and closes it
  std::uint64_t offset = 0, bytes = 0;  // location of the memory in that file
  std::array<std::uint64_t, 2> gpu{};   // UUID of the GPU whose memory it is (share_copy() sets it)
  std::shared_ptr<void> hold;           // keeps the memory allocated; may be released in any thread
};

inline core::Status no_shared_memory() {
  return core::Status(core::Code::kUnimplemented, "this session does not support shared memory");
}

// The uploads of a session: storages that its client fills and that a command then binds. An upload
// that no command binds is freed by abort() or with the session.
class Uploads {
 public:
  virtual ~Uploads() = default;
  // Allocates the storage, before any byte is sent, and returns the number of the upload.
  // RESOURCE_EXHAUSTED: there is no room now.
  virtual core::Result<std::uint64_t> begin(core::Device device, std::uint64_t bytes) = 0;
  // Like begin(), but waits if room can be made by moving idle memory of other sessions to the
  // disk. `done` is called at once, or later from another thread, and also when the session ends.
  virtual void admit(core::Device device, std::uint64_t bytes,
                     std::function<void(core::Result<std::uint64_t>)> done) {
    done(begin(device, bytes));
  }
  // Copies the next bytes into the storage. `offset` is the number of bytes received so far.
  virtual core::Status write(std::uint64_t upload, std::uint64_t offset,
                             std::string_view bytes) = 0;
  // After finish(), a command may bind the upload. All bytes must have been written.
  virtual core::Status finish(std::uint64_t upload) = 0;
  virtual void abort(std::uint64_t upload) = 0;
  // Allocates zeroed memory that other processes may map for writing. Their writes are accepted
  // until another client takes over the session.
  virtual core::Result<Shared> share_new(std::uint64_t) { return no_shared_memory(); }
  // Like write(), but takes bytes [from, from + bytes) of the memory `share`, which share_new()
  // returned.
  virtual core::Status write_shared(std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t,
                                    std::uint64_t) {
    return no_shared_memory();
  }
};

// The downloads of a session: values of bulk Fetch commands, each named by the seq of its command.
class Downloads {
 public:
  using Ready = std::function<void(core::Result<Fetched>)>;

  virtual ~Downloads() = default;
  // Prepares the row-major bytes of the value. `ready` is called once they exist, or with the error
  // if the value failed. end() or the client's command Taken frees them. A second call for the same
  // `seq` replaces a waiting one, whose `ready` is called with CANCELLED; so is every waiting
  // `ready` when the session ends. Returns the number of the wait, 0 if `ready` was called at once.
  virtual std::uint64_t begin(std::uint64_t seq, Ready ready) = 0;
  // Ends the wait with this number, which is for `seq`: its `ready` is called with `why`. Has no
  // effect if the wait has ended.
  virtual void stop_waiting(std::uint64_t seq, std::uint64_t wait, core::Status why) = 0;
  // Copies the bytes from `offset` on to `into`.
  virtual core::Status read(std::uint64_t seq, std::uint64_t offset, std::span<char> into) = 0;
  virtual void end(std::uint64_t seq) = 0;
  // Alternative to read(): returns the bytes as memory that other processes may map for reading.
  // The memory never changes and is charged to the session for as long as it is held.
  // UNIMPLEMENTED: the value is not in host memory or is too small; the caller then uses read().
  virtual core::Result<Shared> share(std::uint64_t) { return no_shared_memory(); }
  // For a value on a GPU: copies it into other memory of that GPU, which other processes may map
  // for reading and writing. Waits for the copy. UNIMPLEMENTED on other devices.
  virtual core::Result<Shared> share_copy(std::uint64_t) { return no_shared_memory(); }
};

}  // namespace teletensor::engine
