#include <numeric>
#include <thread>

#include "engine/runtime/groups/groups_kit_test.h"

namespace teletensor::runtime::testing {
namespace {

class GroupsTest : public GroupsKit {
 protected:
  MemberRef join(collective::Rank rank, collective::Rank ranks, milliseconds timeout = kLong) {
    auto member = groups_.join(
        {"alice", "g", rank, ranks, timeout, "session of rank " + std::to_string(rank)});
    EXPECT_TRUE(member.ok()) << member.status().message();
    return std::make_shared<TestRank>(*member);
  }
  std::vector<MemberRef> join_all(collective::Rank ranks, milliseconds timeout = kLong) {
    std::vector<MemberRef> members;
    for (collective::Rank rank = 0; rank < ranks; ++rank) {
      members.push_back(join(rank, ranks, timeout));
    }
    return members;
  }

  Groups groups_{adder_};
};

TEST_F(GroupsTest, TheLastRankEndsTheWaitOfTheOthers) {
  const auto members = join_all(3);
  Counted waiter;
  for (int round = 1; round <= 3; ++round) {
    std::vector<RowMajor> results;
    for (const MemberRef& member : members) {
      results.push_back(deposit(member, {1.0f * member->rank(), 2.0f, 3.0f}));
      EXPECT_EQ(member->wait(&waiter), member->rank() < 2);
    }
    EXPECT_EQ(waiter.times, 2 * round);
    for (const MemberRef& member : members) {
      ASSERT_TRUE(member->ended());
      EXPECT_TRUE(member->take().ok());
      EXPECT_EQ(floats(results[member->rank()]), (std::vector<float>{3, 6, 9}));
    }
  }
}

TEST_F(GroupsTest, DifferentCallsAreOneErrorAndTheGroupGoesOn) {
  const auto members = join_all(2);
  deposit(members[0], {1, 2});
  deposit(members[1], {1, 2, 3});
  for (const MemberRef& member : members) {
    const Status status = member->take();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("group \"g\" #1: rank 0 is in all_reduce(sum, "
                                            "float32[2]), rank 1 in all_reduce(sum, float32[3])"));
  }
  deposit(members[1], {5});
  const RowMajor result = deposit(members[0], {4});
  EXPECT_TRUE(members[1]->take().ok());
  EXPECT_EQ(floats(result), std::vector<float>{9});
}

TEST_F(GroupsTest, ARankThatDeclinesFailsTheCallOfAll) {
  const auto members = join_all(2);
  Counted waiter;
  deposit(members[0], {1});
  EXPECT_TRUE(members[0]->wait(&waiter));
  members[1]->decline(sum(1), Status(Code::kResourceExhausted, "no memory"));
  EXPECT_EQ(waiter.times, 1);
  EXPECT_EQ(members[0]->take().code(), Code::kResourceExhausted);
  EXPECT_THAT(members[0]->take().message(), HasSubstr("rank 1 in all_reduce(sum, float32[1]): no "
                                                      "memory"));
  deposit(members[0], {1});
  EXPECT_EQ(floats(deposit(members[1], {2})), std::vector<float>{3});
}

TEST_F(GroupsTest, ARankThatLeavesEndsTheGroup) {
  auto members = join_all(3);
  Counted waiter;
  deposit(members[0], {1});
  EXPECT_TRUE(members[0]->wait(&waiter));
  members[2] = nullptr;
  EXPECT_EQ(waiter.times, 1);
  EXPECT_EQ(members[0]->take().code(), Code::kDeadlineExceeded);
  EXPECT_THAT(members[0]->take().message(), HasSubstr("group \"g\": rank 2 has left the group"));
  deposit(members[1], {1});
  EXPECT_THAT(members[1]->take().message(), HasSubstr("rank 2 has left the group"));
  // The name can be used for a new group at once.
  const auto again = join_all(2);
  deposit(again[0], {1});
  EXPECT_EQ(floats(deposit(again[1], {2})), std::vector<float>{3});
}

TEST_F(GroupsTest, ARankThatJoinsAgainBeginsTheGroupAnew) {
  const auto members = join_all(2);
  deposit(members[0], {1});
  const MemberRef again = join(0, 2);
  EXPECT_THAT(members[0]->take().message(),
              HasSubstr("rank 0 has been replaced: session of rank 0 has joined as rank 0 of 2"));
  const MemberRef other = join(1, 2);
  deposit(again, {1});
  EXPECT_EQ(floats(deposit(other, {2})), std::vector<float>{3});
}

// Joins as a program that counts as connected while `attended` is true.
class GroupsOfOtherSizes : public GroupsTest {
 protected:
  core::Result<std::shared_ptr<Groups::Member>> join_as(collective::Rank rank,
                                                        collective::Rank ranks,
                                                        const bool& attended) {
    return groups_.join({"alice", "g", rank, ranks, kLong, "session " + std::to_string(rank), false,
                         [&attended] { return attended; }});
  }
  bool here_ = true, gone_ = false;
};

TEST_F(GroupsOfOtherSizes, WhoWaitsAndWhoComesGetTheSameError) {
  const auto first = std::make_shared<TestRank>(*join_as(0, 2, here_));
  deposit(first, {1});
  const auto second = join_as(1, 3, here_);
  EXPECT_EQ(second.status().message(),
            "group \"g\": rank 0 of 2 (session 0) has joined, and later rank 1 of 3 (session 1): "
            "the numbers of ranks differ");
  EXPECT_EQ(second.status().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(first->take().message(), second.status().message());
  EXPECT_EQ(first->take().code(), Code::kDeadlineExceeded);
  // The name can be used for a new group at once.
  const auto again = join_all(3);
  deposit(again[0], {1});
  deposit(again[1], {1});
  EXPECT_EQ(floats(deposit(again[2], {2})), std::vector<float>{4});
}

TEST_F(GroupsOfOtherSizes, AGroupThatRunsIsNotDisturbed) {
  const auto members = join_all(2);
  EXPECT_THAT(join_as(2, 3, here_).status().message(), HasSubstr("rank 0 of 2"));
  deposit(members[0], {1});
  EXPECT_EQ(floats(deposit(members[1], {2})), std::vector<float>{3});
}

TEST_F(GroupsOfOtherSizes, WithoutItsProgramsAGroupIsReplaced) {
  for (const bool complete : {false, true}) {
    const auto first = std::make_shared<TestRank>(*join_as(0, 2, gone_));
    const auto second = complete ? *join_as(1, 2, gone_) : nullptr;
    const auto other = join_as(2, 3, here_);
    ASSERT_TRUE(other.ok()) << other.status().message();
    deposit(first, {1});
    EXPECT_THAT(first->take().message(), HasSubstr("session 2 has joined as rank 2 of 3"));
  }
}

TEST_F(GroupsTest, GivingUpEndsOnlyWhatWaits) {
  const auto members = join_all(2);
  members[0]->give_up("was interrupted");  // nothing of the rank waits
  deposit(members[0], {1});
  EXPECT_EQ(floats(deposit(members[1], {2})), std::vector<float>{3});
  members[0]->give_up("was interrupted");  // its collective has ended
  deposit(members[0], {1});
  members[0]->give_up("was interrupted");
  EXPECT_THAT(members[0]->take().message(), HasSubstr("rank 0 was interrupted"));
  deposit(members[1], {1});
  EXPECT_THAT(members[1]->take().message(), HasSubstr("rank 0 was interrupted"));
}

TEST_F(GroupsTest, ATimeoutNamesWhoIsMissing) {
  const MemberRef first = join(0, 3, milliseconds(1)), second = join(1, 3, milliseconds(1));
  Counted waiter;
  deposit(first, {1});
  ASSERT_TRUE(first->wait(&waiter));
  waiter.wait_for(1);
  EXPECT_EQ(first->take().code(), Code::kDeadlineExceeded);
  EXPECT_THAT(first->take().message(),
              HasSubstr("timeout in all_reduce(sum, float32[1]), waits for rank 1 (session of rank "
                        "1), rank 2 (has not joined)"));
}

TEST_F(GroupsTest, AChangedTimeoutHoldsForLaterDeposits) {
  for (const bool shorter : {false, true}) {
    const MemberRef first = join(0, 2, shorter ? kLong : milliseconds(1));
    const MemberRef second = join(1, 2, kLong);
    first->member().set_timeout(shorter ? milliseconds(1) : kLong);
    Counted waiter;
    deposit(first, {1});
    ASSERT_TRUE(first->wait(&waiter));
    if (shorter) {
      waiter.wait_for(1);
      EXPECT_THAT(first->take().message(), HasSubstr("timeout in all_reduce"));
      continue;
    }
    // The end of another group's call shows that the first timeout has passed.
    auto member = groups_.join({"alice", "h", 0, 2, milliseconds(1), "a session"});
    const MemberRef other = std::make_shared<TestRank>(*member);
    Counted passed;
    deposit(other, {1});
    if (other->wait(&passed)) passed.wait_for(1);
    EXPECT_FALSE(first->ended());
  }
}

TEST_F(GroupsTest, WithoutMemoryOrKernelsTheGroupEnds) {
  for (const bool memory : {false, true}) {
    const auto members = join_all(2);
    adder_.has_memory = memory;
    adder_.fails = memory ? Status(Code::kInternal, "a broken kernel") : Status();
    deposit(members[0], {1});
    deposit(members[1], {2});
    for (const MemberRef& member : members) {
      EXPECT_EQ(member->take().code(), Code::kDeadlineExceeded);
      EXPECT_THAT(member->take().message(),
                  HasSubstr(memory ? "rank 0 cannot add: a broken kernel"
                                   : "rank 0 has no memory for the partial sums"));
    }
  }
}

TEST_F(GroupsTest, WhatIsNoGroupIsRefused) {
  const auto error = [this](Groups::Join join) { return groups_.join(std::move(join)).status(); };
  EXPECT_THAT(error({"alice", "g", 2, 2, kLong, ""}).message(),
              HasSubstr("there is no rank 2 in a group of 2"));
  EXPECT_THAT(error({"alice", "g", 0, 0, kLong, ""}).message(), HasSubstr("1 to 1024 ranks"));
  EXPECT_EQ(error({"", "g", 0, 1, kLong, ""}).code(), Code::kPermissionDenied);
  // Groups of different users are different, even with equal names.
  const MemberRef own = join(0, 2);
  const auto other = groups_.join({"bob", "g", 0, 1, kLong, ""});
  ASSERT_TRUE(other.ok());
  const auto rank = std::make_shared<TestRank>(*other);
  deposit(rank, {7});
  EXPECT_TRUE(rank->ended());
}

TEST_F(GroupsTest, NothingIsHeldAfterACall) {
  const auto members = join_all(2);
  deposit(members[0], {1});
  deposit(members[1], std::vector<float>(1));
  const std::uint64_t before = box_.devices.at(0).pool().budget().used();
  for (int i = 0; i < 20; ++i) {
    deposit(members[0], std::vector<float>(100'000, 1.0f));
    deposit(members[1], std::vector<float>(100'000, 2.0f));
  }
  EXPECT_EQ(box_.devices.at(0).pool().budget().used(), before);
}

TEST_F(GroupsTest, WhatIsSentIsKeptUntilItIsReceived) {
  const auto members = join_all(3);
  send(members[1], 0, {1, 2});
  send(members[2], 0, {3, 4});
  send(members[1], 0, {5, 6});
  for (const MemberRef& sender : {members[1], members[2]}) {
    ASSERT_TRUE(sender->ended());
    EXPECT_TRUE(sender->take().ok());
  }
  Counted waiter;
  members[1]->await_sends();
  EXPECT_TRUE(members[1]->wait(&waiter));
  members[0]->await_sends();
  EXPECT_TRUE(members[0]->ended());  // it has sent nothing
  EXPECT_EQ(floats(receive(members[0], 1, 2)), (std::vector<float>{1, 2}));
  EXPECT_EQ(floats(receive(members[0], collective::kNoRank, 2)), (std::vector<float>{3, 4}));
  EXPECT_EQ(members[0]->sender(), 2u);
  EXPECT_EQ(waiter.times, 0);
  EXPECT_EQ(floats(receive(members[0], collective::kNoRank, 2)), (std::vector<float>{5, 6}));
  EXPECT_EQ(members[0]->sender(), 1u);
  EXPECT_EQ(waiter.times, 1);
  EXPECT_TRUE(members[1]->take().ok());
}

TEST_F(GroupsTest, AReceiveWaitsForItsSender) {
  const auto members = join_all(2);
  Counted waiter;
  const RowMajor result = receive(members[0], 1, 1);
  EXPECT_TRUE(members[0]->wait(&waiter));
  send(members[1], 0, {7});
  EXPECT_EQ(waiter.times, 1);
  EXPECT_TRUE(members[0]->take().ok());
  EXPECT_EQ(floats(result), std::vector<float>{7});
}

TEST_F(GroupsTest, OnlyTheReceiverIsToldOfWhatDoesNotFit) {
  const auto members = join_all(2);
  for (const bool receives_first : {false, true}) {
    if (!receives_first) send(members[0], 1, {1, 2, 3});
    receive(members[1], 0, 2);
    if (receives_first) send(members[0], 1, {1, 2, 3});
    EXPECT_TRUE(members[0]->take().ok());
    EXPECT_EQ(members[1]->take().code(), Code::kInvalidArgument);
    EXPECT_THAT(members[1]->take().message(),
                HasSubstr("rank 0 is in send(dst=1, float32[3]), rank 1 in recv(src=0, "
                          "float32[2])"));
  }
  members[0]->decline(transfer(Op::kSend, 1, 2), Status(Code::kResourceExhausted, "no memory"));
  EXPECT_EQ(members[0]->take().code(), Code::kResourceExhausted);
  receive(members[1], 0, 2);
  EXPECT_EQ(members[1]->take().code(), Code::kResourceExhausted);
  EXPECT_EQ(members[1]->take().message(), "rank 0: no memory");
  members[0]->await_sends();
  EXPECT_TRUE(members[0]->ended());
}

TEST_F(GroupsTest, ARankGoesOnAfterATransferThatItHasDeclined) {
  const auto members = join_all(2);
  const Status why(Code::kInternal, "it has failed");
  for (const Op op : {Op::kSend, Op::kRecv}) {
    Counted waiter;
    members[0]->decline(transfer(op, 1, 2), why);
    EXPECT_EQ(members[0]->take().code(), Code::kInternal);
    const RowMajor sum = deposit(members[0], {1});
    EXPECT_TRUE(members[0]->wait(&waiter));
    if (op == Op::kSend) {
      receive(members[1], 0, 2);
    } else {
      send(members[1], 0, {1, 2});
    }
    EXPECT_EQ(waiter.times, 0);
    deposit(members[1], {2});
    EXPECT_EQ(waiter.times, 1);
    EXPECT_TRUE(members[0]->take().ok());
    EXPECT_EQ(floats(sum), std::vector<float>{3});
  }
}

TEST_F(GroupsTest, TransfersEndWithTheGroup) {
  const std::uint64_t before = box_.devices.at(0).pool().budget().used();
  auto members = join_all(3);
  Counted waiter;
  send(members[0], 1, std::vector<float>(100'000));
  members[0]->await_sends();
  EXPECT_TRUE(members[0]->wait(&waiter));
  receive(members[1], 2, 4);
  EXPECT_TRUE(members[1]->wait(&waiter));
  deposit(members[2], {1});
  members[2]->leave("is lost");  // during a collective
  EXPECT_EQ(waiter.times, 2);
  EXPECT_THAT(members[0]->take().message(), HasSubstr("rank 2 is lost"));
  EXPECT_THAT(members[1]->take().message(), HasSubstr("rank 2 is lost"));
  send(members[0], 1, {1});
  EXPECT_THAT(members[0]->take().message(), HasSubstr("rank 2 is lost"));
  members[0]->await_sends();
  EXPECT_TRUE(members[0]->ended());
  EXPECT_EQ(box_.devices.at(0).pool().budget().used(), before);
}

TEST_F(GroupsTest, TransfersOfOtherRanksOutliveARankThatLeaves) {
  const std::uint64_t before = box_.devices.at(0).pool().budget().used();
  {
    auto members = join_all(3);
    send(members[2], 1, {5});
    receive(members[1], 2, 1);
    EXPECT_TRUE(members[1]->take().ok());
    Counted waiter;
    receive(members[1], 2, 1);
    EXPECT_TRUE(members[1]->wait(&waiter));
    const RowMajor received = receive(members[0], 1, 2);
    EXPECT_TRUE(members[0]->wait(&waiter));
    members[2]->leave("has left the group");
    EXPECT_EQ(waiter.times, 1);
    EXPECT_EQ(members[1]->take().message(), "group \"g\": rank 2 has left the group");
    send(members[0], 2, {1});
    EXPECT_EQ(members[0]->take().message(), "group \"g\": rank 2 has left the group");
    send(members[1], 0, {3, 4});
    EXPECT_EQ(waiter.times, 2);
    EXPECT_EQ(floats(received), (std::vector<float>{3, 4}));
    for (int rank = 0; rank < 2; ++rank) {
      deposit(members[rank], {1});
      EXPECT_EQ(members[rank]->take().message(), "group \"g\": rank 2 has left the group");
    }
  }
  EXPECT_EQ(box_.devices.at(0).pool().budget().used(), before);
}

// Ranks 1 and 2 finish their transfers in the earlier group.
TEST_F(GroupsTest, ARankThatHasLeftMayBeginTheGroupAnew) {
  auto members = join_all(3);
  members[0].reset();
  MemberRef first = join(0, 3);
  const RowMajor received = receive(members[2], 1, 1);
  send(members[1], 2, {7});
  EXPECT_TRUE(members[2]->take().ok());
  EXPECT_EQ(floats(received), std::vector<float>{7});
  const RowMajor result = deposit(first, {1});
  members[1].reset();
  members[2].reset();
  MemberRef second = join(1, 3), third = join(2, 3);
  deposit(second, {2});
  deposit(third, {3});
  EXPECT_TRUE(first->take().ok());
  EXPECT_EQ(floats(result), std::vector<float>{6});
}

TEST_F(GroupsTest, ASendThatARankLeavesUnreceivedIsTold) {
  auto members = join_all(3);
  send(members[0], 1, {1});
  members[1]->leave("has left the group");
  members[0]->await_sends();
  EXPECT_EQ(members[0]->take().message(), "group \"g\": rank 1 has left the group");
  members[0]->await_sends();
  EXPECT_TRUE(members[0]->take().ok());
}

TEST_F(GroupsTest, ATimeoutNamesTheRankOfATransfer) {
  const MemberRef first = join(0, 2, milliseconds(1)), second = join(1, 2, milliseconds(1));
  Counted waiter;
  receive(first, 1, 1);
  ASSERT_TRUE(first->wait(&waiter));
  waiter.wait_for(1);
  EXPECT_THAT(first->take().message(), HasSubstr("timeout in recv(src=1, float32[1]): rank 1 does "
                                                 "not send"));
  const MemberRef third = join(0, 2, milliseconds(1)), fourth = join(1, 2, milliseconds(1));
  send(third, 1, {1});
  third->await_sends();
  ASSERT_TRUE(third->wait(&waiter));
  waiter.wait_for(2);
  EXPECT_THAT(third->take().message(), HasSubstr("rank 1 does not receive"));
}

TEST_F(GroupsTest, ARankMayHaveSeveralCollectivesOpen) {
  const auto members = join_all(2);
  std::vector<Groups::Ticket> tickets;
  std::vector<RowMajor> results;
  for (int i = 0; i < 100; ++i) {
    RowMajor result = row({0});
    tickets.push_back(members[0]->deposit({sum(1), row({1.0f * i}), result}));
    results.push_back(std::move(result));
  }
  const RowMajor received = receive(members[0], 1, 1);
  Groups::Member& first = members[0]->member();
  Counted waiter;
  EXPECT_TRUE(first.wait(tickets[99], &waiter));
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(first.ended(tickets[i]));
    if (i == 50) {
      members[1]->decline(sum(1), Status(Code::kInternal, "not this one"));
    } else {
      deposit(members[1], {100});
    }
    ASSERT_TRUE(first.ended(tickets[i]));
    EXPECT_EQ(first.take(tickets[i]).status.ok(), i != 50);
    if (i == 50) continue;
    EXPECT_EQ(floats(results[i]), std::vector<float>{100.0f + static_cast<float>(i)});
  }
  EXPECT_EQ(waiter.times, 1);
  EXPECT_FALSE(members[0]->ended());
  send(members[1], 0, {7});
  EXPECT_TRUE(members[0]->take().ok());
  EXPECT_EQ(floats(received), std::vector<float>{7});
}

TEST_F(GroupsTest, AllThatIsOpenEndsWithTheGroup) {
  const auto members = join_all(2);
  Groups::Member& first = members[0]->member();
  std::vector<Groups::Ticket> tickets;
  for (int i = 0; i < 3; ++i) tickets.push_back(members[0]->deposit({sum(1), row({1}), row({0})}));
  tickets.push_back(members[0]->deposit({transfer(Op::kRecv, 1, 1), row({0}), row({0})}));
  members[1]->leave("is lost");
  for (const Groups::Ticket ticket : tickets) {
    ASSERT_TRUE(first.ended(ticket));
    EXPECT_THAT(first.take(ticket).status.message(), HasSubstr("rank 1 is lost"));
  }
}

// Ranks run on their own threads; some fail calls, and one leaves.
TEST_F(GroupsTest, ManyThreads) {
  constexpr int kRanks = 6, kCalls = 300;
  auto members = join_all(kRanks);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      MemberRef member = std::move(members[static_cast<std::size_t>(r)]);
      Counted waiter;
      int waits = 0;
      for (int i = 0; i < kCalls; ++i) {
        if (i % 37 == r) {
          member->decline(sum(500), Status(Code::kInternal, "not this one"));
          continue;
        }
        const RowMajor result = deposit(member, std::vector<float>(500, static_cast<float>(i + r)));
        if (member->wait(&waiter)) waiter.wait_for(++waits);
        const Status status = member->take();
        const bool fails = i % 37 < kRanks;
        wrong += status.ok() == fails;
        if (!status.ok()) continue;
        const float total = kRanks * i + kRanks * (kRanks - 1) / 2;
        wrong += floats(result) != std::vector<float>(500, total);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(GroupsTest, AnOpenCollectiveIsDepositedAgainAfterARestart) {
  Groups next(adder_);
  std::vector<program::Image::Group> images;
  {
    const auto members = join_all(2);
    for (const MemberRef& member : members) deposit(member, {1});
    for (const MemberRef& member : members) EXPECT_TRUE(member->take().ok());
    Counted waiter;
    deposit(members[0], {1, 2});
    EXPECT_TRUE(members[0]->wait(&waiter));
    groups_.hold_open("stops");
    deposit(members[1], {3, 4});  // too late for this daemon
    EXPECT_FALSE(members[0]->ended());
    EXPECT_FALSE(members[1]->ended());
    members[0]->give_up("was interrupted");
    for (const MemberRef& member : members) {
      const auto image = member->member().image();
      ASSERT_TRUE(image);
      EXPECT_EQ(image->collectives, 1u);
      images.push_back(*image);
    }
    EXPECT_EQ(waiter.times, 0);
    members[0]->member().end_waits();
    EXPECT_EQ(waiter.times, 1);
  }
  std::vector<MemberRef> members;
  for (const program::Image::Group& image : images) {
    auto member = next.restore(returning(image), image);
    ASSERT_TRUE(member.ok()) << member.status().message();
    members.push_back(std::make_shared<TestRank>(*member));
  }
  next.restored();
  const RowMajor result = deposit(members[0], {1, 2});
  EXPECT_FALSE(members[0]->ended());
  deposit(members[1], {3, 4});
  EXPECT_TRUE(members[0]->take().ok());
  EXPECT_EQ(floats(result), (std::vector<float>{4, 6}));
}

TEST_F(GroupsTest, AGroupWithWhatNoImageContainsEndsInsteadOfStayingOpen) {
  const auto members = join_all(2);
  send(members[1], 0, {1});
  deposit(members[0], {1});
  groups_.hold_open("stops");
  EXPECT_FALSE(members[0]->member().image());
  EXPECT_THAT(members[0]->take().message(), HasSubstr("stops"));
}

TEST_F(GroupsTest, AGroupWithADeclinedCallEndsInsteadOfStayingOpen) {
  const auto members = join_all(2);
  members[1]->decline(sum(1), Status(Code::kResourceExhausted, "no memory"));
  groups_.hold_open("stops");
  EXPECT_FALSE(members[0]->member().image());
}

}  // namespace
}  // namespace teletensor::runtime::testing
