// Monotonic time in nanoseconds.
#pragma once

#include <chrono>
#include <cstdint>

namespace teletensor::core {

using Clock = std::chrono::steady_clock;

// Nanoseconds between two points in time.
inline std::uint64_t ns_between(Clock::time_point from, Clock::time_point to) {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(to - from).count());
}
inline std::uint64_t ns_since(Clock::time_point from) { return ns_between(from, Clock::now()); }
// Nanoseconds since the clock's epoch; comparable within one process.
inline std::uint64_t now_ns() { return ns_between({}, Clock::now()); }

}  // namespace teletensor::core
