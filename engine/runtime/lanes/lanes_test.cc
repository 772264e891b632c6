#include "engine/runtime/lanes/lanes.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include "engine/runtime/lanes/lane_thread.h"

namespace teletensor::runtime {
namespace {

// A task with `plans` plans that each run `body`.
class Counted : public Task {
 public:
  Counted(Lanes& lanes, int plans, std::function<void()> body)
      : lanes_(lanes), left_(plans), body_(std::move(body)) {}
  bool run_plan() override {
    body_();
    const bool more = --left_ > 0;
    if (!more) ended = true;
    return more;
  }
  void start() { lanes_.ready(this); }
  void wait() const {
    while (!ended) std::this_thread::yield();
  }
  std::atomic<bool> ended{false};

 private:
  Lanes& lanes_;
  std::atomic<int> left_;
  const std::function<void()> body_;
};

TEST(Lanes, EveryPartRunsOnce) {
  Lanes lanes(3);
  for (int parts : {0, 1, 2, 7, 1000}) {
    std::vector<std::atomic<int>> runs(1000);
    lanes.run_parts(parts, [&](std::int64_t i) { ++runs[static_cast<std::size_t>(i)]; });
    for (int i = 0; i < 1000; ++i) EXPECT_EQ(runs[static_cast<std::size_t>(i)], i < parts);
  }
}

// The thread's time slice in ns as the kernel reports it; 0 if the kernel has no individual slices.
std::uint64_t slice_of_this_thread() {
  std::uint64_t attributes[7] = {};
  if (syscall(SYS_sched_getattr, 0, attributes, sizeof attributes, 0) != 0) return 0;
  return attributes[3];
}

TEST(Lanes, ALaneIsAThreadWithAShortSliceAndKeepsItsPriority) {
  if (sched_getscheduler(0) != SCHED_OTHER) GTEST_SKIP() << "under another policy";
  Lanes lanes(1);
  std::string name(16, '\0');
  std::uint64_t slice = 0;
  int nice = -100;
  Counted task(lanes, 1, [&] {
    pthread_getname_np(pthread_self(), name.data(), name.size());
    slice = slice_of_this_thread();
    nice = getpriority(PRIO_PROCESS, 0);
  });
  task.start();
  task.wait();
  EXPECT_STREQ(name.c_str(), "lane");
  EXPECT_EQ(nice, getpriority(PRIO_PROCESS, 0));
  if (slice_of_this_thread() != 0) {
    EXPECT_EQ(slice, std::chrono::nanoseconds(kLaneSlice).count());
  }
}

TEST(Lanes, PartsRunWhenEveryLaneIsBusyAndMayNest) {
  Lanes lanes(2);
  std::atomic<int> sum{0};
  std::vector<std::unique_ptr<Counted>> tasks;
  for (int t = 0; t < 5; ++t) {
    tasks.push_back(std::make_unique<Counted>(lanes, 20, [&] {
      lanes.run_parts(8, [&](std::int64_t) { lanes.run_parts(4, [&](std::int64_t) { ++sum; }); });
    }));
  }
  for (auto& task : tasks) task->start();
  for (auto& task : tasks) task->wait();
  EXPECT_EQ(sum, 5 * 20 * 8 * 4);
}

TEST(Lanes, AnExceptionReachesTheCaller) {
  Lanes lanes(2);
  std::atomic<int> after{0};
  EXPECT_THROW(lanes.run_parts(1000,
                               [&](std::int64_t i) {
                                 if (i == 3) throw std::runtime_error("part 3");
                                 ++after;
                               }),
               std::runtime_error);
  EXPECT_LT(after, 1000);
  lanes.run_parts(10, [&](std::int64_t) { ++after; });
}

TEST(Lanes, TasksTakeTurns) {
  Lanes lanes(1);
  core::Mutex mu;
  std::vector<int> order;
  std::atomic<bool> go{false};
  Counted blocker(lanes, 1, [&] {
    while (!go) std::this_thread::yield();
  });
  auto log = [&](int who) {
    return [&, who] {
      core::MutexLock lock(mu);
      order.push_back(who);
    };
  };
  Counted a(lanes, 4, log(1)), b(lanes, 3, log(2));
  blocker.start();
  a.start();
  b.start();
  go = true;
  a.wait();
  b.wait();
  core::MutexLock lock(mu);
  EXPECT_EQ(order, (std::vector<int>{1, 2, 1, 2, 1, 2, 1}));
}

void spin(std::chrono::microseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end) {
  }
}

// One lane and a long kernel of many parts: plans of another session run in its middle, on another
// thread, while it waits. Then the kernel continues, and given_ns() is exactly the time of the
// other session.
TEST(Lanes, ALongKernelLetsOthersInBetweenParts) {
  constexpr int kParts = 500'000;             // of 200 us each, until the other session has run
  for (const bool between : {true, false}) {  // between parts, or between pieces of one part
    Lanes lanes(1);
    std::atomic<bool> seen_during{false}, elsewhere{false};
    std::thread::id kernel_thread, other_thread;
    Counted other(lanes, 2, [&] { other_thread = std::this_thread::get_id(); });
    Counted kernel(lanes, 1, [&] {
      kernel_thread = std::this_thread::get_id();
      const std::uint64_t given = Lanes::given_ns();
      const auto piece = [&](std::int64_t i) {
        if (i == 0) other.start();
        if (!between) lanes.maybe_yield();
        if (!other.ended) spin(std::chrono::microseconds(200));
        if (!other.ended) return;
        seen_during = true;
        elsewhere = elsewhere || std::this_thread::get_id() != kernel_thread;
      };
      if (between) {
        lanes.run_parts(kParts, piece);
      } else {
        for (int i = 0; i < kParts; ++i) piece(i);
      }
      EXPECT_GT(Lanes::given_ns(), given);
      EXPECT_EQ(std::this_thread::get_id(), kernel_thread);
    });
    kernel.start();
    kernel.wait();
    other.wait();
    EXPECT_TRUE(seen_during);
    EXPECT_FALSE(elsewhere);
    EXPECT_NE(kernel_thread, other_thread);
  }
}

TEST(Lanes, AreBusyWhileEachRunsAPlan) {
  Lanes lanes(2);
  std::atomic<bool> go{false};
  const auto body = [&] {
    while (!go) std::this_thread::yield();
  };
  Counted first(lanes, 1, body), second(lanes, 1, body);
  first.start();
  second.start();
  while (!lanes.all_busy()) std::this_thread::yield();
  go = true;
  first.wait();
  second.wait();
  while (lanes.all_busy()) std::this_thread::yield();
}

// Tasks and kernels that arrive while lanes look for work, after they have helped with a kernel:
// all of them run, and the kernel of a task that waits for another task does not keep a lane from
// it.
TEST(Lanes, WorkThatArrivesWhileLanesLookForIt) {
  Lanes lanes(3);
  std::atomic<int> parts{0};
  constexpr int kRounds = 300;
  for (int round = 0; round < kRounds; ++round) {
    std::atomic<int> ended{0};
    Counted helped(lanes, 1, [&] { lanes.run_parts(3, [&](std::int64_t) { ++parts; }); });
    helped.start();
    helped.wait();
    while (lanes.all_busy()) std::this_thread::yield();
    // Up to two lanes look for work now. Each of these tasks ends only if the other one runs.
    const auto body = [&] {
      lanes.run_parts(2, [&](std::int64_t) { ++parts; });
      ++ended;
      while (ended < 2) std::this_thread::yield();
    };
    Counted first(lanes, 1, body), second(lanes, 1, body);
    first.start();
    if (round % 2 == 0) spin(std::chrono::microseconds(round % 60));
    second.start();
    first.wait();
    second.wait();
  }
  EXPECT_EQ(parts, kRounds * 7);
}

// Many long kernels on two lanes, more than can be parked at a time: all of them end.
TEST(Lanes, MoreLongKernelsThanMayWait) {
  Lanes lanes(2);
  std::atomic<int> parts{0};
  std::vector<std::unique_ptr<Counted>> tasks;
  constexpr int kTasks = Lanes::kMaxParked + 8;
  for (int t = 0; t < kTasks; ++t) {
    tasks.push_back(std::make_unique<Counted>(lanes, 2, [&] {
      lanes.run_parts(40, [&](std::int64_t) {
        spin(std::chrono::microseconds(100));
        ++parts;
      });
    }));
  }
  for (auto& task : tasks) task->start();
  for (auto& task : tasks) task->wait();
  EXPECT_EQ(parts, kTasks * 2 * 40);
}

// Two lanes run long kernels of one session; a kernel of a session that has used less time gets
// both lanes.
TEST(Lanes, AKernelOfSomebodyWithLessIsHelpedFromTheMiddleOfAnother) {
  Lanes lanes(2);
  std::atomic<bool> helped{false}, end{false};
  Counted comes(lanes, 1, [&] {
    const std::thread::id mine = std::this_thread::get_id();
    lanes.run_parts(500'000, [&](std::int64_t) {  // of 100 us each, until another lane has helped
      if (std::this_thread::get_id() != mine) helped = end = true;
      if (!helped) spin(std::chrono::microseconds(100));
    });
  });
  std::atomic<int> flooding{0};
  const auto flood = [&] {
    for (bool first = true; !end; first = false) {
      lanes.run_parts(20, [&](std::int64_t) { spin(std::chrono::microseconds(100)); });
      if (first) ++flooding;
    }
  };
  Counted first(lanes, 1, flood), second(lanes, 1, flood);
  first.start();
  second.start();
  while (flooding < 2) std::this_thread::yield();
  comes.start();
  comes.wait();
  end = true;
  first.wait();
  second.wait();
  EXPECT_TRUE(helped);
}

// On each number of lanes, a long part waits until tasks have run that need all lanes.
TEST(Lanes, ALongCallTakesNoLaneFromOtherTasks) {
  for (const int count : {1, 2, 3}) {
    for (const std::int64_t parts : {1, 2, 7}) {
      Lanes lanes(count);
      std::atomic<int> at_work{0}, others_ended{0};
      std::vector<std::unique_ptr<Counted>> others;
      for (int i = 0; i < count; ++i) {
        others.push_back(std::make_unique<Counted>(lanes, 1, [&] {
          ++at_work;
          while (at_work < count) std::this_thread::yield();  // all of them run at once
          ++others_ended;
        }));
      }
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(parts));
      std::atomic<int> together{0}, most{0};
      std::thread::id kernel_thread;
      Counted kernel(lanes, 2, [&] {
        kernel_thread = std::this_thread::get_id();
        lanes.run_long(parts, [&](std::int64_t i) {
          const int now = ++together;
          for (int old = most; old < now && !most.compare_exchange_weak(old, now);) {
          }
          ++runs[static_cast<std::size_t>(i)];
          while (others_ended < count) std::this_thread::yield();
          --together;
        });
        EXPECT_EQ(std::this_thread::get_id(), kernel_thread);
      });
      kernel.start();
      while (runs[0] == 0) std::this_thread::yield();
      for (auto& other : others) other->start();
      for (auto& other : others) other->wait();
      kernel.wait();
      for (auto& each : runs) EXPECT_EQ(each, 2);  // in each of the two plans
      EXPECT_LE(most, count);
    }
  }
}

// While the part runs, the thread's lane runs a plan without end; afterwards the long plan waits
// for its turn, which comes at the next boundary of the other plan.
TEST(Lanes, AfterALongCallAPlanWaitsForItsTurn) {
  Lanes lanes(1);
  std::atomic<bool> called{false}, ended{false};
  std::atomic<int> plans{0};
  Counted kernel(lanes, 1, [&] {
    const std::uint64_t given = Lanes::given_ns();
    lanes.run_long(1, [&](std::int64_t) {
      called = true;
      while (plans == 0) std::this_thread::yield();
    });
    EXPECT_GT(Lanes::given_ns(), given);
    ended = true;
  });
  Counted other(lanes, 1, [&] {
    ++plans;
    lanes.run_parts(1'000'000, [&](std::int64_t) {  // until the other plan has ended
      if (!ended) spin(std::chrono::microseconds(100));
    });
  });
  kernel.start();
  while (!called) std::this_thread::yield();
  other.start();
  kernel.wait();
  other.wait();
  EXPECT_TRUE(ended);
}

TEST(Lanes, MoreLongCallsThanMayLeaveTheirLane) {
  Lanes lanes(2);
  std::atomic<int> calls{0};
  std::atomic<bool> go{false};
  std::vector<std::unique_ptr<Counted>> tasks;
  constexpr int kTasks = Lanes::kMaxBeside + 10;
  for (int t = 0; t < kTasks; ++t) {
    tasks.push_back(std::make_unique<Counted>(lanes, 2, [&] {
      lanes.run_long(3, [&](std::int64_t) {
        ++calls;
        while (!go) std::this_thread::yield();
      });
    }));
  }
  for (auto& task : tasks) task->start();
  // All threads without a lane, and both lanes.
  while (calls < Lanes::kMaxBeside + 2) std::this_thread::yield();
  EXPECT_EQ(calls, Lanes::kMaxBeside + 2);
  EXPECT_TRUE(lanes.all_busy());
  go = true;
  for (auto& task : tasks) task->wait();
  EXPECT_EQ(calls, kTasks * 2 * 3);
}

TEST(Lanes, AnExceptionOfALongCallReachesThePlan) {
  Lanes lanes(2);
  Counted kernel(lanes, 3, [&] {
    EXPECT_THROW(lanes.run_long(2, [](std::int64_t) { throw std::runtime_error("part"); }),
                 std::runtime_error);
  });
  kernel.start();
  kernel.wait();
  lanes.run_long(2, [](std::int64_t) {});  // not on a lane
}

}  // namespace
}  // namespace teletensor::runtime
