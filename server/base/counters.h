// Counters of events since the daemon started, for the metrics. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "engine/core/mutex.h"
#include "engine/core/status.h"

namespace teletensor::server {

// Totals of one user.
struct UserTotals {
  std::uint64_t lane_ns = 0, commands = 0;  // Of sessions that have ended.
  std::uint64_t not_saved = 0;              // Snapshots for which the user's files had no room.
};

// Why a connection or a request was refused before its caller was asked for a token, or a stream
// after that.
enum class Refusal : std::uint8_t {
  kHttpPlaces,    // No place for the connection: its address or all addresses have too many.
  kHttpReplaced,  // It waited longest and gave way to a new connection.
  kHttpHead,      // Its request line or its headers are too large.
  kHttpBody,      // Its body is too large.
  kHttpTime,      // Its request took too long.
  kGrpcStreams,   // Its user, its session or all users have too many streams.
  kSocketUser,    // A user who may not connect to the UNIX socket, or for whom there is no place.
  kCount
};

class Counters {
 public:
  static constexpr std::size_t kCodes = 17;  // Number of gRPC status codes.
  // Maximum number of users that are counted separately; the rest are counted as "other".
  static constexpr std::size_t kMaxUsers = 1000;

  // Sessions refused because of their protocol version or a limit.
  std::atomic<std::uint64_t> refused_sessions{0};

  void refused(Refusal why) { ++refused_[static_cast<std::size_t>(why)]; }
  std::uint64_t refused(Refusal why) const { return refused_[static_cast<std::size_t>(why)]; }

  // Counts a session that has ended with this status and this word for the reason.
  void ended(core::Code code, const std::string& word) {
    core::MutexLock lock(mutex_);
    ++ended_[{static_cast<std::size_t>(code) % kCodes, word}];
  }
  std::map<std::pair<std::size_t, std::string>, std::uint64_t> ended() const {
    core::MutexLock lock(mutex_);
    return ended_;
  }

  void add(const std::string& user, const UserTotals& more) {
    core::MutexLock lock(mutex_);
    const bool known = users_.count(user) != 0 || users_.size() < kMaxUsers;
    UserTotals& totals = users_[known ? user : "other"];
    totals.lane_ns += more.lane_ns;
    totals.commands += more.commands;
  }
  // A session of this user was not written, because its files had no room for it (StateUse).
  void not_saved(const std::string& user) {
    core::MutexLock lock(mutex_);
    const bool known = users_.count(user) != 0 || users_.size() < kMaxUsers;
    ++users_[known ? user : "other"].not_saved;
  }
  std::map<std::string, UserTotals> users() const {
    core::MutexLock lock(mutex_);
    return users_;
  }

 private:
  std::array<std::atomic<std::uint64_t>, static_cast<std::size_t>(Refusal::kCount)> refused_{};
  mutable core::Mutex mutex_;
  std::map<std::pair<std::size_t, std::string>, std::uint64_t> ended_ TT_GUARDED_BY(mutex_);
  std::map<std::string, UserTotals> users_ TT_GUARDED_BY(mutex_);
};

}  // namespace teletensor::server
