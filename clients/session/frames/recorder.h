// Recorder records when the frames of a session were sent and what its program waited for, while
// profiling is on.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/clock.h"
#include "engine/core/mutex.h"

namespace teletensor::client {

class Recorder {
 public:
  // Maximum number of records of each kind.
  static constexpr std::size_t kMax = std::size_t{1} << 17;

  // Times are nanoseconds of the steady clock, like Python's time.monotonic_ns().
  struct SentFrame {
    std::uint64_t at = 0, last_seq = 0, bytes = 0;
  };
  struct Wait {
    std::uint64_t begin = 0, ns = 0, last_seq = 0;
    std::string site;  // Source line of the program that waited.
  };

  bool on() const { return on_.load(std::memory_order_relaxed); }
  void turn(bool on) { on_.store(on, std::memory_order_relaxed); }
  void add(SentFrame frame) {
    core::MutexLock lock(mutex_);
    if (frames_.size() < kMax) frames_.push_back(frame);
  }
  void add(Wait wait) {
    core::MutexLock lock(mutex_);
    if (waits_.size() < kMax) waits_.push_back(std::move(wait));
  }
  std::pair<std::vector<SentFrame>, std::vector<Wait>> take() {
    core::MutexLock lock(mutex_);
    return {std::exchange(frames_, {}), std::exchange(waits_, {})};
  }

 private:
  std::atomic<bool> on_{false};
  core::Mutex mutex_;
  std::vector<SentFrame> frames_ TT_GUARDED_BY(mutex_);
  std::vector<Wait> waits_ TT_GUARDED_BY(mutex_);
};

}  // namespace teletensor::client
