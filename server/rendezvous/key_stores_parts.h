// The inner types of KeyStores; only its own files include this.
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

inline constexpr std::uint64_t kKeyCost = 128, kClientCost = 64, kWaitCost = 256, kStoreCost = 1024;
inline constexpr std::uint64_t kLogSlack = std::uint64_t{1} << 20;
inline constexpr char kStoreSuffix[] = ".store";

// A key, a value or a name, for an error.
inline std::string in_quotes(std::string_view text) { return "\"" + readable(text, 64) + "\""; }

struct KeyStores::Store {
  struct Last {
    std::uint64_t number = 0;
    std::int64_t answer = 0;
  };
  Name name;
  std::uint64_t generation = 0;
  std::map<std::string, std::string, std::less<>> values;
  // The last change of each client, and whose it was in the order of their first ones.
  std::unordered_map<std::uint64_t, Last> clients;
  std::deque<std::uint64_t> order;
  std::uint64_t bytes = 0;  // charged to the user
  Clock::time_point used;
  std::multimap<std::string, WaitRef, std::less<>> waiting;  // by the first key that is missing
  std::unique_ptr<KeyStoreFile> file;                        // null: in memory alone
  std::uint64_t compact_above = kLogSlack;                   // bytes of the file

  // Has the client made this change already? ABORTED if the client has made a later change.
  core::Result<const Last*> made(Call call) const {
    const auto found = call.client == 0 ? clients.end() : clients.find(call.client);
    if (found == clients.end() || call.number > found->second.number) return nullptr;
    if (call.number == found->second.number) return &found->second;
    return core::Status(core::Code::kAborted, "store: the client has made a later call already");
  }
};

struct KeyStores::Making {
  Store& store;
  const Store::Last* earlier;  // the same change; null: it has not been made
};

class KeyStores::Wait {
 public:
  Name name;
  std::vector<std::string> keys;
  bool values = false;
  Done done;
  std::uint64_t cost = 0;
  std::size_t at = 0;      // keys before it have been there
  Store* store = nullptr;  // it waits in this one; null, and queued: for there to be one
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
