// Publications: the tensors of one engine that sessions use together, by name.
//
// A publication holds nothing: its storage lives as long as some session has a value on it, and its
// name as long as the storage. Thread-safe. Outlives every storage in it.
#pragma once

#include <cstdint>
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
    std::string name, user;  // together they are unique
    std::string users;       // who else may have it: names with spaces between them, "*": all
    memory::OwnerId owner = 0;
    core::DType dtype = core::DType::kF32;
    core::Device device;
    core::Dims shape;
    bool writable = false;
    std::uint64_t bytes = 0;
    std::uint64_t most = 10'000;  // names of its session
    std::uint64_t common = 0;     // of the storage: Sharing::order
  };

  // `storage` becomes common to all sessions that take() it. A name of the same session is given to
  // the new storage. ALREADY_EXISTS: another session has it; PERMISSION_DENIED: the storage is
  // another session's; RESOURCE_EXHAUSTED: too many names. `facts` without id
  // and common.
  core::Status add(Facts facts, memory::Storage& storage);
  // The name is free again; who has the storage keeps it. NOT_FOUND.
  core::Status withdraw(memory::OwnerId owner, std::string_view name);

  // May `whom` have what is `user`'s and open to `users`?
  static bool open_to(std::string_view user, std::string_view users, std::string_view whom);
  // What `user` may have under "name" or "user/name", and below name + "/", by name.
  std::vector<Facts> find_all(std::string_view name, std::string_view user) const;
  // The storage of a publication, which must be as it is described.
  core::Result<core::Ref<memory::Storage>> take(const program::Published& described,
                                                std::string_view user) const;
  std::vector<Facts> all() const;
  std::size_t count(memory::OwnerId owner) const;
  // How often all() has changed.
  std::uint64_t changes() const;

  // ---- What comes from an earlier life, before anything is added.
  // Numbers that are given from now on are no less than `first`, nor one that was restored.
  void number_from(std::uint64_t first);
  // `storage` is common again, number `common`, written so often.
  void restore(std::uint64_t common, std::uint64_t writes, std::string user,
               memory::Storage& storage);
  // Of such a storage: a name as all() gave it.
  void restore(Facts facts, memory::Storage& storage);
  // Who has published a common storage.
  static const std::string& user_of(const memory::Storage& storage);

 private:
  class Entry;                                      // of a storage
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
  std::map<memory::OwnerId, std::size_t> counts_ TT_GUARDED_BY(mu_);
  std::uint64_t next_ TT_GUARDED_BY(mu_) = 1;
  std::uint64_t changes_ TT_GUARDED_BY(mu_) = 0;
};

}  // namespace teletensor::runtime
