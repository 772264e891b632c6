#include "engine/runtime/lanes/lane_thread.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <future>
#include <thread>

namespace teletensor::runtime {
namespace {

cpu_set_t allowed(pid_t thread = 0) {
  cpu_set_t set;
  EXPECT_EQ(sched_getaffinity(thread, sizeof(set), &set), 0);
  return set;
}

void allow(const cpu_set_t& set) { EXPECT_EQ(sched_setaffinity(0, sizeof(set), &set), 0); }

cpu_set_t only(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  return set;
}

TEST(LaneThread, TwoOnOneCoreMoveApart) {
  const cpu_set_t all = allowed();
  if (CPU_COUNT(&all) < 2) GTEST_SKIP() << "one core";
  const int core = sched_getcpu();
  std::promise<void> begun, end;
  std::thread first([&] {
    allow(only(core));
    begin_lane_thread();
    begun.set_value();
    end.get_future().wait();  // not Asleep, so it counts as computing
  });
  std::thread second([&] {
    begun.get_future().wait();
    allow(only(core));
    begin_lane_thread();
    EXPECT_EQ(spread(), -1) << "it may go nowhere else";
    int moved = -1;
    while (moved < 0) {  // on a busy machine the system may have moved it already
      allow(only(core));
      allow(all);
      moved = spread();
    }
    EXPECT_NE(moved, core);
    const cpu_set_t after = allowed();
    EXPECT_TRUE(CPU_EQUAL(&after, &all));
  });
  second.join();
  end.set_value();
  first.join();
}

TEST(LaneThread, WhoSleepsHasNoCore) {
  const cpu_set_t all = allowed();
  const int core = sched_getcpu();
  std::promise<void> asleep, end;
  std::thread first([&] {
    allow(only(core));
    begin_lane_thread();
    const Asleep here;
    asleep.set_value();
    end.get_future().wait();
  });
  std::thread second([&] {
    asleep.get_future().wait();
    allow(only(core));
    begin_lane_thread();
    allow(all);
    EXPECT_EQ(spread(), -1);
  });
  second.join();
  end.set_value();
  first.join();
}

TEST(LaneThread, AnHeirWakesUpOnTheCoreOfWhoWakesIt) {
  const cpu_set_t all = allowed();
  std::promise<pid_t> thread;
  std::promise<void> wake;
  CoreSuccessor* heir = nullptr;
  std::thread sleeper([&] {
    CoreSuccessor own;
    heir = &own;
    thread.set_value(gettid());
    wake.get_future().wait();
    const cpu_set_t woken = allowed();
    EXPECT_EQ(CPU_COUNT(&woken), 1);
    own.roam();
    const cpu_set_t after = allowed();
    EXPECT_TRUE(CPU_EQUAL(&after, &all));
  });
  const pid_t id = thread.get_future().get();
  const int core = sched_getcpu();
  allow(only(core));
  heir->inherit();
  allow(all);
  const cpu_set_t there = allowed(id), here = only(core);
  EXPECT_TRUE(CPU_EQUAL(&there, &here));
  wake.set_value();
  sleeper.join();
}

}  // namespace
}  // namespace teletensor::runtime
