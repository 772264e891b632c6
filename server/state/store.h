// SessionStore: sessions as files of the state directory (state.proto says what is in them).
//
// One daemon at a time has it. A file is whole or not there: it gets its name when everything is on
// the disk. Any thread, but for one file one at a time.
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

// A message behind its size, as 8 bytes.
core::Status put_message(memory::BlockWriter& writer, const google::protobuf::MessageLite& message);
core::Status get_message(memory::BlockReader& reader, google::protobuf::MessageLite& message);
// A file of one message.
core::Status write_message_file(const std::string& path,
                                const google::protobuf::MessageLite& message);
// Names the file and nothing above its folder: clients are told.
core::Status named_file(const std::string& file, const core::Status& status);

class SessionStore {
 public:
  // Makes the folder `sessions` in the state directory. UNAVAILABLE where another daemon has
  // it, PERMISSION_DENIED where other users can write there.
  static core::Result<std::unique_ptr<SessionStore>> open(const std::string& state_dir);
  ~SessionStore();
  SessionStore(const SessionStore&) = delete;
  SessionStore& operator=(const SessionStore&) = delete;

  struct Found {
    std::string file;     // its name in the folder
    core::Status status;  // not OK: damaged, and `head` is empty
    v1::SavedHead head;
  };
  // Every file, by its head. Removes what was never finished.
  std::vector<Found> list() const;

  // A name for a new file.
  std::string new_name() const;
  // Asked between two pieces: a Status gives the writing up, and the older file stays, unless
  // `spares` says that the storage at hand may be lost for it.
  using Check = std::function<core::Status()>;
  using Spares = std::function<bool(const core::Status&)>;
  struct Terms {
    Check check;
    Spares spares;
    std::uint64_t room = kEndless;  // bytes of the file; storages that do not fit are lost
  };
  static constexpr std::uint64_t kEndless = ~std::uint64_t{0};
  struct Lost {
    std::size_t storages = 0;
    std::uint64_t bytes = 0;
    core::Status why;          // of the first
    std::uint64_t stored = 0;  // bytes of the file, whole or not

    void add(std::uint64_t lost_bytes, const core::Status& status);
  };
  // `lost` grows by what was lost so.
  core::Status write(const std::string& file, const v1::SavedHead& head, const v1::SavedBody& body,
                     const program::Image& image, engine::Engine& engine, const Terms& terms,
                     Lost& lost) const;
  void remove(const std::string& file) const;
  bool exists(const std::string& file) const;
  std::string path_of(const std::string& file) const { return folder_ + "/" + file; }

  // A file that is being read: after `body` the bytes of its storages follow.
  class Reading {
   public:
    ~Reading();
    v1::SavedHead head;
    v1::SavedBody body;
    // As engine::Engine::ReadBytes. Never over the end of a storage.
    core::Status read(void* to, std::size_t bytes, core::Status& lost);
    core::Status finish();  // nothing is missing, nothing is left

   private:
    friend class SessionStore;
    core::Status next_piece(core::Status& lost);

    std::unique_ptr<memory::BlockReader> reader_;
    std::uint64_t left_ = 0;  // of the piece
  };
  core::Result<std::unique_ptr<Reading>> read(const std::string& file) const;

  // Sessions that were lost in an earlier life; remembered until the next call.
  core::Status write_losses(const v1::SavedLosses& losses);
  v1::SavedLosses take_losses();

 private:
  SessionStore(std::string folder, int lock) : folder_(std::move(folder)), lock_(lock) {}

  const std::string folder_;
  const int lock_;
};

}  // namespace teletensor::server
