// Makes the calendar's clock jump: the rule "clock SECONDS" sets it off by that time, forward or
// back. Waits until a time of the calendar end by the clock as it is then, as in the kernel.
#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>

#include <cstdlib>
#include <cstring>

#include "control.h"

namespace {

constexpr char kRule[] = "clock ";
constexpr long kSlice = 20'000'000;          // ns; the interval at which a wait checks the clock
constexpr time_t kCalendar = 1'000'000'000;  // steady clocks count from the machine's start

time_t jump() {
  const char* const text = teletensor::faults::control();
  const std::size_t size = sizeof kRule - 1;
  return text != nullptr && std::strncmp(text, kRule, size) == 0 ? std::atol(text + size) : 0;
}

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

int real_time(clockid_t clock, timespec* now) {
  static const auto real = next<int (*)(clockid_t, timespec*)>("clock_gettime");
  return real(clock, now);
}

timespec calendar() {
  timespec now;
  real_time(CLOCK_REALTIME, &now);
  now.tv_sec += jump();
  return now;
}

bool is_past(const timespec& when) {
  const timespec now = calendar();
  return now.tv_sec > when.tv_sec || (now.tv_sec == when.tv_sec && now.tv_nsec >= when.tv_nsec);
}

// A time shortly after now by the kernel's clock.
timespec soon() {
  timespec when;
  real_time(CLOCK_REALTIME, &when);
  when.tv_nsec += kSlice;
  if (when.tv_nsec >= 1'000'000'000) {
    when.tv_nsec -= 1'000'000'000;
    ++when.tv_sec;
  }
  return when;
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* now) {
  const int done = real_time(clock, now);
  if (done == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    now->tv_sec += jump();
  }
  return done;
}

time_t time(time_t* out) {
  const time_t now = calendar().tv_sec;
  if (out != nullptr) *out = now;
  return now;
}

int gettimeofday(timeval* now, void*) {
  const timespec is = calendar();
  *now = {is.tv_sec, is.tv_nsec / 1000};
  return 0;
}

// A wait that is not over after a slice returns like a spurious wakeup.
int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           const timespec* until) {
  static const auto real =
      next<int (*)(pthread_cond_t*, pthread_mutex_t*, const timespec*)>("pthread_cond_timedwait");
  if (until->tv_sec < kCalendar) return real(condition, mutex, until);
  const timespec slice = soon();
  const int done = real(condition, mutex, &slice);
  if (done != ETIMEDOUT) return done;
  return is_past(*until) ? ETIMEDOUT : 0;
}

// Abseil waits by this system call.
long syscall(long number, ...) {
  static const auto real = next<long (*)(long, ...)>("syscall");
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& each : a) each = va_arg(list, long);
  va_end(list);
  const auto* const until = reinterpret_cast<const timespec*>(a[3]);
  const bool waits = number == SYS_futex && (a[1] & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET &&
                     (a[1] & FUTEX_CLOCK_REALTIME) != 0 && until != nullptr;
  if (!waits) return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  const timespec slice = soon();
  const long done = real(number, a[0], a[1], a[2], &slice, a[4], a[5]);
  if (done == -1 && errno == ETIMEDOUT && !is_past(*until)) errno = EINTR;
  return done;
}

}  // extern "C"
