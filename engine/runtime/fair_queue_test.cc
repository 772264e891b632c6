#include "engine/runtime/fair_queue.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace teletensor::runtime {
namespace {

// Costs `ns` a turn.
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

// `turns` turns of tasks that always have work.
void run(FairQueue& queue, int turns) {
  for (int i = 0; i < turns; ++i) {
    Task* task = queue.pop();
    task->run_plan();
    queue.push(task);
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
  queue.push(&small);
  queue.push(&large);
  run(queue, 20'000);
  EXPECT_NEAR(part(small, {&small, &large}), 0.5, 0.02);
}

TEST(FairQueue, AUserWithManySessionsHasNoMore) {
  FairQueue queue;
  const auto many = std::make_shared<Share>(), one = std::make_shared<Share>();
  std::vector<std::unique_ptr<Costly>> flood;
  for (int i = 0; i < 15; ++i) {
    flood.push_back(std::make_unique<Costly>(500'000, many));
    queue.push(flood.back().get());
  }
  Costly alone(300'000, one);
  queue.push(&alone);
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
  queue.push(&heavy);
  queue.push(&light);
  run(queue, 10'000);
  EXPECT_NEAR(part(heavy, {&heavy, &light}), 0.75, 0.02);
}

TEST(FairQueue, WhoComesBackGoesFirst_ButHasSavedNothing) {
  FairQueue queue;
  Costly busy(1'000'000, std::make_shared<Share>()), rare(1'000'000, std::make_shared<Share>());
  queue.push(&busy);
  run(queue, 1000);  // a second, in which `rare` has nothing
  queue.push(&rare);
  EXPECT_EQ(queue.ahead_of(busy), 1u);
  EXPECT_EQ(queue.ahead_of(rare), 0u);
  Task* first = queue.pop();
  EXPECT_EQ(first, &rare);
  first->run_plan();
  queue.push(first);
  const std::uint64_t before = busy.used_ns();
  run(queue, 100);
  const auto given = static_cast<double>(busy.used_ns() - before) / 100e6;
  EXPECT_GT(given, 0.45);  // else the second would be made up for
  EXPECT_LT(given, 0.55);
}

TEST(FairQueue, APlanIsInterruptedForWhoHasHadLess) {
  FairQueue queue;
  Costly running(0, std::make_shared<Share>()), flood(5'000'000, std::make_shared<Share>());
  queue.push(&flood);
  run(queue, 100);  // 500 ms
  queue.push(&running);
  Task* task = queue.pop();
  ASSERT_EQ(task, &running);
  EXPECT_FALSE(queue.has_before(running, 1'000'000));     // it may go on for a while
  EXPECT_TRUE(queue.has_before(running, 1'000'000'000));  // not for ever
}

TEST(FairQueue, EqualsTakeTurnsInTheOrderTheyCame) {
  FairQueue queue;
  Costly a(1000), b(1000), c(1000);
  for (Task* task : {&a, &b, &c}) queue.push(task);
  std::vector<Task*> order;
  for (int i = 0; i < 6; ++i) {
    order.push_back(queue.pop());
    order.back()->run_plan();
    queue.push(order.back());
  }
  EXPECT_EQ(order, (std::vector<Task*>{&a, &b, &c, &a, &b, &c}));
}

}  // namespace
}  // namespace teletensor::runtime
