// SharedTensorStore stores the published tensors of all sessions in the state directory: the
// contents of each shared storage in its own file beside the session files that refer to it, and
// one file with all names. The shared storages of a session are written before the session's own
// file, so that everything that the session file refers to exists, in that state or a later one.
// One thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/base/limits.h"
#include "server/state/state_use.h"
#include "server/state/store.h"

namespace teletensor::server {

class SharedTensorStore {
 public:
  // If `store` is null, no call has an effect.
  SharedTensorStore(const SessionStore* store, engine::Engine& engine, StateUse& use)
      : store_(store), engine_(engine), use_(use) {}

  // Restores all names, and the storages that session files refer to, into the engine, each user's
  // within its limit. Precondition: held_by() was called for each session file, and no session is
  // restored yet.
  void restore(const Limits& limits);

  // Writes those shared storages of `image`, and those names, that have changed since they were
  // written last. `terms` is passed to SessionStore::write(). Records in the image which version of
  // each storage is on disk, or why there is none. If the owner of a storage has no room for it
  // (StateUse), the result depends on the owner: if it is `user`, that is an error and *full is
  // set; if it is another user, the storage is added to `lost`.
  core::Status write(program::Image& image, const std::string& user,
                     const SessionStore::Terms& terms, SessionStore::Lost& lost, bool* full);
  // Sets the shared storages that a session file refers to. An empty list means that the file was
  // removed. sweep() removes storages that no session file refers to.
  void held_by(const std::string& file, std::vector<std::uint64_t> shared_ids);
  void sweep();

 private:
  // One storage to write. `full` is the user whose files have no room for it, if that is the error.
  struct Writing {
    program::Image::Storage& storage;
    const SessionStore::Terms& terms;
    std::string full = {};
  };
  core::Status write_bytes(Writing& writing);
  core::Status write_file(const std::string& file, Writing& writing, bool hold, bool& changed);
  core::Status begin_file(const std::string& file, const engine::SharedStorage& facts,
                          std::unique_ptr<memory::BlockWriter>& writer);
  core::Status write_names();
  core::Status restore_one(std::uint64_t id, const Limits& limits);
  void restore_names();

  const SessionStore* const store_;
  engine::Engine& engine_;
  StateUse& use_;
  // Storages that were written: id and write count at that time.
  std::map<std::uint64_t, std::uint64_t> written_;
  // Value of Engine::publications_changed() when the names were written.
  std::uint64_t names_written_ = 0;
  // Ids of the shared storages that each session file refers to.
  std::map<std::string, std::vector<std::uint64_t>> holders_;
};

}  // namespace teletensor::server
