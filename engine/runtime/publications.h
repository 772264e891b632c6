// Publications: the tensors that sessions of one engine share by name.
//
// A publication does not keep its storage alive: the storage exists as long as a session has a
// value in it, and the name as long as the storage. Thread-safe. Must outlive every storage in it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/geometry.h"
#include "engine/core/mutex.h"
#include "engine/core/status.h"
#include "engine/memory/storage.h"
#include "engine/program/command.h"

namespace teletensor::runtime {

class Publications {
 public:
  struct Facts {
    std::uint64_t id = 0;
    std::string name, user;  // their combination is unique
    std::string users;  // users that may also open it: names separated by spaces; "*": all users
    memory::OwnerId owner = 0;
    core::DType dtype = core::DType::kF32;
    core::Device device;
    core::Dims shape;
    bool writable = false;
    std::uint64_t bytes = 0;
    std::uint64_t most = 10'000;  // maximum number of names of one session
    std::uint64_t common = 0;     // identifies the storage (Sharing::order)
  };

  // Publishes `storage` under a name, so that other sessions can take() it. If the same session
  // already has the name, it refers to the new storage from now on. Returns ALREADY_EXISTS if
  // another session has the name, PERMISSION_DENIED if the storage belongs to another session, and
  // RESOURCE_EXHAUSTED if there are too many names. `facts` does not set id and common.
  core::Status add(Facts facts, memory::Storage& storage);
  // Frees the name; sessions that have the storage keep it. Returns NOT_FOUND if there is no such
  // name.
  core::Status withdraw(memory::OwnerId owner, std::string_view name);

  // Returns true if `whom` may open what `user` published for `users`.
  static bool open_to(std::string_view user, std::string_view users, std::string_view whom);
  // The publications that `user` may open under "name" or "user/name", and below name + "/", sorted
  // by name.
  std::vector<Facts> find_all(std::string_view name, std::string_view user) const;
  // Returns the storage of a publication, which must match the description.
  core::Result<core::Ref<memory::Storage>> take(const program::Published& described,
                                                std::string_view user) const;
  std::vector<Facts> all() const;
  std::size_t count(memory::OwnerId owner) const;
  // Number of changes of all() so far.
  std::uint64_t changes() const;

  // ---- Restoration after a restart, before anything is added.

  // New numbers are at least `first` and differ from all restored ones.
  void number_from(std::uint64_t first);
  // Makes `storage` a shared storage again, with number `common` and `writes` earlier writes.
  void restore(std::uint64_t common, std::uint64_t writes, std::string user,
               memory::Storage& storage);
  // Restores a name of such a storage, as all() returned it.
  void restore(Facts facts, memory::Storage& storage);
  // The user who published a shared storage.
  static const std::string& user_of(const memory::Storage& storage);

 private:
  class Entry;                                      // belongs to a storage
  using Key = std::pair<std::string, std::string>;  // user, name
  struct Name {
    Facts facts;
    Entry* entry;
  };
  void gone(const Entry& entry);
  void drop(std::map<Key, Name>::iterator name) TT_REQUIRES(mu_);
  void put(Facts facts, Entry& entry) TT_REQUIRES(mu_);

  mutable core::Mutex mu_;
  std::map<Key, Name> names_ TT_GUARDED_BY(mu_);
  std::map<std::uint64_t, Key> by_id_ TT_GUARDED_BY(mu_);
  // The names of each session, and their keys.
  std::map<memory::OwnerId, std::map<std::string, Key, std::less<>>> owned_ TT_GUARDED_BY(mu_);
  std::uint64_t next_ TT_GUARDED_BY(mu_) = 1;
  std::uint64_t changes_ TT_GUARDED_BY(mu_) = 0;
};

}  // namespace teletensor::runtime
