#include "engine/core/threads.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>

namespace teletensor::core {
namespace {

TEST(Threads, AStartedOneRuns) {
  std::atomic<int> ran{0};
  start_thread([&] { ++ran; }).join();
  EXPECT_EQ(ran, 1);
}

TEST(ThreadsDeathTest, ARefusedOneIsALineAndStatus1) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs address space of its own";
#endif
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const rlimit none{};  // no address space for another stack
        setrlimit(RLIMIT_AS, &none);
        start_thread([] {}).join();
      },
      ::testing::ExitedWithCode(1), "^teletensord: the system refuses another thread: ");
}

}  // namespace
}  // namespace teletensor::core
