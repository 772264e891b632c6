#include "server/base/task_thread.h"

#include <gtest/gtest.h>

#include <vector>

namespace teletensor::server {
namespace {

using std::chrono::milliseconds;

TEST(TaskThread, RunsTasksInTheOrderOfTheirTimes) {
  TaskThread thread;
  std::vector<int> order;
  thread.run([&] {
    // Nothing else runs before this task has ended.
    thread.post([&] { order.push_back(3); }, milliseconds(20));
    thread.post([&] { order.push_back(1); });
    thread.post([&] { order.push_back(2); });
  });
  std::vector<int> seen;
  while (seen.size() < 3) thread.run([&] { seen = order; });
  EXPECT_EQ(seen, (std::vector{1, 2, 3}));
}

TEST(TaskThread, TasksMayPostTasks) {
  TaskThread thread;
  int rounds = 0;
  std::function<void()> again = [&] {
    if (++rounds < 100) thread.post(again);
  };
  thread.post(again);
  int seen = 0;
  while (seen < 100) thread.run([&] { seen = rounds; });
  EXPECT_EQ(seen, 100);
}

TEST(TaskThread, TasksThatHaveNotBegunAreDropped) {
  bool ran = false;
  {
    TaskThread thread;
    thread.post([&] { ran = true; }, std::chrono::hours(1));
    thread.run([] {});
  }
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace teletensor::server
