#include "engine/runtime/publications.h"

#include <algorithm>
#include <memory>

#include "engine/program/amounts.h"

namespace teletensor::runtime {

using core::Code;
using core::Status;

// The lock of a published storage, which also reports the end of the storage.
class Publications::Entry final : public memory::Sharing {
 public:
  Entry(Publications* table, std::uint64_t order, memory::Storage* storage, std::string user,
        std::uint64_t writes = 1)
      : Sharing(order, writes), user(std::move(user)), table_(table), storage_(storage) {}
  ~Entry() override { table_->gone(*this); }
  memory::Storage* storage() const { return storage_; }
  const std::string user;
  std::vector<Key> names;  // guarded by the table's mutex

 private:
  Publications* const table_;
  memory::Storage* const storage_;
};

bool Publications::open_to(std::string_view user, std::string_view users, std::string_view whom) {
  if (whom == user || users == "*") return true;
  while (!users.empty()) {
    const std::size_t end = std::min(users.find(' '), users.size());
    if (users.substr(0, end) == whom) return true;
    users.remove_prefix(std::min(end + 1, users.size()));
  }
  return false;
}

Status Publications::add(Facts facts, memory::Storage& storage) {
  core::MutexLock lock(mu_);
  if (storage.owner() != facts.owner) {
    return Status(Code::kPermissionDenied,
                  "publish: the tensor is another session's publication; publish a copy of it");
  }
  const Key key(facts.user, facts.name);
  const auto found = names_.find(key);
  if (found != names_.end() && found->second.facts.owner != facts.owner) {
    return Status(Code::kAlreadyExists, "publish: another session of " + facts.user +
                                            " has published '" + facts.name + "'");
  }
  if (found == names_.end()) {
    const auto owned = owned_.find(facts.owner);
    const std::size_t used = owned == owned_.end() ? 0 : owned->second.size();
    if (used >= facts.most) {
      return program::over_limit("publish", &program::Amounts::published, used, 1, facts.most,
                                 "withdraw some");
    }
  } else {
    by_id_.erase(found->second.facts.id);
    std::erase(found->second.entry->names, key);
  }
  auto* entry = static_cast<Entry*>(storage.sharing());
  facts.id = next_++;
  if (entry == nullptr) {
    entry = new Entry(this, facts.id, &storage, facts.user);
    storage.share(entry);
  }
  facts.common = entry->order;
  put(std::move(facts), *entry);
  return {};
}

void Publications::put(Facts facts, Entry& entry) {
  Key key(facts.user, facts.name);
  ++changes_;
  entry.names.push_back(key);
  by_id_[facts.id] = key;
  owned_[facts.owner].insert_or_assign(facts.name, key);
  names_.insert_or_assign(std::move(key), Name{std::move(facts), &entry});
}

Status Publications::withdraw(memory::OwnerId owner, std::string_view name) {
  core::MutexLock lock(mu_);
  const auto owned = owned_.find(owner);
  if (owned != owned_.end()) {
    if (const auto key = owned->second.find(name); key != owned->second.end()) {
      const auto found = names_.find(key->second);
      std::erase(found->second.entry->names, found->first);
      drop(found);
      return {};
    }
  }
  return Status(Code::kNotFound,
                "publish: this session has not published '" + std::string(name) + "'");
}

void Publications::gone(const Entry& entry) {
  core::MutexLock lock(mu_);
  for (const Key& key : entry.names) drop(names_.find(key));
}

void Publications::drop(std::map<Key, Name>::iterator name) {
  ++changes_;
  const auto owned = owned_.find(name->second.facts.owner);
  owned->second.erase(name->first.second);
  if (owned->second.empty()) owned_.erase(owned);
  by_id_.erase(name->second.facts.id);
  names_.erase(name);
}

std::vector<Publications::Facts> Publications::find_all(std::string_view name,
                                                        std::string_view user) const {
  const std::size_t slash = name.find('/');
  std::vector<Facts> found;
  const auto look = [&](std::string_view whose, std::string_view what) TT_REQUIRES(mu_) {
    const auto add = [&](const Facts& facts) {
      if (open_to(facts.user, facts.users, user)) found.push_back(facts);
    };
    const auto exact = names_.find(Key(whose, what));
    if (exact != names_.end()) add(exact->second.facts);
    const std::string below = std::string(what) + "/";
    for (auto it = names_.lower_bound(Key(whose, below));
         it != names_.end() && it->first.first == whose && it->first.second.starts_with(below);
         ++it) {
      add(it->second.facts);
    }
  };
  core::MutexLock lock(mu_);
  look(user, name);
  if (found.empty() && slash != std::string_view::npos) {
    look(name.substr(0, slash), name.substr(slash + 1));
  }
  return found;
}

core::Result<core::Ref<memory::Storage>> Publications::take(const program::Published& described,
                                                            std::string_view user) const {
  core::MutexLock lock(mu_);
  const auto id = by_id_.find(described.publication);
  if (id != by_id_.end()) {
    const Name& name = names_.at(id->second);
    const Facts& facts = name.facts;
    // The last reference to the storage may be gone already: then try_acquire() fails, and the
    // thread that dropped it waits in gone() for the lock that is held here.
    if (open_to(facts.user, facts.users, user) && facts.dtype == described.dtype &&
        facts.device == described.device && facts.shape == described.shape &&
        described.writable == facts.writable && name.entry->storage()->try_acquire()) {
      core::Ref<memory::Storage> storage(name.entry->storage());
      storage->release();
      return storage;
    }
  }
  return Status(Code::kNotFound, "published: the tensor is no longer published");
}

std::vector<Publications::Facts> Publications::all() const {
  core::MutexLock lock(mu_);
  std::vector<Facts> all;
  for (const auto& [key, name] : names_) all.push_back(name.facts);
  return all;
}

std::uint64_t Publications::changes() const {
  core::MutexLock lock(mu_);
  return changes_;
}

void Publications::number_from(std::uint64_t first) {
  core::MutexLock lock(mu_);
  next_ = std::max(next_, first);
}

void Publications::restore(std::uint64_t common, std::uint64_t writes, std::string user,
                           memory::Storage& storage) {
  number_from(common + 1);
  storage.share(new Entry(this, common, &storage, std::move(user), writes));
}

void Publications::restore(Facts facts, memory::Storage& storage) {
  number_from(facts.id + 1);
  core::MutexLock lock(mu_);
  if (names_.contains(Key(facts.user, facts.name)) || by_id_.contains(facts.id)) return;
  put(std::move(facts), *static_cast<Entry*>(storage.sharing()));
}

const std::string& Publications::user_of(const memory::Storage& storage) {
  return static_cast<const Entry*>(storage.sharing())->user;
}

std::size_t Publications::count(memory::OwnerId owner) const {
  core::MutexLock lock(mu_);
  const auto found = owned_.find(owner);
  return found == owned_.end() ? 0 : found->second.size();
}

}  // namespace teletensor::runtime
