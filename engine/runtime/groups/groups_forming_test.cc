// Tests of how groups over several daemons form, and of ranks that cannot form one.
#include "engine/runtime/groups/groups_fabric_kit_test.h"

namespace teletensor::runtime::testing {
namespace {

TEST_F(GroupsFabric, WhatEndsWhileRanksJoinEndsItForAll) {
  auto first = join("a", 0, 3);
  auto second = join("b", 1, 3);
  EXPECT_FALSE(first->begin());
  EXPECT_FALSE(second->begin());
  network_.settle();
  second->give_up("was interrupted");
  network_.settle();
  EXPECT_EQ(first->take().message(), "group \"g\": rank 1 was interrupted");
  EXPECT_EQ(second->take().message(), "group \"g\": rank 1 was interrupted");
  join_all("abc");  // joins a new group
}

TEST_F(GroupsFabric, ARankInTwoDaemonsIsAnError) {
  const auto first = join("a", 0, 2);
  const auto second = join("b", 0, 2);
  EXPECT_FALSE(first->begin());
  EXPECT_FALSE(second->begin());
  network_.settle();
  EXPECT_THAT(first->take().message(), HasSubstr("rank 0 of 2 (session of rank 0) is in a, and "
                                                 "rank 0 of 2 (session of rank 0) in b"));
  EXPECT_FALSE(second->take().ok());
}

TEST_F(GroupsFabric, AnotherNumberOfRanksIsAnError) {
  const auto first = join("a", 0, 2);
  const auto second = join("b", 1, 3);
  EXPECT_FALSE(first->begin());
  EXPECT_FALSE(second->begin());
  network_.settle();
  EXPECT_THAT(first->take().message(), HasSubstr("rank 1 of 3"));
  EXPECT_THAT(second->take().message(), HasSubstr("rank 0 of 2"));
}

// The daemon of the later session has heard of the earlier one before the session joins.
TEST_F(GroupsFabric, ALaterRankWithAnotherNumberOfRanksIsToldAtOnce) {
  const auto first = join("a", 0, 2);
  EXPECT_FALSE(first->begin());
  network_.settle();
  const auto second = join("b", 1, 3);
  EXPECT_TRUE(second->begin());  // the group has ended
  deposit(second, {1});
  EXPECT_EQ(
      second->take().message(),
      "group \"g\": rank 1 of 3 (session of rank 1) is in b, and rank 0 of 2 (session of rank "
      "0) in a: the numbers of ranks differ");
  network_.settle();
  EXPECT_THAT(first->take().message(), HasSubstr("rank 1 of 3"));
  join_all("abc");
}

// In one daemon, and in two of which only one has ranks of the running group.
TEST_F(GroupsFabric, AGroupThatRunsRefusesAnotherNumberOfRanks) {
  const auto members = join_all("ac");
  const auto refused = network_["a"].groups.join({"alice", "g", 1, 3, kLong, "another"});
  EXPECT_EQ(refused.status().message(),
            "group \"g\": rank 0 of 2 (session of rank 0) has joined, and later rank 1 of 3 "
            "(another): the numbers of ranks differ");
  const auto far = join("b", 1, 3);
  EXPECT_FALSE(far->begin());
  network_.settle();
  EXPECT_THAT(far->take().message(),
              HasSubstr("rank 1 of 3 (session of rank 1) is in b, and rank"));
  EXPECT_THAT(far->take().message(), HasSubstr("of 2 (session of rank"));
  deposit(members[0], {1});
  const RowMajor result = deposit(members[1], {2});
  network_.settle();
  EXPECT_EQ(floats(result), std::vector<float>{3});
}

TEST_F(GroupsFabric, TwoGroupsOfOneNameThatRunDoNotAnswerEachOther) {
  const auto members = join_all("ac");
  const auto other = join("b", 0, 1);  // forms before an answer can arrive
  (void)other->begin();
  network_.settle();
  EXPECT_TRUE(other->begin());
}

TEST_F(GroupsFabric, ATimeoutNamesTheRanksThatHaveNotJoined) {
  const auto first = join("a", 0, 4, milliseconds(1));
  const auto second = join("b", 2, 4);
  EXPECT_FALSE(first->begin());
  EXPECT_FALSE(second->begin());
  network_.settle();
  Counted waiter;
  if (first->wait(&waiter)) waiter.wait_for(1);
  EXPECT_EQ(first->take().message(), "group \"g\": timeout in joining, waits for rank 1, rank 3");
  while (!second->ended()) network_.settle();
  EXPECT_EQ(second->take().message(), first->take().message());
}

TEST_F(GroupsFabric, ATimeoutNamesTheDaemonsWithoutAConnection) {
  network_.disconnected = "c (its certificate has expired)";
  const auto first = join("a", 0, 2, milliseconds(1));
  EXPECT_FALSE(first->begin());
  Counted waiter;
  if (first->wait(&waiter)) waiter.wait_for(1);
  EXPECT_EQ(
      first->take().message(),
      "group \"g\": timeout in joining, waits for rank 1; daemons without a connection: c (its "
      "certificate has expired)");
}

}  // namespace
}  // namespace teletensor::runtime::testing
