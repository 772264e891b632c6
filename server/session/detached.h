// Detached: sessions that no client is attached to, for the texts of out-of-memory errors.
//
// A program that was killed leaves its session, with all its memory, until the lease is over. The
// next program of that user that runs out of memory is told which sessions those are, and how to
// end them. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/clock.h"
#include "engine/core/mutex.h"
#include "engine/core/status.h"

namespace teletensor::server {

class Detached {
 public:
  struct Session {
    std::uint64_t id = 0, bytes = 0;  // bytes of memory on all devices
    std::string name;
    core::Clock::time_point since;
  };
  using ByUser = std::map<std::string, std::vector<Session>, std::less<>>;

  // Replaces what was known.
  void set(ByUser sessions);
  // `status` as it is, but for RESOURCE_EXHAUSTED: with the user's largest detached sessions.
  core::Status advise(std::string_view user, core::Status status) const;

 private:
  mutable core::Mutex mutex_;
  ByUser sessions_ TT_GUARDED_BY(mutex_);
};

}  // namespace teletensor::server
