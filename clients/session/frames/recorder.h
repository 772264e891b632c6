// Recorder records when the frames of a session were sent, what its program waited for and, if
// asked, the shapes of its operands, while profiling is on.
//
// Thread-safe: the sender adds frames, and API threads add waits and shapes. Callers test on() or
// shapes() first, which costs one load, so that nothing is built while profiling is off. Records
// beyond kMax of a kind are dropped until the program takes the earlier ones.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/clock.h"
#include "engine/core/geometry.h"
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
  // The shapes of an Apply command's arguments in order, empty for a number or an absent argument.
  struct Shapes {
    std::uint64_t seq = 0;
    std::vector<core::Dims> arguments;
  };

  bool on() const { return on_.load(std::memory_order_relaxed); }
  bool shapes() const { return shapes_.load(std::memory_order_relaxed); }
  // Starts or stops recording. Earlier records stay until they are taken.
  void turn(bool on, bool shapes = false) {
    on_.store(on, std::memory_order_relaxed);
    shapes_.store(on && shapes, std::memory_order_relaxed);
  }
  void add(SentFrame frame) {
    core::MutexLock lock(mutex_);
    if (frames_.size() < kMax) frames_.push_back(frame);
  }
  void add(Wait wait) {
    core::MutexLock lock(mutex_);
    if (waits_.size() < kMax) waits_.push_back(std::move(wait));
  }
  void add(Shapes shapes) {
    core::MutexLock lock(mutex_);
    if (operands_.size() < kMax) operands_.push_back(std::move(shapes));
  }
  // take_shapes() and take() remove the records that they return, oldest first.
  std::vector<Shapes> take_shapes() {
    core::MutexLock lock(mutex_);
    return std::exchange(operands_, {});
  }
  std::pair<std::vector<SentFrame>, std::vector<Wait>> take() {
    core::MutexLock lock(mutex_);
    return {std::exchange(frames_, {}), std::exchange(waits_, {})};
  }

 private:
  std::atomic<bool> on_{false}, shapes_{false};
  core::Mutex mutex_;
  std::vector<SentFrame> frames_ TT_GUARDED_BY(mutex_);
  std::vector<Wait> waits_ TT_GUARDED_BY(mutex_);
  std::vector<Shapes> operands_ TT_GUARDED_BY(mutex_);
};

}  // namespace teletensor::client
