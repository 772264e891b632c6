// The calls of KeyStores that read a store, and that wait in it.
#include <algorithm>

#include "server/rendezvous/key_stores_parts.h"

namespace teletensor::server {

using core::Code;
using core::MutexLock;
using core::Result;
using core::Status;

Result<KeyStores::Found> KeyStores::values_of(const Store& store,
                                              const std::vector<std::string>& keys) {
  Found found{true, {}, 0, 0};
  for (const std::string& key : keys) {
    const std::string& value = store.values.find(key)->second;
    if (!found.values.empty() && found.bytes + value.size() > limits_.answer_bytes) break;
    found.values.push_back(value);
    found.bytes += value.size();
  }
  Book& book = books_[store.name.first];
  if (book.answers + found.bytes > limits_.user_answers) {
    return Status(Code::kUnavailable, "store: too many answers are under way; ask again");
  }
  book.answers += found.bytes;
  return found;
}

Result<KeyStores::Found> KeyStores::find(const Ref& ref, const std::vector<std::string_view>& keys,
                                         bool values) {
  MutexLock lock(mutex_);
  const Result<Store*> store = find_store(ref);
  if (!store.ok()) return store.status();
  for (const std::string_view key : keys) {
    TT_RETURN_IF_ERROR(check_entry(key, {}));
    if (!(*store)->values.contains(key)) return Found{};
  }
  if (!values) return Found{true, {}, 0, 0};
  return values_of(**store, {keys.begin(), keys.end()});
}

Result<KeyStores::WaitRef> KeyStores::new_wait(const Ref& ref,
                                               const std::vector<std::string_view>& keys,
                                               bool values, Done done) {
  const auto wait = std::make_shared<Wait>();
  wait->cost = kWaitCost;
  for (const std::string_view key : keys) {
    TT_RETURN_IF_ERROR(check_entry(key, {}));
    wait->cost += key.size() + kKeyCost;
  }
  const auto book = books_.find(ref.user);
  if (book != books_.end() && book->second.waits >= limits_.user_waits) {
    return Status(Code::kResourceExhausted, "at most " + std::to_string(limits_.user_waits) +
                                                " calls of a user wait in stores at once");
  }
  const Status room = charge(ref.user, wait->cost);
  if (!room.ok()) {
    tidy(ref.user);
    return room;
  }
  wait->name = {ref.user, ref.name};
  wait->keys.assign(keys.begin(), keys.end());
  wait->values = values;
  wait->done = std::move(done);
  return wait;
}

Result<KeyStores::WaitRef> KeyStores::wait(const Ref& ref,
                                           const std::vector<std::string_view>& keys, bool values,
                                           Done done) {
  Ready ready;
  MutexLock lock(mutex_);
  const Result<Store*> store = find_store(ref);
  if (!store.ok()) return store.status();
  Result<WaitRef> wait = new_wait(ref, keys, values, std::move(done));
  if (wait.ok()) look(**store, *wait, ready);
  return wait;
}

Result<KeyStores::WaitRef> KeyStores::join(const Ref& ref, Done done) {
  Ready ready;
  MutexLock lock(mutex_);
  TT_RETURN_IF_ERROR(check(ref));
  Result<WaitRef> wait = new_wait(ref, {}, false, std::move(done));
  if (!wait.ok()) return wait;
  if (const auto found = stores_.find((*wait)->name); found != stores_.end()) {
    found->second->used = now_();
    ready.add(*wait, Found{true, {}, found->second->generation, 0});
    tidy(ref.user);
    return wait;
  }
  joining_[(*wait)->name].push_back(*wait);
  (*wait)->queued = true;
  Book& book = books_[ref.user];
  ++book.waits;
  book.bytes += (*wait)->cost;
  return wait;
}

void KeyStores::look(Store& store, const WaitRef& wait, Ready& ready) {
  const auto there = [&] { return store.values.contains(wait->keys[wait->at]); };
  while (wait->at < wait->keys.size() && there()) ++wait->at;
  if (wait->at == wait->keys.size()) {  // A key that existed earlier may have been deleted since.
    wait->at = 0;
    while (wait->at < wait->keys.size() && there()) ++wait->at;
  }
  if (wait->at == wait->keys.size()) {
    end(wait);
    store.used = now_();
    ready.add(wait,
              wait->values ? values_of(store, wait->keys) : Result<Found>(Found{true, {}, 0, 0}));
    return;
  }
  store.waiting.emplace(wait->keys[wait->at], wait);
  if (std::exchange(wait->queued, true)) return;
  wait->store = &store;
  Book& book = books_[wait->name.first];
  ++book.waits;
  book.bytes += wait->cost;
}

void KeyStores::wake(Store& store, std::string_view key, Ready& ready) {
  std::vector<WaitRef> waits;
  const auto [begin, end] = store.waiting.equal_range(key);
  for (auto each = begin; each != end; ++each) waits.push_back(each->second);
  store.waiting.erase(begin, end);
  for (const WaitRef& wait : waits) look(store, wait, ready);
}

// Ends a call that is in no queue any more.
void KeyStores::end(const WaitRef& wait) {
  if (!std::exchange(wait->queued, false)) return;
  wait->store = nullptr;
  --books_[wait->name.first].waits;
  refund(wait->name.first, wait->cost);
}

bool KeyStores::cancel(const WaitRef& wait) {
  MutexLock lock(mutex_);
  if (!wait->queued) return false;
  if (wait->store != nullptr) {
    auto& waiting = wait->store->waiting;
    const auto [begin, end] = waiting.equal_range(wait->keys[wait->at]);
    const auto found = std::find_if(begin, end, [&](const auto& e) { return e.second == wait; });
    if (found != end) waiting.erase(found);
    wait->store->used = now_();
  } else if (const auto found = joining_.find(wait->name); found != joining_.end()) {
    std::erase(found->second, wait);
    if (found->second.empty()) joining_.erase(found);
  }
  end(wait);
  return true;
}

}  // namespace teletensor::server
