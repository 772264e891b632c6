// Alarm: wakes a thread after a time that others may change meanwhile, which wakes nobody.
#pragma once

#include <chrono>

#include "engine/core/mutex.h"

namespace teletensor::client {

class Alarm {
 public:
  using Duration = std::chrono::nanoseconds;

  Alarm();
  ~Alarm();
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  // It goes off so long from now (> 0), in place of when it was to. Any thread.
  void set(Duration time);
  // Until it goes off. Precondition: set() since the last time. One thread.
  void wait();

 private:
  using Clock = std::chrono::steady_clock;

  const int timer_;  // negative where the system gives none: then a condition, which does wake
  core::Mutex mutex_;
  core::CondVar changed_;
  Clock::time_point at_ TT_GUARDED_BY(mutex_);
};

}  // namespace teletensor::client
