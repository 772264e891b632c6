#include "engine/runtime/lane_thread.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#include "engine/core/clock.h"

namespace teletensor::runtime {
namespace {

thread_local core::Clock::time_point next_offer = core::Clock::time_point::max();

// The kernel's struct sched_attr, as far as it is asked for; glibc has none before 2.41.
struct SchedulerAttributes {
  std::uint32_t size = sizeof(SchedulerAttributes);
  std::uint32_t policy = SCHED_OTHER;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime = 0;  // ns; of SCHED_OTHER, the slice
  std::uint64_t deadline = 0;
  std::uint64_t period = 0;
};
static_assert(sizeof(SchedulerAttributes) == 48);

}  // namespace

void begin_lane_thread() {
  pthread_setname_np(pthread_self(), "lane");
  // Who runs the daemon under another policy has a reason.
  if (sched_getscheduler(0) != SCHED_OTHER) return;
  SchedulerAttributes wanted;
  wanted.nice = getpriority(PRIO_PROCESS, 0);
  wanted.runtime = std::chrono::nanoseconds(kLaneSlice).count();
  // A sandbox may refuse it. Offers would cost a lane its share then.
  if (syscall(SYS_sched_setattr, 0, &wanted, 0) != 0) return;
  next_offer = core::Clock::now() + kOfferEvery;
}

void offer_core() {
  if (next_offer == core::Clock::time_point::max()) return;
  if (core::Clock::now() < next_offer) return;
  sched_yield();
  next_offer = core::Clock::now() + kOfferEvery;
}

}  // namespace teletensor::runtime
