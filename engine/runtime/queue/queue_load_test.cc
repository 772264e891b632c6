// Tests the counts of a queue whose entries run in another order than that of their commands.
#include "engine/runtime/queue/queue_load.h"

#include <gtest/gtest.h>

namespace teletensor::runtime {
namespace {

TEST(QueueLoad, EntriesThatHaveRunDoNotWaitThoughTheyAreInTheQueue) {
  QueueLoad load;
  for (int i = 0; i < 10; ++i) load.add(1);
  load.run(1);
  load.remove_run(1);
  EXPECT_EQ(load.entries(), 9u);
  EXPECT_EQ(load.waiting(), 9u);
  load.run(6);  // a unit of a window, behind an entry that has not run
  EXPECT_EQ(load.entries(), 9u);
  EXPECT_EQ(load.waiting(), 3u);
  load.run(3);
  EXPECT_EQ(load.waiting(), 0u);
  EXPECT_EQ(load.wait_seconds(), 0);
  load.remove_run(9);
  EXPECT_EQ(load.entries(), 0u);
  EXPECT_EQ(load.waiting(), 0u);
}

TEST(QueueLoad, TheRestIsEstimatedFromAllEntriesThatHaveRun) {
  QueueLoad load;
  const std::uint64_t began = core::now_ns();
  for (int i = 0; i < 1000; ++i) load.add(1);
  load.run(999);  // all but the front entry
  const double estimate = load.wait_seconds();
  const double passed = static_cast<double>(core::now_ns() - began) * 1e-9;
  EXPECT_LE(estimate, passed / 999);
}

}  // namespace
}  // namespace teletensor::runtime
