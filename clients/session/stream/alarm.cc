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

void drop_timer(int timer) { close(timer); }

#else

int make_timer() { return -1; }
void set_timer(int, std::chrono::nanoseconds) {}
void wait_for_timer(int) {}
void drop_timer(int) {}

#endif

}  // namespace

Alarm::Alarm() : timer_(make_timer()) {}

Alarm::~Alarm() {
  if (timer_ >= 0) drop_timer(timer_);
}

void Alarm::set(Duration time) {
  if (timer_ >= 0) return set_timer(timer_, time);
  {
    MutexLock lock(mutex_);
    at_ = Clock::now() + time;
  }
  changed_.notify_one();
}

void Alarm::wait() {
  if (timer_ >= 0) return wait_for_timer(timer_);
  MutexLock lock(mutex_);
  while (at_ > Clock::now()) changed_.wait_for(mutex_, at_ - Clock::now());
}

}  // namespace teletensor::client
