#include "engine/core/threads.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>

namespace teletensor::core {
namespace {

TEST(Threads, ThoseThatAreCheckedForAreOverAfterwards) {
  EXPECT_TRUE(check_threads(0).ok());
  EXPECT_TRUE(check_threads(40).ok());
}

TEST(Threads, AStartedOneRuns) {
  std::atomic<int> ran{0};
  start_thread([&] { ++ran; }).join();
  EXPECT_EQ(ran, 1);
}

// In a child process without address space for another stack.
void leave_no_room() {
  const rlimit none{1, 1};
  setrlimit(RLIMIT_AS, &none);
}

TEST(ThreadsDeathTest, ARefusedOneIsALineAndStatus1) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        leave_no_room();
        start_thread([] {}).join();
      },
      ::testing::ExitedWithCode(1), "^teletensord: the system refuses another thread: ");
}

TEST(ThreadsDeathTest, TooFewAreSaid) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        leave_no_room();
        const Status status = check_threads(8);
        std::fprintf(stderr, "%s", status.message().c_str());
        std::_Exit(status.code() == Code::kUnavailable ? 3 : 4);
      },
      ::testing::ExitedWithCode(3), "8 more threads are needed; after 0 the system refuses");
}

}  // namespace
}  // namespace teletensor::core
