#include "engine/collective/exchange/tree.h"

#include <gtest/gtest.h>

namespace teletensor::collective {
namespace {

TEST(Tree, SplitsAtTheLargestPowerOfTwoBelowTheSize) {
  EXPECT_EQ(split(0, 2), 1u);
  EXPECT_EQ(split(0, 3), 2u);
  EXPECT_EQ(split(0, 8), 4u);
  EXPECT_EQ(split(8, 13), 12u);
}

TEST(Tree, AForestHasTheLargestNodesThatAreHeld) {
  const std::vector<Rank> all = {0, 1, 2, 3, 4};
  EXPECT_EQ(forest_of(5, all, all), (Forest{{0, 5, 5}}));
  const std::vector<Rank> held = {1, 2, 3, 4};
  EXPECT_EQ(forest_of(5, all, held), (Forest{{1, 2, 1}, {2, 4, 2}, {4, 5, 1}}));
}

TEST(Tree, SkippedRanksAreNoNodes) {
  const std::vector<Rank> all = {0, 3, 5}, held = {0, 3};
  EXPECT_EQ(forest_of(6, all, held), (Forest{{0, 4, 2}}));
  const std::vector<Node> given = {{3, 4, 1}, {0, 1, 1}, {5, 6, 1}};
  const Sum sum = sum_of(given, Forest{{0, 6, 3}});
  ASSERT_EQ(sum.additions.size(), 2u);  // (0 + 3) + 5
  EXPECT_EQ(sum.additions[0].into, 1u);
  EXPECT_EQ(sum.additions[0].from, 0u);
  EXPECT_EQ(sum.additions[1].into, 1u);
  EXPECT_EQ(sum.additions[1].from, 2u);
  EXPECT_EQ(sum.slots, std::vector<std::uint32_t>{1});
}

}  // namespace
}  // namespace teletensor::collective
