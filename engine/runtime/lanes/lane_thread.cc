#include "engine/runtime/lanes/lane_thread.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <utility>

#include "engine/core/clock.h"

namespace teletensor::runtime {
namespace {

thread_local core::Clock::time_point next_offer = core::Clock::time_point::max();

// The kernel's struct sched_attr, as far as it is used here; glibc has none before 2.41.
struct SchedulerAttributes {
  std::uint32_t size = sizeof(SchedulerAttributes);
  std::uint32_t policy = SCHED_OTHER;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime = 0;  // ns; the time slice for SCHED_OTHER
  std::uint64_t deadline = 0;
  std::uint64_t period = 0;
};
static_assert(sizeof(SchedulerAttributes) == 48);

cpu_set_t only(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  return set;
}

// While it is awake, a lane's thread is counted on the core on which it was last seen.
std::array<std::atomic<int>, CPU_SETSIZE> lanes_on;

class Place {
 public:
  ~Place() { leave(); }
  bool counted() const { return core_ >= 0; }
  bool shared() const { return counted() && lanes_on[core_].load(std::memory_order_relaxed) > 1; }
  void look() {
    const int core = sched_getcpu();
    if (core == core_) return;
    leave();
    if (core < 0 || core >= CPU_SETSIZE) return;
    lanes_on[core].fetch_add(1, std::memory_order_relaxed);
    core_ = core;
  }
  // Moves to a core on which the thread is already counted.
  void move(int core) {
    leave();
    core_ = core;
  }
  void leave() {
    if (counted()) lanes_on[core_].fetch_sub(1, std::memory_order_relaxed);
    core_ = -1;
  }

 private:
  int core_ = -1;
};

thread_local Place place;

}  // namespace

void begin_lane_thread() {
  pthread_setname_np(pthread_self(), "lane");
  place.look();
  // If the daemon was started under another policy, keep that policy.
  if (sched_getscheduler(0) != SCHED_OTHER) return;
  SchedulerAttributes wanted;
  wanted.nice = getpriority(PRIO_PROCESS, 0);
  wanted.runtime = std::chrono::nanoseconds(kLaneSlice).count();
  // A sandbox may refuse the call. Without a short slice, offering the core would reduce the lane's
  // share.
  if (syscall(SYS_sched_setattr, 0, &wanted, 0) != 0) return;
  next_offer = core::Clock::now() + kOfferEvery;
}

void yield_core() {
  if (next_offer == core::Clock::time_point::max()) return;
  if (core::Clock::now() < next_offer) return;
  sched_yield();
  next_offer = core::Clock::now() + kOfferEvery;
  (void)spread();
}

int spread() {
  if (!place.counted()) return -1;
  place.look();
  cpu_set_t allowed;
  if (!place.shared() || sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return -1;
  int left = CPU_COUNT(&allowed);
  for (int core = 0; left > 0; ++core) {
    if (!CPU_ISSET(core, &allowed)) continue;
    --left;
    int nobody = 0;
    if (!lanes_on[core].compare_exchange_strong(nobody, 1)) continue;
    const cpu_set_t there = only(core);
    if (sched_setaffinity(0, sizeof(there), &there) != 0) {
      lanes_on[core].fetch_sub(1, std::memory_order_relaxed);
      return -1;
    }
    (void)sched_setaffinity(0, sizeof(allowed), &allowed);
    place.move(core);
    return core;
  }
  return -1;
}

Asleep::Asleep() : counted_(place.counted()) { place.leave(); }
Asleep::~Asleep() {
  if (counted_) place.look();
}

CoreSuccessor::CoreSuccessor() : thread_(gettid()) {}

void CoreSuccessor::inherit() {
  const int core = sched_getcpu();
  if (core < 0 || core >= CPU_SETSIZE) return;
  if (sched_getaffinity(thread_, sizeof(allowed_), &allowed_) != 0) return;
  const cpu_set_t here = only(core);
  bound_ = sched_setaffinity(thread_, sizeof(here), &here) == 0;
}

void CoreSuccessor::roam() {
  if (std::exchange(bound_, false)) (void)sched_setaffinity(0, sizeof(allowed_), &allowed_);
}

}  // namespace teletensor::runtime
