#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>

#include "engine/core/threads.h"
#include "server/base/log.h"
#include "server/base/os/private_files.h"
#include "server/base/secrets.h"
#include "server/rendezvous/key_stores_parts.h"

namespace teletensor::server {

using core::Code;
using core::MutexLock;
using core::Result;
using core::Status;

namespace {

constexpr std::chrono::seconds kHouse{60};

Status closing() { return Status(Code::kUnavailable, "the server is shutting down"); }

Status begun_anew(const std::string& name) {
  return Status(Code::kAborted,
                "the store " + in_quotes(name) + " was begun anew by another master");
}

}  // namespace

KeyStores::KeyStores(KeyStoreLimits limits, Now now) : limits_(limits), now_(std::move(now)) {
  maintenance_thread_ = core::start_thread([this] { run_maintenance(); });
}

KeyStores::~KeyStores() {
  close();
  MutexLock lock(mutex_);
  if (lock_ >= 0) ::close(lock_);
}

void KeyStores::run_maintenance() {
  while (true) {
    {
      MutexLock lock(mutex_);
      if (!closed_) changed_.wait_for(mutex_, kHouse);
      if (closed_) return;
    }
    sweep();
  }
}

void KeyStores::close() {
  {
    Ready ready;
    MutexLock lock(mutex_);
    closed_ = true;
    std::vector<WaitRef> waits;
    for (const auto& [name, store] : stores_) {
      for (const auto& [key, wait] : store->waiting) waits.push_back(wait);
      store->waiting.clear();
    }
    for (const auto& [name, joining] : joining_) {
      waits.insert(waits.end(), joining.begin(), joining.end());
    }
    joining_.clear();
    for (const WaitRef& wait : waits) {
      end(wait);
      ready.add(wait, closing());
    }
  }
  changed_.notify_all();
  if (maintenance_thread_.joinable()) maintenance_thread_.join();
}

// ---------------------------------------------------------------- stores

Status KeyStores::check(const Ref& ref) const {
  if (closed_) return closing();
  if (!ref.name.empty() && ref.name.size() <= limits_.name_bytes) return {};
  return core::invalid("the name of a store has 1 to " + std::to_string(limits_.name_bytes) +
                       " bytes, not " + std::to_string(ref.name.size()));
}

Result<KeyStores::Store*> KeyStores::find_store(const Ref& ref) {
  TT_RETURN_IF_ERROR(check(ref));
  const auto found = stores_.find({ref.user, ref.name});
  if (found == stores_.end()) {
    return Status(Code::kNotFound,
                  "there is no store " + in_quotes(ref.name) +
                      ": a store is removed when no client has used it for an hour");
  }
  if (found->second->generation != ref.generation) return begun_anew(ref.name);
  found->second->used = now_();
  return found->second.get();
}

Result<std::uint64_t> KeyStores::open(const Ref& ref, Way way) {
  Ready ready;
  MutexLock lock(mutex_);
  TT_RETURN_IF_ERROR(check(ref));
  if (ref.generation == 0) return core::invalid("the generation of a store must not be 0");
  const auto found = stores_.find({ref.user, ref.name});
  if (found != stores_.end()) {
    Store& there = *found->second;
    there.used = now_();
    if (way == Way::kShare || there.generation == ref.generation) return there.generation;
    if (way == Way::kNew) {
      return Status(Code::kAlreadyExists, "there is a store " + in_quotes(ref.name) + " already");
    }
    drop(there, begun_anew(ref.name), ready);
  }
  const Result<Store*> made = make(ref);
  if (!made.ok()) return made.status();
  const auto joining = joining_.find({ref.user, ref.name});
  if (joining == joining_.end()) return ref.generation;
  for (const WaitRef& wait : joining->second) {
    end(wait);
    ready.add(wait, Found{true, {}, ref.generation, 0});
  }
  joining_.erase(joining);
  return ref.generation;
}

Result<KeyStores::Store*> KeyStores::make(const Ref& ref) {
  if (stores_.size() >= limits_.stores) {
    return Status(Code::kResourceExhausted, "the server has too many stores");
  }
  Book& book = books_[ref.user];
  if (book.stores >= limits_.user_stores) {
    return Status(Code::kResourceExhausted,
                  "a user has at most " + std::to_string(limits_.user_stores) + " stores");
  }
  const Status room = charge(ref.user, kStoreCost);
  if (!room.ok()) {
    tidy(ref.user);
    return room;
  }
  auto store = std::make_unique<Store>();
  if (!folder_.empty()) {
    auto file = KeyStoreFile::create(folder_ + "/" + random_hex(8) + kStoreSuffix,
                                     {ref.user, ref.name, ref.generation});
    if (!file.ok()) {
      tidy(ref.user);
      return file.status();
    }
    store->file = std::move(*file);
  }
  store->name = {ref.user, ref.name};
  store->generation = ref.generation;
  store->used = now_();
  store->bytes = kStoreCost;
  ++book.stores;
  book.bytes += kStoreCost;
  return (stores_[store->name] = std::move(store)).get();
}

Status KeyStores::drop(const Ref& ref) {
  Ready ready;
  MutexLock lock(mutex_);
  const Result<Store*> store = find_store(ref);
  if (!store.ok()) return store.status();
  drop(**store, Status(Code::kAborted, "the store " + in_quotes(ref.name) + " was removed"), ready);
  return {};
}

void KeyStores::drop(Store& store, const Status& why, Ready& ready) {
  for (const auto& [key, wait] : std::exchange(store.waiting, {})) {
    end(wait);
    ready.add(wait, why);
  }
  if (store.file) store.file->remove();
  const Name name = store.name;
  --books_[name.first].stores;
  refund(name.first, store.bytes);
  stores_.erase(name);
}

void KeyStores::sweep() {
  Ready ready;
  MutexLock lock(mutex_);
  const Clock::time_point before = now_() - limits_.idle;
  std::vector<Store*> old;
  for (const auto& [name, store] : stores_) {
    if (store->waiting.empty() && store->used <= before) old.push_back(store.get());
  }
  for (Store* const store : old) drop(*store, {}, ready);
}

KeyStores::Total KeyStores::total() const {
  MutexLock lock(mutex_);
  Total total{stores_.size(), 0, 0};
  for (const auto& [user, book] : books_) {
    total.waits += book.waits;
    total.bytes += book.bytes;
  }
  return total;
}

// ---------------------------------------------------------------- resource use of users

Status KeyStores::charge(const std::string& user, std::uint64_t more) {
  if (books_[user].bytes + more <= limits_.user_bytes) return {};
  return Status(Code::kResourceExhausted, "the stores of a user hold at most " +
                                              std::to_string(limits_.user_bytes >> 20) +
                                              " MiB, which are full");
}

void KeyStores::refund(const std::string& user, std::uint64_t bytes) {
  books_[user].bytes -= bytes;
  tidy(user);
}

void KeyStores::tidy(const std::string& user) {
  const auto found = books_.find(user);
  if (found == books_.end()) return;
  const Book& book = found->second;
  if (book.bytes == 0 && book.answers == 0 && book.stores == 0 && book.waits == 0) {
    books_.erase(found);
  }
}

void KeyStores::sent(const std::string& user, std::uint64_t bytes) {
  if (bytes == 0) return;
  MutexLock lock(mutex_);
  books_[user].answers -= bytes;
  tidy(user);
}

// ---------------------------------------------------------------- the folder

Status KeyStores::keep_in(const std::string& state_dir) {
  MutexLock lock(mutex_);
  const std::string folder = state_dir + "/stores";
  TT_RETURN_IF_ERROR(private_state(state_dir));
  TT_RETURN_IF_ERROR(private_folder(folder));
  lock_ = ::open((folder + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock_ < 0) return system_error(folder);
  if (flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    return Status(Code::kUnavailable, folder + ": another daemon keeps its stores there");
  }
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string path = entry.path().string();
    std::error_code ignored;
    if (path.ends_with(".new")) std::filesystem::remove(entry.path(), ignored);
    if (path.ends_with(kStoreSuffix)) files.push_back(path);
  }
  for (const std::string& path : files) restore(path);
  folder_ = folder;
  return {};
}

void KeyStores::restore(const std::string& path) {
  auto store = std::make_unique<Store>();
  KeyStoreFile::Head head;
  auto file = KeyStoreFile::load(path, head, [&](const Change& change) TT_REQUIRES(mutex_) {
    if (store->name.second.empty()) store->name = {head.user, head.name};
    apply(*store, change);
  });
  const Name name{head.user, head.name};
  Book& book = books_[name.first];
  if (!file.ok() || stores_.contains(name)) {
    book.bytes -= store->bytes;
    tidy(name.first);
    log_warn("store_not_restored",
             {{"file", std::filesystem::path(path).filename().string()},
              {"reason", file.ok() ? "there are two of its name" : file.status().message()}});
    return;
  }
  store->name = name;
  store->generation = head.generation;
  store->used = now_();
  store->file = std::move(*file);
  store->compact_above = 2 * store->file->bytes() + kLogSlack;
  store->bytes += kStoreCost;
  book.bytes += kStoreCost;
  ++book.stores;
  stores_[name] = std::move(store);
}

}  // namespace teletensor::server
