#include "clients/session/stream/alarm.h"

#include <cstdint>

#ifdef __linux__
#include <sys/timerfd.h>
#include <unistd.h>
#endif

namespace teletensor::client {

using core::MutexLock;

namespace {

#ifdef __linux__

int make_timer() { return timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC); }

void set_timer(int timer, std::chrono::nanoseconds time) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  const itimerspec once{{}, {time.count() / kSecond, time.count() % kSecond}};
  timerfd_settime(timer, 0, &once, nullptr);
}

void wait_for_timer(int timer) {
  std::uint64_t times = 0;
  while (read(timer, &times, sizeof times) != sizeof times) {
  }
}

#else

int make_timer() { return -1; }
void set_timer(int, std::chrono::nanoseconds) {}
void wait_for_timer(int) {}

#endif

}  // namespace

Alarm::Alarm() : timer_(make_timer()) {}

void Alarm::set(Duration time) {
  if (timer_) return set_timer(timer_.get(), time);
  {
    MutexLock lock(mutex_);
    at_ = Clock::now() + time;
  }
  changed_.notify_one();
}

void Alarm::wait() {
  if (timer_) return wait_for_timer(timer_.get());
  MutexLock lock(mutex_);
  while (at_ > Clock::now()) changed_.wait_for(mutex_, at_ - Clock::now());
}

}  // namespace teletensor::client
