// What a lane's thread agrees with the operating system.
//
// A lane computes for seconds on end; the threads that read sockets, and clients on this machine,
// need a core for some microseconds, often. The system looks whose turn it is when its clock ticks,
// 1 to 4 ms apart, so a lane offers its core between the parts of its work. From who offers, Linux
// takes what is left of its slice (6.18): lanes ask for short ones, and so keep their share of the
// cores beside other programs that compute.
//
// Nor does it always put a thread that wakes, or one of two on a core, on another core that idles:
// that too waits for a tick. So lanes that find themselves on one core move apart, and where a lane
// goes from one thread to another the core goes with it.
#pragma once

#include <sched.h>
#include <sys/types.h>

#include <chrono>

namespace teletensor::runtime {

inline constexpr std::chrono::microseconds kLaneSlice{100};
inline constexpr std::chrono::microseconds kOfferEvery{200};

// The calling thread is a lane from now on, by name and by slice (kernels before 6.12 have one
// slice for all, and take nothing). Where that is refused, it offers nothing.
void begin_lane_thread();

// Whoever waits for this core goes first, where it is a lane's and has not been offered for
// kOfferEvery; then as spread(). Nothing on other threads.
void offer_core();

// Where another lane computes on this core: the calling lane moves to a core without one, if there
// is one and the system allows it. Nothing on other threads. The core to which it has moved, -1
// where it stays; the system may move it on at any time.
int spread();

// While one lives the calling thread sleeps: it is not counted on its core.
class Asleep {
 public:
  Asleep();
  ~Asleep();
  Asleep(const Asleep&) = delete;
  Asleep& operator=(const Asleep&) = delete;

 private:
  const bool counted_;
};

// Who gets the core of another thread. Made by the thread itself, before it sleeps.
class Heir {
 public:
  Heir();
  // It wakes up on the calling thread's core, which that thread is about to leave.
  void inherit();
  // By the heir, once awake: it may go anywhere again.
  void roam();

 private:
  const pid_t thread_;
  bool bound_ = false;
  cpu_set_t allowed_;
};

}  // namespace teletensor::runtime
