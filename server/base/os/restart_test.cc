// Tests how the daemon counts its restarts in a row, which the environment passes to the next
// execution.
#include "server/base/os/restart.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <string>

namespace teletensor::server {
namespace {

constexpr const char* kVariable = "TELETENSORD_RESTARTED";

class Restarted : public ::testing::Test {
 protected:
  ~Restarted() override { unsetenv(kVariable); }
  static void set(int count, long seconds_ago) {
    const std::string value =
        std::to_string(count) + ":" + std::to_string(std::time(nullptr) - seconds_ago);
    setenv(kVariable, value.c_str(), 1);
  }
};

TEST_F(Restarted, ADaemonThatWasStartedByAnOperatorMayRestart) {
  unsetenv(kVariable);
  EXPECT_TRUE(may_restart());
}

TEST_F(Restarted, ThereIsAMaximumOfRestartsInARow) {
  set(kMaxRestarts - 1, 10);
  EXPECT_TRUE(may_restart());
  set(kMaxRestarts, 10);
  EXPECT_FALSE(may_restart());
}

TEST_F(Restarted, TenMinutesWithoutARestartBeginANewCount) {
  set(kMaxRestarts, 500);
  EXPECT_FALSE(may_restart());
  set(kMaxRestarts, 700);
  EXPECT_TRUE(may_restart());
}

TEST_F(Restarted, TextThatIsNoCountIsNotCounted) {
  for (const char* text : {"", "x", ":", "3", "3:", "-3:9999999999"}) {
    setenv(kVariable, text, 1);
    EXPECT_TRUE(may_restart()) << text;
  }
}

}  // namespace
}  // namespace teletensor::server
