// WriteOrder chooses the session that a shutdown writes next.
// The time and the disk of a shutdown may not suffice for all sessions. The next session is the one
// after which its user has the fewest bytes in files: small sessions are written first, and large
// sessions of one user do not delay those of a user with fewer bytes. Among equal sessions the
// place decides. Some sessions still run and cannot be written yet. A session that comes later in
// the order waits for them for about the time that its own writing takes, but at least for
// kShortestWait and never longer than a fixed time. Not thread-safe.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>

#include "engine/core/clock.h"

namespace teletensor::server {

class WriteOrder {
 public:
  using Time = core::Clock::time_point;
  struct Session {
    const void* key = nullptr;
    std::string_view user;
    std::uint64_t bytes = 0;
    int place = 0;  // Lower places come first among sessions that are equal otherwise.
  };
  // The size of a session's file in addition to the bytes of its tensors.
  static constexpr std::uint64_t kFile = 64 << 10;
  // Bytes that are assumed to be written in a second when a session waits for an earlier one.
  static constexpr std::uint64_t kBytesPerSecond = 256 << 20;
  // Every session waits for this long, because on a busy machine the images of idle sessions are
  // made some milliseconds apart.
  static constexpr std::chrono::milliseconds kShortestWait{50};

  // No session waits for another one for longer than `longest_wait` after `began`.
  WriteOrder(Time began, core::Clock::duration longest_wait)
      : began_(began), longest_wait_(longest_wait) {}

  // Announces a session that is still running. Its `bytes` may be an estimate.
  void expect(const Session& session);
  // The session can be written now, or will never be written.
  void settle(const void* key) { expected_.erase(key); }
  // Returns the index of the session to write next. Returns nothing if `ready` is empty or if all
  // of its sessions wait for expected ones. `ready` may contain an older image of an expected
  // session; the session is then not waited for.
  std::optional<std::size_t> choose(std::span<const Session> ready, Time now) const;
  // Counts bytes that are written for a user.
  void charge(std::string_view user, std::uint64_t bytes);
  // Takes back a charge of a session that was not written and will be tried again.
  void refund(std::string_view user, std::uint64_t bytes);

 private:
  using Rank = std::tuple<std::uint64_t, int>;
  struct Expected {
    std::string user;
    std::uint64_t bytes;
    int place;
  };
  Rank rank(std::string_view user, std::uint64_t bytes, int place) const;
  Time latest_start(std::uint64_t bytes) const;

  const Time began_;
  const core::Clock::duration longest_wait_;
  std::map<const void*, Expected> expected_;
  std::map<std::string, std::uint64_t, std::less<>> charged_;  // Bytes by user.
};

}  // namespace teletensor::server
