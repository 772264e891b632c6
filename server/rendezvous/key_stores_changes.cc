// The calls of KeyStores that change a store.

#include <charconv>
#include <optional>

#include "server/base/log.h"
#include "server/rendezvous/key_stores_parts.h"

namespace teletensor::server {

using core::Code;
using core::MutexLock;
using core::Result;
using core::Status;

namespace {

std::optional<std::int64_t> number_in(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

Status KeyStores::check_entry(std::string_view key, std::string_view value) const {
  if (key.empty() || key.size() > limits_.key_bytes) {
    return core::invalid("a key of a store has 1 to " + std::to_string(limits_.key_bytes) +
                         " bytes, not " + std::to_string(key.size()));
  }
  if (value.size() <= limits_.value_bytes) return {};
  return core::invalid("a value of a store has at most " + std::to_string(limits_.value_bytes) +
                       " bytes, not " + std::to_string(value.size()) + " (key " + in_quotes(key) +
                       ")");
}

Status KeyStores::change(Store& store, const std::vector<Change>& changes, Ready& ready) {
  std::uint64_t more = 0;
  for (const Change& each : changes) {
    const auto there = store.values.find(each.key);
    const std::size_t old = there == store.values.end() ? 0 : there->second.size();
    const std::size_t size =
        each.value.size() + (each.kind == KeyStoreFile::Kind::kAppend ? old : 0);
    TT_RETURN_IF_ERROR(check_entry(each.key, each.value));
    if (size > limits_.value_bytes) {
      return core::invalid("append: the value of " + in_quotes(each.key) + " would have " +
                           std::to_string(size) + " bytes, at most " +
                           std::to_string(limits_.value_bytes));
    }
    if (each.client != 0) more += kClientCost;
    if (each.kind == KeyStoreFile::Kind::kDelete) continue;
    if (there == store.values.end()) more += kKeyCost + each.key.size();
    if (size > old) more += size - old;
  }
  if (more > 0) TT_RETURN_IF_ERROR(charge(store.name.first, more));
  if (store.file) TT_RETURN_IF_ERROR(store.file->append(changes));
  for (const Change& each : changes) apply(store, each);
  for (const Change& each : changes) {
    if (each.kind != KeyStoreFile::Kind::kDelete) wake(store, each.key, ready);
  }
  compact(store);
  return {};
}

void KeyStores::apply(Store& store, const Change& change) {
  Book& book = books_[store.name.first];
  const std::uint64_t before = store.bytes;
  if (change.client != 0) remember(store, change);
  if (change.kind == KeyStoreFile::Kind::kSet || change.kind == KeyStoreFile::Kind::kAppend) {
    auto there = store.values.find(change.key);
    if (there == store.values.end()) {
      there = store.values.emplace(change.key, "").first;
      store.bytes += kKeyCost + change.key.size();
    }
    store.bytes -= there->second.size();
    if (change.kind == KeyStoreFile::Kind::kSet) there->second.clear();
    there->second.append(change.value);
    store.bytes += there->second.size();
  } else if (change.kind == KeyStoreFile::Kind::kDelete) {
    if (const auto there = store.values.find(change.key); there != store.values.end()) {
      store.bytes -= kKeyCost + there->first.size() + there->second.size();
      store.values.erase(there);
    }
  }
  book.bytes = book.bytes - before + store.bytes;
}

void KeyStores::remember(Store& store, const Change& change) {
  const auto [there, is_new] = store.clients.try_emplace(change.client);
  there->second = {change.number, change.answer};
  if (!is_new) return;
  store.order.push_back(change.client);
  store.bytes += kClientCost;
  if (store.order.size() <= limits_.clients) return;
  store.clients.erase(store.order.front());
  store.order.pop_front();
  store.bytes -= kClientCost;
}

void KeyStores::compact(Store& store) {
  if (!store.file || store.file->bytes() <= store.compact_above) return;
  std::vector<Change> all;
  for (const auto& [key, value] : store.values) {
    all.push_back({KeyStoreFile::Kind::kSet, 0, 0, 0, key, value});
  }
  for (const std::uint64_t client : store.order) {
    const Store::Last& last = store.clients[client];
    all.push_back({KeyStoreFile::Kind::kNote, client, last.number, last.answer, {}, {}});
  }
  const Status status =
      store.file->replace({store.name.first, store.name.second, store.generation}, all);
  if (!status.ok()) log_warn("store_not_compacted", {{"reason", status.message()}});
  store.compact_above = 2 * store.file->bytes() + kLogSlack;
}

Status KeyStores::set(const Ref& ref, const std::vector<Entry>& entries) {
  Ready ready;
  MutexLock lock(mutex_);
  const Result<Store*> store = find_store(ref);
  if (!store.ok()) return store.status();
  std::vector<Change> changes;
  changes.reserve(entries.size());
  for (const auto& [key, value] : entries) {
    changes.push_back({KeyStoreFile::Kind::kSet, 0, 0, 0, key, value});
  }
  return change(**store, changes, ready);
}

Result<KeyStores::Making> KeyStores::begin(const Ref& ref, Call call) {
  const Result<Store*> store = find_store(ref);
  if (!store.ok()) return store.status();
  const auto made = (*store)->made(call);
  if (!made.ok()) return made.status();
  return Making{**store, *made};
}

Result<std::int64_t> KeyStores::add(const Ref& ref, Call call, std::string_view key,
                                    std::int64_t amount) {
  Ready ready;
  MutexLock lock(mutex_);
  const Result<Making> making = begin(ref, call);
  if (!making.ok()) return making.status();
  if (making->earlier != nullptr) return making->earlier->answer;
  Store& store = making->store;
  const auto there = store.values.find(key);
  const std::string_view stored =
      there == store.values.end() ? std::string_view("0") : std::string_view(there->second);
  const std::optional<std::int64_t> number = number_in(stored);
  std::int64_t sum = 0;
  if (!number) {
    return Status(Code::kFailedPrecondition,
                  "add: the value of " + in_quotes(key) +
                      " is not a number of 64 bits: " + in_quotes(stored));
  }
  if (__builtin_add_overflow(*number, amount, &sum)) {
    return Status(Code::kOutOfRange, "add: the sum of " + in_quotes(key) + " does not fit 64 bits");
  }
  const std::string digits = std::to_string(sum);
  TT_RETURN_IF_ERROR(change(
      store, {{KeyStoreFile::Kind::kSet, call.client, call.number, sum, key, digits}}, ready));
  return sum;
}

Status KeyStores::append(const Ref& ref, Call call, std::string_view key, std::string_view value) {
  Ready ready;
  MutexLock lock(mutex_);
  const Result<Making> making = begin(ref, call);
  if (!making.ok()) return making.status();
  if (making->earlier != nullptr) return {};
  return change(making->store,
                {{KeyStoreFile::Kind::kAppend, call.client, call.number, 0, key, value}}, ready);
}

Result<std::string> KeyStores::compare_set(const Ref& ref, Call call, std::string_view key,
                                           std::string_view expected, std::string_view desired) {
  Ready ready;
  MutexLock lock(mutex_);
  const Result<Making> making = begin(ref, call);
  if (!making.ok()) return making.status();
  if (making->earlier != nullptr) return std::string(desired);
  TT_RETURN_IF_ERROR(check_entry(key, expected));
  Store& store = making->store;
  const auto there = store.values.find(key);
  const bool missing = there == store.values.end();
  if (expected != (missing ? std::string_view() : std::string_view(there->second))) {
    return missing ? std::string(expected) : there->second;
  }
  TT_RETURN_IF_ERROR(change(
      store, {{KeyStoreFile::Kind::kSet, call.client, call.number, 0, key, desired}}, ready));
  return std::string(desired);
}

Result<bool> KeyStores::erase(const Ref& ref, Call call, std::string_view key) {
  Ready ready;
  MutexLock lock(mutex_);
  const Result<Making> making = begin(ref, call);
  if (!making.ok()) return making.status();
  if (making->earlier != nullptr) return true;
  TT_RETURN_IF_ERROR(check_entry(key, {}));
  if (!making->store.values.contains(key)) return false;
  TT_RETURN_IF_ERROR(change(
      making->store, {{KeyStoreFile::Kind::kDelete, call.client, call.number, 0, key, {}}}, ready));
  return true;
}

Result<std::uint64_t> KeyStores::count(const Ref& ref) {
  MutexLock lock(mutex_);
  const Result<Store*> store = find_store(ref);
  if (!store.ok()) return store.status();
  return std::uint64_t{(*store)->values.size()};
}

}  // namespace teletensor::server
