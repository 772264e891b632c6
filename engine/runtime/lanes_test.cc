#include "engine/runtime/lanes.h"

#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <thread>

namespace teletensor::runtime {
namespace {

// Runs `plans` plans, each with `body`.
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

// One lane, a kernel of many parts that runs for long: another session's plan runs in between.
TEST(Lanes, ALongKernelLetsOthersInBetweenParts) {
  Lanes lanes(1);
  std::atomic<bool> other_ran{false};
  std::atomic<bool> seen_during{false};
  Counted other(lanes, 1, [&] { other_ran = true; });
  Counted kernel(lanes, 1, [&] {
    lanes.run_parts(200, [&](std::int64_t i) {
      if (i == 0) other.start();
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      if (other_ran) seen_during = true;
    });
  });
  kernel.start();
  kernel.wait();
  other.wait();
  EXPECT_TRUE(seen_during);
}

}  // namespace
}  // namespace teletensor::runtime
