// Profile: the last things a session's lanes did, while somebody wants to know. Costs one relaxed
// load per instruction while nobody does. Bounded; thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/core/mutex.h"
#include "engine/program/timeline.h"

namespace teletensor::runtime {

class Profile {
 public:
  static constexpr std::size_t kMax = std::size_t{1} << 17;  // spans; as many arrivals

  bool on() const { return on_.load(std::memory_order_relaxed); }
  // Turning it on forgets what was recorded before.
  void turn(bool on);
  void add(const program::Span& span);
  void arrived(std::uint64_t first_seq, std::uint64_t commands);
  // The oldest `most` of each, which are gone from here then.
  program::Timeline take(std::size_t most);

  static std::uint32_t lane();  // the calling thread's number

  // Measures its own life, if the profile is on at its beginning.
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
    // Nothing has happened.
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
