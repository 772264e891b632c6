// Commons: what sessions have published, in the state directory: the bytes of each common storage
// in a file of its own, beside the sessions' files that name it, and one file of all names.
//
// Whoever writes a session down writes these first: what a session's file names is there, as it was
// then or later. One thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "server/base/limits.h"
#include "server/state/store.h"

namespace teletensor::server {

class Commons {
 public:
  // `store` null: nothing is done.
  Commons(const SessionStore* store, engine::Engine& engine) : store_(store), engine_(engine) {}

  // Before the sessions, and behind held_by() for each of their files: storages that those name,
  // and all names, into the engine; each user's within its limit.
  void restore(const Limits& limits);

  // What has changed of the image's storages and of the names since it was written. `terms` as
  // SessionStore::write()'s. Says in the image which state it has, or why it has none.
  core::Status write(program::Image& image, const SessionStore::Terms& terms,
                     SessionStore::Lost& lost);
  // The storages that a session's file names; none: it is gone. What no file names any more is
  // removed by sweep().
  void held_by(const std::string& file, std::vector<std::uint64_t> commons);
  void sweep();

 private:
  core::Status write_bytes(program::Image::Storage& storage, const SessionStore::Check& check);
  core::Status write_names();
  core::Status restore_one(std::uint64_t id, const Limits& limits);
  void restore_names();

  const SessionStore* const store_;
  engine::Engine& engine_;
  std::map<std::uint64_t, std::uint64_t> written_;  // files, and how often theirs was written then
  std::uint64_t names_written_ = 0;                 // Engine::publications_changed()
  std::map<std::string, std::vector<std::uint64_t>> holders_;  // by file
};

}  // namespace teletensor::server
