// Detached lists the sessions without a client, so that out-of-memory errors can mention them.
// A client that was killed leaves its session, with all its memory, until the lease expires. If a
// later program of the same user runs out of memory, the error names these sessions and says how to
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
    std::uint64_t id = 0, bytes = 0;  // Memory of the session on all devices, in bytes.
    std::string name;
    core::Clock::time_point since;
  };
  using ByUser = std::map<std::string, std::vector<Session>, std::less<>>;

  // Replaces the list of detached sessions.
  void set(ByUser sessions);
  // Returns `status`. If it is RESOURCE_EXHAUSTED, its text also names the user's largest detached
  // sessions.
  core::Status advise(std::string_view user, core::Status status) const;

 private:
  mutable core::Mutex mutex_;
  ByUser sessions_ TT_GUARDED_BY(mutex_);
};

}  // namespace teletensor::server
