// Alarm wakes a thread at a set time. Other threads may change the time, which does not wake the
// thread.
#pragma once

#include <chrono>

#include "engine/core/mutex.h"
#include "engine/core/os/unique_fd.h"

namespace teletensor::client {

class Alarm {
 public:
  using Duration = std::chrono::nanoseconds;

  Alarm();
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  // Sets the alarm to go off after `time` (> 0) from now, instead of the earlier setting. Callable
  // from any thread.
  void set(Duration time);
  // Waits until the alarm goes off. Precondition: set() was called since the last wait(). Used by
  // one thread.
  void wait();

 private:
  using Clock = std::chrono::steady_clock;

  // Timer descriptor. Empty if the system provides none; then a condition variable is used,
  // which does wake the thread.
  const core::UniqueFd timer_;
  core::Mutex mutex_;
  core::CondVar changed_;
  Clock::time_point at_ TT_GUARDED_BY(mutex_);
};

}  // namespace teletensor::client
