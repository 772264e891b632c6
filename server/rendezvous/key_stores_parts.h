// The nested types of KeyStores. Only the implementation files of KeyStores include this header.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/base/text.h"
#include "server/rendezvous/key_stores.h"

namespace teletensor::server {

// Bytes that are charged to the user for each key, each client whose last change is remembered,
// each waiting call and each store, besides the texts: approximately what their entries take.
inline constexpr std::uint64_t kKeyCost = 128, kClientCost = 64, kWaitCost = 256, kStoreCost = 1024;
// A store's file is compacted when it is twice as large as after the last time, and this much more.
inline constexpr std::uint64_t kLogSlack = std::uint64_t{1} << 20;
inline constexpr char kStoreSuffix[] = ".store";

// Quotes a key, a value or a name for an error message.
inline std::string in_quotes(std::string_view text) { return "\"" + readable(text, 64) + "\""; }

struct KeyStores::Store {
  struct Last {
    std::uint64_t number = 0;
    std::int64_t answer = 0;
  };
  Name name;
  std::uint64_t generation = 0;
  std::map<std::string, std::string, std::less<>> values;
  // The last change of each client, and the clients in the order of their first change.
  std::unordered_map<std::uint64_t, Last> clients;
  std::deque<std::uint64_t> order;
  std::uint64_t bytes = 0;  // Bytes charged to the user.
  Clock::time_point used;
  // Waiting calls, by their first missing key.
  std::multimap<std::string, WaitRef, std::less<>> waiting;
  // The file of the store. Null if the store is kept in memory only.
  std::unique_ptr<KeyStoreFile> file;
  std::uint64_t compact_above = kLogSlack;  // File size in bytes above which the file is compacted.

  // Returns the record of the change if the client has already made it, and null otherwise. ABORTED
  // if the client has made a later change.
  core::Result<const Last*> made(Call call) const {
    const auto found = call.client == 0 ? clients.end() : clients.find(call.client);
    if (found == clients.end() || call.number > found->second.number) return nullptr;
    if (call.number == found->second.number) return &found->second;
    return core::Status(core::Code::kAborted, "store: the client has made a later call already");
  }
};

struct KeyStores::Making {
  Store& store;
  // The record of the same change. Null if the change was not made yet.
  const Store::Last* earlier;
};

class KeyStores::Wait {
 public:
  Name name;
  std::vector<std::string> keys;
  bool values = false;
  Done done;
  std::uint64_t cost = 0;
  std::size_t at = 0;  // Number of leading keys of the call that are known to exist.
  // The store in which the call waits. If it is null and `queued` is set, the call waits for the
  // store to be created.
  Store* store = nullptr;
  bool queued = false;
};

class KeyStores::Ready {
 public:
  Ready() = default;
  ~Ready() {
    for (auto& [wait, found] : all_) wait->done(std::move(found));
  }
  Ready(const Ready&) = delete;
  Ready& operator=(const Ready&) = delete;
  void add(WaitRef wait, core::Result<Found> found) {
    all_.emplace_back(std::move(wait), std::move(found));
  }

 private:
  std::vector<std::pair<WaitRef, core::Result<Found>>> all_;
};

}  // namespace teletensor::server
