#include "engine/core/threads.h"

#include <gtest/gtest.h>

#include <atomic>

#include "engine/core/threads_test.h"

namespace teletensor::core {
namespace {

TEST(Threads, AStartedOneRuns) {
  std::atomic<int> ran{0};
  start_thread([&] { ++ran; }).join();
  EXPECT_EQ(ran, 1);
}

TEST(ThreadsDeathTest, ARefusedOneIsALineAndStatus1) {
  if (!kRoomCanBeTaken) GTEST_SKIP() << "a sanitizer needs address space of its own";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        take_all_room();
        start_thread([] {}).join();
      },
      ::testing::ExitedWithCode(1), "^teletensord: the system refuses another thread: ");
}

}  // namespace
}  // namespace teletensor::core
