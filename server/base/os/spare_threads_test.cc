#include "server/base/os/spare_threads.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "engine/core/threads_test.h"

namespace teletensor::server {
namespace {

TEST(SpareThreads, ThoseThatAreCheckedForAreOverAfterwards) {
  EXPECT_TRUE(check_threads(0).ok());
  EXPECT_TRUE(check_threads(40).ok());
}

TEST(SpareThreadsDeathTest, TooFewAreSaid) {
  if (!core::kRoomCanBeTaken) GTEST_SKIP() << "a sanitizer needs address space of its own";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        core::take_all_room();
        const core::Status status = check_threads(8);
        std::fprintf(stderr, "%s", status.message().c_str());
        std::_Exit(status.code() == core::Code::kUnavailable ? 3 : 4);
      },
      ::testing::ExitedWithCode(3), "8 more threads are needed; after 0 the system refuses");
}

}  // namespace
}  // namespace teletensor::server
