// Scheduling of a lane's thread by the operating system: time slices, yielding, and placement on
// cores.
//
// A lane computes for seconds, while the threads that read sockets, and clients on this machine,
// often need a core for a few microseconds. The kernel checks for such threads when its clock
// ticks, every 1 to 4 ms; therefore a lane offers its core between the parts of its work. Linux
// deducts the rest of the time slice from a thread that yields (6.18): lanes request short slices
// and so keep their share of the cores beside other programs.
//
// Linux also does not always move a thread that wakes up, or one of two threads on a core, to an
// idle core before the next tick. Therefore lanes that find themselves on one core move apart, and
// a thread that takes over a lane from another thread takes over its core as well.
#pragma once

#include <sched.h>
#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "engine/core/clock.h"

namespace teletensor::runtime {

inline constexpr std::chrono::microseconds kLaneSlice{100};
inline constexpr std::chrono::microseconds kOfferEvery{200};
inline constexpr std::uint64_t kSpinFor = 50'000;  // ns, less than waking a sleeping thread costs

// Makes the calling thread a lane, with its name and time slice (kernels before 6.12 have one slice
// for all threads and deduct nothing). If the system refuses the slice, the lane never offers its
// core.
void begin_lane_thread();

// Lets a waiting thread use this core, if the calling thread is a lane that has not offered it for
// kOfferEvery; then calls spread(). Does nothing on other threads.
void yield_core();

// If another lane computes on the core of the calling lane, moves to a core without a lane, if
// there is one and the system allows it. Does nothing on other threads. Returns the number of the
// new core, or -1 if the thread stays; the system may move it again at any time.
int spread();

// Waits of one thread for events that usually come sooner than the system could wake it. On a busy
// machine, where the other thread does not run, such waits only take the core from it; therefore a
// wait in vain is followed by fewer of them.
class ShortWait {
 public:
  // Calls `reached()` until it returns true, for at most kSpinFor, or only once.
  template <class Condition>
  void until(Condition reached) {
    if (reached()) return;
    if (skipped_ < vain_) {
      ++skipped_;
      return;
    }
    skipped_ = 0;
    const std::uint64_t end = core::now_ns() + kSpinFor;
    do {
      pause();
      if (reached()) {
        vain_ = vain_ / 2;
        return;
      }
    } while (core::now_ns() < end);
    vain_ = std::min(2 * vain_ + 1, kMaxVain);
  }

 private:
  static constexpr int kMaxVain = 63;
  static void pause() {
#if defined(__x86_64__)
    for (int i = 0; i < 4; ++i) __builtin_ia32_pause();
#endif
  }
  int vain_ = 0;     // how many waits are skipped after one in vain
  int skipped_ = 0;  // how many have been
};

// While it exists, the calling thread sleeps and is not counted on its core.
class Asleep {
 public:
  Asleep();
  ~Asleep();
  Asleep(const Asleep&) = delete;
  Asleep& operator=(const Asleep&) = delete;

 private:
  const bool counted_;
};

// CoreSuccessor: a thread that takes over the core of another thread. Created by the thread itself,
// before it sleeps.
class CoreSuccessor {
 public:
  CoreSuccessor();
  // Called by the thread that leaves its core: the sleeping thread will wake up on this core.
  void inherit();
  // Called by the new thread when it is awake: it may run on any core again.
  void roam();

 private:
  const pid_t thread_;
  bool bound_ = false;
  cpu_set_t allowed_;
};

}  // namespace teletensor::runtime
