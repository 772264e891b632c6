// Tests that the memory that sessions owe is bounded for the daemon and shared fairly by users.
#include "engine/memory/overdraft.h"

#include <gtest/gtest.h>

namespace teletensor::memory {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

TEST(Overdraft, AUserGetsHalfOfWhatOthersLeave) {
  Overdraft overdraft;
  EXPECT_TRUE(overdraft.change("a", 0, Overdraft::kTotal / 2));
  EXPECT_FALSE(overdraft.change("a", 0, kMiB));  // another session of the same user
  EXPECT_FALSE(overdraft.change("b", 0, Overdraft::kTotal / 4 + kMiB));
  EXPECT_TRUE(overdraft.change("b", 0, Overdraft::kTotal / 4));
  EXPECT_FALSE(overdraft.change("c", 0, Overdraft::kTotal / 8 + kMiB));
  EXPECT_TRUE(overdraft.change("c", 0, Overdraft::kTotal / 8));
}

TEST(Overdraft, ADecreaseAlwaysSucceeds) {
  Overdraft overdraft;
  EXPECT_TRUE(overdraft.change("a", 0, Overdraft::kTotal / 2));
  EXPECT_TRUE(overdraft.change("b", 0, Overdraft::kTotal / 4));
  // `a` has more than half of what `b` leaves now.
  EXPECT_TRUE(overdraft.change("a", Overdraft::kTotal / 2, Overdraft::kTotal / 2 - 1));
  EXPECT_FALSE(overdraft.change("a", Overdraft::kTotal / 2 - 1, Overdraft::kTotal / 2));
  EXPECT_TRUE(overdraft.change("a", Overdraft::kTotal / 2 - 1, 0));
  EXPECT_TRUE(overdraft.change("b", Overdraft::kTotal / 4, 0));
  // Nothing is owed any more, so that another user gets half of all.
  EXPECT_TRUE(overdraft.change("c", 0, Overdraft::kTotal / 2));
}

TEST(Overdraft, NeverExceedsItsTotal) {
  Overdraft overdraft;
  std::uint64_t all = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::string user = std::to_string(i);
    std::uint64_t owed = 0;
    while (overdraft.change(user, owed, owed + kMiB)) owed += kMiB;
    all += owed;
  }
  EXPECT_LE(all, Overdraft::kTotal);
  EXPECT_GT(all, Overdraft::kTotal / 2);
}

}  // namespace
}  // namespace teletensor::memory
