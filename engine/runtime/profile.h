// Profile: records the most recent actions of a session's lanes, while it is turned on. Costs one
// relaxed load per instruction while it is off. Bounded; thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/core/mutex.h"
#include "engine/program/timeline.h"

namespace teletensor::runtime {

class Profile {
 public:
  // Maximum number of spans, and of arrivals.
  static constexpr std::size_t kMax = std::size_t{1} << 17;

  bool on() const { return on_.load(std::memory_order_relaxed); }
  // Turning it on discards earlier records.
  void turn(bool on);
  // Destructors call it; without memory the span is dropped.
  void add(const program::Span& span) noexcept;
  void arrived(std::uint64_t first_seq, std::uint64_t commands);
  // Removes and returns the oldest entries, at most `most` of each kind.
  program::Timeline take(std::size_t most);

  static std::uint32_t lane();  // number of the calling thread

  // Measures its own lifetime, if the profile is on when it is created.
  class Timer {
   public:
    Timer(Profile& profile, std::uint64_t seq, program::OpId op, std::uint32_t steps) {
      if (profile.on()) [[unlikely]]
        begin(profile, seq, op, steps);
    }
    ~Timer() {
      if (profile_ != nullptr) [[unlikely]]
        end();
    }
    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;
    // Discards the measurement, because nothing happened.
    void forget() { profile_ = nullptr; }

   private:
    void begin(Profile& profile, std::uint64_t seq, program::OpId op, std::uint32_t steps);
    void end();

    Profile* profile_ = nullptr;
    program::Span span_;
    std::uint64_t given_;
  };

 private:
  std::atomic<bool> on_{false};
  core::Mutex mu_;
  program::Timeline recorded_ TT_GUARDED_BY(mu_);
};

}  // namespace teletensor::runtime
