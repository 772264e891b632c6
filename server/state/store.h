// SessionStore keeps sessions as files of the state directory; state.proto defines their contents.
// One daemon at a time uses the directory. A file is either complete or missing, because it gets
// its name when all of it is on the disk. Thread-safe, except that calls for the same file must not
// overlap.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "teletensor/v1/state.pb.h"

namespace teletensor::memory {
class BlockReader;
class BlockWriter;
}  // namespace teletensor::memory

namespace teletensor::server {

// Writes or reads a message that is preceded by its size as 8 bytes.
core::Status put_message(memory::BlockWriter& writer, const google::protobuf::MessageLite& message);
core::Status get_message(memory::BlockReader& reader, google::protobuf::MessageLite& message);
// Writes a file with one message.
core::Status write_message_file(const std::string& path,
                                const google::protobuf::MessageLite& message);
// Adds the file name without its folder to an error, because clients receive the error.
core::Status named_file(const std::string& file, const core::Status& status);

class SessionStore {
 public:
  // Creates the folder `sessions` in the state directory. UNAVAILABLE if another daemon uses it,
  // PERMISSION_DENIED if other users can write to it.
  static core::Result<std::unique_ptr<SessionStore>> open(const std::string& state_dir);
  ~SessionStore();
  SessionStore(const SessionStore&) = delete;
  SessionStore& operator=(const SessionStore&) = delete;

  struct Found {
    std::string file;     // Name of the file in the folder.
    core::Status status;  // An error if the file is damaged; `head` is then empty.
    v1::SavedHead head;
  };
  // Lists all files with their heads, and removes incomplete files.
  std::vector<Found> list() const;

  // Returns a name for a new file.
  std::string new_name() const;
  // Called between two pieces. An error cancels the writing and keeps the older file, unless
  // `spares` returns true for it; then only the current storage is dropped.
  using Check = std::function<core::Status()>;
  using Spares = std::function<bool(const core::Status&)>;
  struct Terms {
    using Time = std::chrono::steady_clock::time_point;
    Check check;
    Spares spares;
    // Called several times a second while the writing waits, since the given time, for sessions
    // that use a storage. If it returns false, the wait ends with DEADLINE_EXCEEDED.
    std::function<bool(Time)> may_wait = [](Time) { return true; };
    // Maximum size of the file in bytes. Storages that do not fit are dropped.
    std::uint64_t room = kEndless;
    // Called with the size that the file has so far. An error cancels the writing.
    std::function<core::Status(std::uint64_t)> fits = [](std::uint64_t) { return core::Status(); };
  };
  static constexpr std::uint64_t kEndless = ~std::uint64_t{0};
  struct Lost {
    std::size_t storages = 0;
    std::uint64_t bytes = 0;
    core::Status why;          // Error of the first storage that was lost.
    std::uint64_t stored = 0;  // Size of the file in bytes, complete or not.

    void add(std::uint64_t lost_bytes, const core::Status& status);
  };
  // Writes a session to a file. Adds the dropped storages to `lost`.
  core::Status write(const std::string& file, const v1::SavedHead& head, const v1::SavedBody& body,
                     const program::Image& image, engine::Engine& engine, const Terms& terms,
                     Lost& lost) const;
  void remove(const std::string& file) const;
  bool exists(const std::string& file) const;
  // The size of a file in bytes. 0 if it does not exist.
  std::uint64_t size_of(const std::string& file) const;
  std::string path_of(const std::string& file) const { return folder_ + "/" + file; }

  // A file that is being read. The contents of its storages follow after `body`.
  class Reading {
   public:
    ~Reading();
    v1::SavedHead head;
    v1::SavedBody body;
    // Reads contents, with the contract of engine::Engine::ReadBytes. A read must not cross the end
    // of a storage.
    core::Status read(void* to, std::size_t bytes, core::Status& lost);
    core::Status finish();  // Returns OK if all contents were read and nothing follows them.

   private:
    friend class SessionStore;
    core::Status next_piece(core::Status& lost);

    std::unique_ptr<memory::BlockReader> reader_;
    std::uint64_t left_ = 0;  // Bytes left of the current piece.
  };
  core::Result<std::unique_ptr<Reading>> read(const std::string& file) const;

  // Records sessions that were lost in an earlier run. They are kept until the next call.
  core::Status write_losses(const v1::SavedLosses& losses);
  v1::SavedLosses take_losses();

 private:
  SessionStore(std::string folder, int lock) : folder_(std::move(folder)), lock_(lock) {}

  const std::string folder_;
  const int lock_;
};

}  // namespace teletensor::server
