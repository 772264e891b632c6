#include "engine/runtime/lanes/fair_queue.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace teletensor::runtime {
namespace {

// A task whose plans cost `ns` each.
class Costly : public Task {
 public:
  explicit Costly(std::uint64_t ns, std::shared_ptr<Share> share = nullptr) : ns(ns) {
    if (share) set_share(std::move(share));
  }
  bool run_plan() override {
    charge(ns);
    return true;
  }
  std::uint64_t ns;
};

constexpr std::uint64_t kNow = 1'000'000'000;

// Runs `turns` plans of tasks that always have work.
void run(FairQueue& queue, int turns) {
  for (int i = 0; i < turns; ++i) {
    Task* task = queue.pop(kNow);
    task->run_plan();
    queue.ended(task);
    queue.push(task, kNow);
  }
}

double part(const Task& task, std::initializer_list<const Task*> all) {
  double sum = 0;
  for (const Task* each : all) sum += static_cast<double>(each->used_ns());
  return static_cast<double>(task.used_ns()) / sum;
}

TEST(FairQueue, TimeIsShared_NotTurns) {
  FairQueue queue;
  Costly small(10'000), large(1'000'000);
  queue.push(&small, kNow);
  queue.push(&large, kNow);
  run(queue, 20'000);
  EXPECT_NEAR(part(small, {&small, &large}), 0.5, 0.02);
}

TEST(FairQueue, AUserWithManySessionsHasNoMore) {
  FairQueue queue;
  const auto many = std::make_shared<Share>(), one = std::make_shared<Share>();
  std::vector<std::unique_ptr<Costly>> flood;
  for (int i = 0; i < 15; ++i) {
    flood.push_back(std::make_unique<Costly>(500'000, many));
    queue.push(flood.back().get(), kNow);
  }
  Costly alone(300'000, one);
  queue.push(&alone, kNow);
  run(queue, 20'000);
  const double all = static_cast<double>(many->used_ns() + one->used_ns());
  EXPECT_NEAR(static_cast<double>(one->used_ns()) / all, 0.5, 0.02);
  for (const auto& each : flood) {
    EXPECT_NEAR(static_cast<double>(each->used_ns()) / static_cast<double>(many->used_ns()),
                1.0 / 15, 0.01);
  }
}

TEST(FairQueue, WeightsCount) {
  FairQueue queue;
  Costly heavy(200'000, std::make_shared<Share>(3)), light(200'000, std::make_shared<Share>(1));
  queue.push(&heavy, kNow);
  queue.push(&light, kNow);
  run(queue, 10'000);
  EXPECT_NEAR(part(heavy, {&heavy, &light}), 0.75, 0.02);
}

TEST(FairQueue, WhoComesBackGoesFirst_ButHasSavedNothing) {
  FairQueue queue;
  Costly busy(1'000'000, std::make_shared<Share>()), rare(1'000'000, std::make_shared<Share>());
  queue.push(&busy, kNow);
  run(queue, 1000);  // a second without work for `rare`
  queue.push(&rare, kNow);
  EXPECT_EQ(queue.ahead_of(busy, kNow), 1u);
  EXPECT_EQ(queue.ahead_of(rare, kNow), 0u);
  Task* first = queue.pop(kNow);
  EXPECT_EQ(first, &rare);
  first->run_plan();
  queue.ended(first);
  queue.push(first, kNow);
  const std::uint64_t before = busy.used_ns();
  run(queue, 100);
  const auto given = static_cast<double>(busy.used_ns() - before) / 100e6;
  EXPECT_GT(given, 0.45);  // otherwise it would be compensated for that second
  EXPECT_LT(given, 0.55);
}

TEST(FairQueue, APlanIsInterruptedForWhoHasHadLess) {
  FairQueue queue;
  Costly running(0, std::make_shared<Share>()), flood(5'000'000, std::make_shared<Share>());
  queue.push(&flood, kNow);
  run(queue, 100);  // 500 ms
  queue.push(&running, kNow);
  Task* task = queue.pop(kNow);
  ASSERT_EQ(task, &running);
  EXPECT_FALSE(queue.has_before(running, kNow + 1'000'000));     // it may continue for a while
  EXPECT_TRUE(queue.has_before(running, kNow + 1'000'000'000));  // but not forever
}

// Simulates the decisions of a lane at each boundary inside a kernel: a task that returns gets the
// lane at once and keeps it for its credit and a turn; then the two tasks alternate.
TEST(FairQueue, InTheMiddleOfKernelsWhoComesBackHasTheLaneAtOnce) {
  constexpr std::uint64_t kPart = 200'000;
  FairQueue queue;
  Costly flood(1000 * kPart), back(0);
  std::uint64_t now = kNow;
  queue.push(&flood, kNow);
  run(queue, 1);
  Task* on_lane = queue.pop(now);
  std::map<Task*, std::uint64_t> had;
  std::vector<std::pair<Task*, std::uint64_t>> turns{{on_lane, 0}};
  queue.push(&back, kNow);
  for (int part = 0; part < 1000; ++part) {
    if (queue.has_before(*on_lane, now, FairQueue::kTurn)) {
      Task* const next = queue.pop(now);
      queue.push_paused(on_lane, now);
      on_lane = next;
      turns.push_back({on_lane, 0});
    }
    now += kPart;
    had[on_lane] += kPart;
    turns.back().second += kPart;
  }
  ASSERT_GT(turns.size(), 3u);
  EXPECT_EQ(turns[0].second, 0u);
  EXPECT_EQ(turns[1].first, &back);
  EXPECT_NEAR(static_cast<double>(turns[1].second), FairQueue::kCredit + FairQueue::kTurn,
              2 * kPart);
  for (std::size_t i = 2; i + 1 < turns.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(turns[i].second), 2 * FairQueue::kTurn, 2 * kPart);
  }
  EXPECT_NEAR(static_cast<double>(had[&back]), 500 * kPart, FairQueue::kCredit + FairQueue::kTurn);
}

// The time of a plan that waits in the middle counts although it is not charged yet, including the
// time before a pause.
TEST(FairQueue, WhatAPlanHasHadCountsWhileItWaits) {
  FairQueue queue;
  Costly longer(0), shorter(0);
  queue.push(&longer, kNow);
  queue.push(&shorter, kNow);
  ASSERT_EQ(queue.pop(kNow), &longer);
  ASSERT_EQ(queue.pop(kNow), &shorter);
  EXPECT_FALSE(FairQueue::before(shorter, longer, kNow + 1000));
  queue.pause(shorter, kNow + 1000);
  EXPECT_TRUE(FairQueue::before(shorter, longer, kNow + 2000));
  queue.resume(shorter, kNow + 2000);
  EXPECT_TRUE(FairQueue::before(shorter, longer, kNow + 3000));
  queue.push_paused(&longer, kNow + 3000);   // it has used 3,000 ns
  queue.push_paused(&shorter, kNow + 3500);  // it has used 2,500 ns
  EXPECT_EQ(queue.pop(kNow + 9000), &shorter);
  EXPECT_FALSE(queue.has_before(shorter, kNow + 9400));
  EXPECT_TRUE(queue.has_before(shorter, kNow + 9600));
}

// A session computes alone for a minute in one plan. Another session that arrives during the plan,
// or between its end and the next plan, goes first, and then both share the lane equally: the
// second session gets no credit for the minute.
TEST(FairQueue, TimeThatAPlanRanAloneIsNotOwedToATaskThatComesLater) {
  constexpr std::uint64_t kMinute = 60'000'000'000, kPart = 1'000'000;
  for (const bool one_user : {false, true}) {
    for (const bool during : {false, true}) {
      const auto share = std::make_shared<Share>();
      FairQueue queue;
      Costly alone(0, share), later(0, one_user ? share : std::make_shared<Share>());
      queue.push(&alone, kNow);
      ASSERT_EQ(queue.pop(kNow), &alone);
      std::uint64_t now = kNow + kMinute;
      queue.charge_help(alone, kMinute);  // another lane helped during the whole plan
      if (during) queue.push(&later, now);
      queue.charge(alone, kMinute, now);
      queue.ended(&alone);
      if (!during) queue.push(&later, now);
      queue.push(&alone, now);
      EXPECT_EQ(alone.used_ns(), 2 * kMinute);
      for (int i = 0; i < 100; ++i) {
        Task* const task = queue.pop(now);
        if (i == 0) {
          EXPECT_EQ(task, &later);
        }
        queue.charge(*task, kPart, now += kPart);
        queue.ended(task);
        queue.push(task, now);
      }
      EXPECT_NEAR(static_cast<double>(later.used_ns()), 50 * kPart + FairQueue::kCredit / 2,
                  2 * kPart);
    }
  }
}

TEST(FairQueue, TheTimeThatIsToldGoesOnInAPlanAndNeverBack) {
  FairQueue queue;
  Costly task(0);
  queue.push(&task, kNow);
  ASSERT_EQ(queue.pop(kNow), &task);
  EXPECT_EQ(queue.used_ns(task, kNow + 5000), 5000u);
  queue.charge(task, 2000, kNow + 6000);  // most of the time was a wait for a GPU
  EXPECT_EQ(queue.used_ns(task, kNow + 6000), 5000u);
  EXPECT_EQ(queue.used_ns(task, kNow + 10'000), 6000u);
}

TEST(FairQueue, AnIdleTaskUsesNoTime) {
  FairQueue queue;
  Costly task(0);
  queue.push(&task, kNow);
  ASSERT_EQ(queue.pop(kNow), &task);
  queue.charge(task, 2000, kNow + 2000);
  queue.ended(&task);
  EXPECT_EQ(queue.used_ns(task, kNow + 1'000'000), 2000u);
  queue.push(&task, kNow + 2'000'000);
  ASSERT_EQ(queue.pop(kNow + 2'000'000), &task);
  EXPECT_EQ(queue.used_ns(task, kNow + 2'000'300), 2300u);
}

TEST(FairQueue, EqualsTakeTurnsInTheOrderTheyCame) {
  FairQueue queue;
  Costly a(1000), b(1000), c(1000);
  for (Task* task : {&a, &b, &c}) queue.push(task, kNow);
  std::vector<Task*> order;
  for (int i = 0; i < 6; ++i) {
    order.push_back(queue.pop(kNow));
    order.back()->run_plan();
    queue.ended(order.back());
    queue.push(order.back(), kNow);
  }
  EXPECT_EQ(order, (std::vector<Task*>{&a, &b, &c, &a, &b, &c}));
}

}  // namespace
}  // namespace teletensor::runtime
