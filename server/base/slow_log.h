// SlowLog keeps the last instructions that occupied a lane for a long time, like Redis's SLOWLOG.
// Its size is bounded. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "engine/core/mutex.h"

namespace teletensor::server {

// One instruction that ran for longer than Limits::slow.
struct SlowEntry {
  std::chrono::steady_clock::time_point at;
  std::uint64_t session = 0;  // Session number.
  std::string user, session_name, op;
  std::chrono::nanoseconds took{};
  std::uint64_t seq = 0;
  std::string site;  // Source line that issued the command. Empty if it was not reported.
};

class SlowLog {
 public:
  static constexpr std::size_t kMax = 256;  // Number of entries that are kept.

  // Removes the oldest entry if there are too many.
  void add(SlowEntry entry) {
    core::MutexLock lock(mutex_);
    if (entries_.size() == kMax) entries_.pop_back();
    entries_.push_front(std::move(entry));
    ++added_;
  }
  // Numbers of a session's commands whose source lines were not reported.
  std::vector<std::uint64_t> without_site(std::uint64_t session) const {
    core::MutexLock lock(mutex_);
    std::vector<std::uint64_t> found;
    for (const SlowEntry& entry : entries_) {
      if (entry.session == session && entry.site.empty()) found.push_back(entry.seq);
    }
    return found;
  }
  // Sets the source line of a command, which the client reports later than the daemon runs it. Has
  // no effect if the entry was removed meanwhile.
  void set_site(std::uint64_t session, std::uint64_t seq, const std::string& site) {
    core::MutexLock lock(mutex_);
    for (SlowEntry& entry : entries_) {
      if (entry.session == session && entry.seq == seq) entry.site = site;
    }
  }
  // The entries, newest first.
  std::vector<SlowEntry> entries() const {
    core::MutexLock lock(mutex_);
    return {entries_.begin(), entries_.end()};
  }
  // Number of entries since the start, with those that were removed.
  std::uint64_t added() const {
    core::MutexLock lock(mutex_);
    return added_;
  }

 private:
  mutable core::Mutex mutex_;
  std::deque<SlowEntry> entries_ TT_GUARDED_BY(mutex_);
  std::uint64_t added_ TT_GUARDED_BY(mutex_) = 0;
};

}  // namespace teletensor::server
