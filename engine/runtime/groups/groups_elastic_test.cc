// Tests of elastic groups, in one daemon and over several daemons.
#include <algorithm>
#include <random>

#include "engine/runtime/groups/groups_fabric_kit_test.h"

namespace teletensor::runtime::testing {
namespace {

class ElasticGroups : public GroupsFabric {
 protected:
  core::Result<std::shared_ptr<Groups::Member>> try_join(const std::string& daemon,
                                                         collective::Rank rank,
                                                         collective::Rank ranks,
                                                         bool elastic = true, bool again = false) {
    Groups::Join join{"alice", "g", rank, ranks, kLong, "session of rank " + std::to_string(rank)};
    join.elastic = elastic;
    join.again = again;
    join.on_lost = [this, rank](const Groups::Lost& lost) { told_[rank].push_back(lost); };
    return network_[daemon].groups.join(join);
  }
  // Rank i is in the daemon named placement[i].
  std::vector<MemberRef> join_elastic(const std::string& placement) {
    std::vector<MemberRef> members;
    const auto ranks = static_cast<collective::Rank>(placement.size());
    for (collective::Rank rank = 0; rank < ranks; ++rank) {
      auto member = try_join(std::string(1, placement[rank]), rank, ranks);
      EXPECT_TRUE(member.ok()) << member.status().message();
      members.push_back(std::make_shared<TestRank>(*member));
    }
    for (const MemberRef& member : members) (void)member->begin();
    network_.settle();
    for (const MemberRef& member : members) EXPECT_TRUE(member->begin());
    return members;
  }
  // Deposits a call without reduction and returns the memory of its result.
  RowMajor call(const MemberRef& member, Op op, collective::Rank root, float value,
                std::size_t results) {
    Call call = sum(1);
    call.op = op;
    call.root = root;
    if (op == Op::kAllGather) call.counts.assign(results, 1);
    RowMajor result = row(std::vector<float>(results, 99));
    member->deposit({call, row({value}), result});
    return result;
  }
  std::map<collective::Rank, std::vector<Groups::Lost>> told_;  // losses that a rank was told
};

TEST_F(ElasticGroups, ALostRankTakesPartInWhatItHasDeposited) {
  for (const std::string placement : {"aaa", "abc", "aab", "abb", "aba", "bab", "cba"}) {
    for (unsigned seed = 1; seed <= 20; ++seed) {
      std::mt19937 dice(seed);
      const auto deliver = [&] {
        for (auto left = dice() % 12; left > 0 && network_.step(dice); --left) {
        }
      };
      auto members = join_elastic(placement);
      const std::size_t lost = dice() % 3, first = (lost + 1) % 3, second = (lost + 2) % 3;
      const RowMajor one = deposit(members[first], {1});
      deliver();
      (void)deposit(members[lost], {100});
      deliver();
      members[lost]->leave("has ended its session");
      EXPECT_EQ(members[lost]->take().code(), Code::kDeadlineExceeded);
      deliver();
      const RowMajor two = deposit(members[second], {10});
      network_.settle(dice());
      ASSERT_TRUE(members[first]->take().ok()) << placement << members[first]->take().message();
      ASSERT_TRUE(members[second]->take().ok()) << placement << members[second]->take().message();
      EXPECT_EQ(floats(one), std::vector<float>{111}) << placement << lost;
      EXPECT_EQ(floats(two), std::vector<float>{111}) << placement << lost;
      // From the next collective on it is absent.
      for (int number = 0; number < 3; ++number) {
        const RowMajor next = deposit(members[first], {2});
        deliver();
        const RowMajor same = deposit(members[second], {20});
        network_.settle(dice());
        ASSERT_TRUE(members[first]->take().ok()) << placement << members[first]->take().message();
        EXPECT_EQ(floats(next), std::vector<float>{22}) << placement << lost;
        EXPECT_EQ(floats(same), std::vector<float>{22}) << placement << lost;
      }
      EXPECT_THAT((deposit(members[lost], {1}), members[lost]->take().message()),
                  HasSubstr("rank " + std::to_string(lost) + " has ended its session"));
      members.clear();
      network_.settle();
    }
  }
}

TEST_F(ElasticGroups, EachRankIsToldOfEachLossOnce) {
  const auto members = join_elastic("abc");
  members[2]->leave("has ended its session");
  network_.settle();
  for (int number = 0; number < 2; ++number) {
    for (std::size_t rank = 0; rank < 2; ++rank) deposit(members[rank], {1});
    network_.settle();
    for (std::size_t rank = 0; rank < 2; ++rank) {
      ASSERT_TRUE(members[rank]->take().ok());
      const auto& told = told_[static_cast<collective::Rank>(rank)];
      ASSERT_EQ(told.size(), 1u);
      EXPECT_EQ(told[0].rank, 2u);
      EXPECT_EQ(told[0].why, "has ended its session");
    }
  }
  const auto all = network_["a"].groups.all();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].members.size(), 2u);
}

TEST_F(ElasticGroups, ManyRanksAreLostAtOnce) {
  const auto members = join_elastic("abcabcabc");
  for (const std::size_t rank : {0u, 1u, 3u, 4u, 6u, 7u, 8u}) members[rank]->leave("has ended");
  network_.settle();
  const RowMajor result = deposit(members[2], {2});
  (void)deposit(members[5], {3});
  network_.settle();
  ASSERT_TRUE(members[5]->take().ok()) << members[5]->take().message();
  EXPECT_EQ(floats(result), std::vector<float>{5});
}

TEST_F(ElasticGroups, RowsOfALostRankAreZeroAndItsBroadcastFails) {
  for (const std::string placement : {"aaa", "bca"}) {
    auto members = join_elastic(placement);
    members[0]->leave("has ended its session");
    network_.settle();
    const RowMajor rows = call(members[1], Op::kAllGather, 0, 5, 3);
    (void)call(members[2], Op::kAllGather, 0, 6, 3);
    network_.settle();
    ASSERT_TRUE(members[1]->take().ok()) << members[1]->take().message();
    EXPECT_EQ(floats(rows), (std::vector<float>{0, 5, 6}));
    for (const std::size_t rank : {1u, 2u}) (void)call(members[rank], Op::kBroadcast, 0, 7, 1);
    network_.settle();
    for (const std::size_t rank : {1u, 2u}) {
      EXPECT_THAT(members[rank]->take().message(), HasSubstr("rank 0 is lost"));
    }
    RowMajor lowest;
    for (const std::size_t rank : {1u, 2u}) {
      lowest = call(members[rank], Op::kBroadcast, collective::kNoRank,
                    static_cast<float>(rank) + 10, 1);
    }
    network_.settle();
    ASSERT_TRUE(members[2]->take().ok()) << members[2]->take().message();
    EXPECT_EQ(floats(lowest), std::vector<float>{11});
    members.clear();
    network_.settle();
  }
}

TEST_F(ElasticGroups, ALostDaemonEndsTheGroup) {
  const auto members = join_elastic("abc");
  deposit(members[0], {1});
  network_.kill("c");
  network_.settle();
  EXPECT_THAT(members[0]->take().message(), HasSubstr("rank 2 has lost its daemon"));
}

TEST_F(ElasticGroups, ADaemonWithoutRanksMayStop) {
  const auto members = join_elastic("abc");
  members[2]->leave("has ended its session");
  network_.settle();
  network_.kill("c");
  const RowMajor result = deposit(members[0], {1});
  (void)deposit(members[1], {2});
  network_.settle();
  ASSERT_TRUE(members[0]->take().ok()) << members[0]->take().message();
  EXPECT_EQ(floats(result), std::vector<float>{3});
}

TEST_F(ElasticGroups, ALostRankJoinsTheNextEpoch) {
  for (const std::string placement : {"aaa", "abc", "abb", "aab", "cba"}) {
    for (unsigned seed = 1; seed <= 30; ++seed) {
      std::mt19937 dice(seed);
      const auto deliver = [&] {
        for (auto left = dice() % 12; left > 0 && network_.step(dice); --left) {
        }
      };
      auto members = join_elastic(placement);
      const std::size_t lost = dice() % 3, first = (lost + 1) % 3, second = (lost + 2) % 3;
      members[lost]->leave("has ended its session");
      deliver();
      // The ranks join in any order, the lost one in any daemon, while the others continue.
      std::vector<MemberRef> next(3);
      std::vector<std::size_t> order{0, 1, 2};
      std::shuffle(order.begin(), order.end(), dice);
      const std::string place(1, "abc"[dice() % 3]);
      for (const std::size_t each : order) {
        const RowMajor sum = deposit(members[first], {2});
        deliver();
        (void)deposit(members[second], {20});
        network_.settle(dice());
        ASSERT_TRUE(members[first]->take().ok()) << members[first]->take().message();
        ASSERT_TRUE(members[second]->take().ok()) << members[second]->take().message();
        EXPECT_EQ(floats(sum), std::vector<float>{22});
        const auto rank = static_cast<collective::Rank>(each);
        const bool again = each != lost;
        const auto daemon = again ? std::string(1, placement[each]) : place;
        auto member = try_join(daemon, rank, 3, true, again);
        ASSERT_TRUE(member.ok()) << member.status().message();
        next[each] = std::make_shared<TestRank>(*member);
        deliver();
      }
      network_.settle(dice());
      RowMajor sum;
      for (const MemberRef& each : next) {
        ASSERT_TRUE(each->begin()) << placement << seed;
        sum = deposit(each, {1});
      }
      const RowMajor earlier = deposit(members[first], {2});
      (void)deposit(members[second], {20});
      network_.settle(dice());
      for (const MemberRef& each : next) {
        ASSERT_TRUE(each->take().ok()) << placement << seed << each->take().message();
      }
      EXPECT_EQ(floats(sum), std::vector<float>{3});
      EXPECT_EQ(floats(earlier), std::vector<float>{22});
      // The next epoch is elastic as well, and does not need the earlier one.
      members.clear();
      next[second]->leave("has ended its session");
      network_.settle(dice());
      sum = deposit(next[first], {4});
      (void)deposit(next[lost], {5});
      network_.settle(dice());
      ASSERT_TRUE(next[first]->take().ok()) << next[first]->take().message();
      EXPECT_EQ(floats(sum), std::vector<float>{9});
      next.clear();
      network_.settle();
      for (const char* const name : {"a", "b", "c"}) {
        EXPECT_TRUE(network_[name].groups.all().empty()) << name;
      }
    }
  }
}

TEST_F(ElasticGroups, ANextEpochThatDoesNotFormDisturbsNobody) {
  const auto members = join_elastic("abc");
  members[2]->leave("has ended its session");
  network_.settle();
  const auto joined = [&](const std::string& daemon, collective::Rank rank, bool again) {
    auto member = try_join(daemon, rank, 3, true, again);
    EXPECT_TRUE(member.ok()) << member.status().message();
    return std::make_shared<TestRank>(*member);
  };
  const auto failure = [&](const MemberRef& rank) {
    if (rank->begin()) deposit(rank, {1});
    network_.settle();
    return rank->take().message();
  };
  const auto continues = [&] {
    const RowMajor result = deposit(members[0], {1});
    (void)deposit(members[1], {2});
    network_.settle();
    EXPECT_TRUE(members[0]->take().ok()) << members[0]->take().message();
    EXPECT_EQ(floats(result), std::vector<float>{3});
  };
  {
    // The program that came back ends before the others have joined.
    const MemberRef first = joined("a", 0, true), back = joined("c", 2, false);
    EXPECT_FALSE(first->begin());
    network_.settle();
    back->leave("has ended its session");
    network_.settle();
    EXPECT_THAT(first->take().message(), HasSubstr("rank 2 has ended its session"));
    continues();
  }
  {
    // Two programs come back under the same rank, in two daemons.
    const MemberRef first = joined("a", 0, true), back = joined("c", 2, false);
    EXPECT_FALSE(back->begin());
    network_.settle();
    const MemberRef twice = joined("b", 2, false);
    EXPECT_THAT(failure(twice), HasSubstr("(session of rank 2) is in "));
    EXPECT_THAT(back->take().message(), HasSubstr("(session of rank 2) is in "));
    continues();
  }
  {
    // A program of another kind comes back.
    const auto other = std::make_shared<TestRank>(*try_join("c", 2, 3, false));
    EXPECT_THAT(failure(other), HasSubstr("one is elastic, and the other is not"));
    continues();
  }
  const std::vector<MemberRef> next = {joined("a", 0, true), joined("b", 1, true),
                                       joined("c", 2, false)};
  network_.settle();
  for (const MemberRef& each : next) EXPECT_TRUE(each->begin());
  continues();
}

// Without peers as well, a program of another kind or size is refused, and the group continues.
TEST_F(GroupsKit, AHealedGroupRefusesProgramsOfAnotherKind) {
  Groups groups(adder_);
  const auto try_join = [&](collective::Rank rank, collective::Rank ranks, bool elastic) {
    Groups::Join join{"alice", "g", rank, ranks, kLong, "a session"};
    join.elastic = elastic;
    return groups.join(join);
  };
  std::vector<MemberRef> members;
  for (collective::Rank rank = 0; rank < 3; ++rank) {
    members.push_back(std::make_shared<TestRank>(*try_join(rank, 3, true)));
  }
  members[2]->leave("has ended its session");
  members.pop_back();
  EXPECT_THAT(try_join(2, 3, false).status().message(), HasSubstr("one is elastic, and the other"));
  EXPECT_THAT(try_join(2, 4, true).status().message(), HasSubstr("the numbers of ranks differ"));
  const RowMajor result = deposit(members[0], {1});
  (void)deposit(members[1], {2});
  ASSERT_TRUE(members[0]->take().ok()) << members[0]->take().message();
  EXPECT_EQ(floats(result), std::vector<float>{3});
}

TEST_F(ElasticGroups, ARankThatIsReplacedIsLost) {
  const auto members = join_elastic("aaa");
  const auto next = try_join("a", 1, 3);
  EXPECT_TRUE(next.ok()) << next.status().message();
  EXPECT_THAT((deposit(members[1], {1}), members[1]->take().message()),
              HasSubstr("rank 1 has been replaced"));
  const RowMajor result = deposit(members[0], {1});
  (void)deposit(members[2], {2});
  network_.settle();
  EXPECT_EQ(floats(result), std::vector<float>{3});
}

TEST_F(ElasticGroups, AllRanksAreOfOneKind) {
  const auto first = std::make_shared<TestRank>(*try_join("a", 0, 2));
  const auto second = try_join("a", 1, 2, false);
  EXPECT_THAT(second.status().message(), HasSubstr("one is elastic, and the other is not"));
  const auto third = std::make_shared<TestRank>(*try_join("a", 0, 2));
  const auto fourth = std::make_shared<TestRank>(*try_join("b", 1, 2, false));
  (void)third->begin();
  network_.settle();
  EXPECT_THAT(third->take().message(), HasSubstr("one is elastic, and the other is not"));
}

TEST_F(ElasticGroups, ARankThatLeavesInOrderEndsTheGroup) {
  auto members = join_elastic("ab");
  members[1].reset();
  deposit(members[0], {1});
  network_.settle();
  EXPECT_THAT(members[0]->take().message(), HasSubstr("rank 1 has left the group"));
}

// Without peers a group begins before all ranks have joined.
TEST_F(GroupsKit, AnElasticGroupThatWaitsForRanksBeginsAnew) {
  Groups groups(adder_);
  const auto join = [&](collective::Rank rank) {
    Groups::Join join{"alice", "g", rank, 3, kLong, "a session"};
    join.elastic = true;
    auto member = groups.join(join);
    EXPECT_TRUE(member.ok()) << member.status().message();
    return std::make_shared<TestRank>(*member);
  };
  const MemberRef first = join(0), second = join(1);
  deposit(second, {1});
  first->leave("has ended its session");
  EXPECT_THAT(second->take().message(), HasSubstr("rank 0 has ended its session"));
  const MemberRef again[] = {join(0), join(1), join(2)};
  again[1]->leave("has ended its session");
  const RowMajor result = deposit(again[0], {1});
  (void)deposit(again[2], {2});
  EXPECT_EQ(floats(result), std::vector<float>{3});
}

// Both epochs of a group continue after a restart, each with its own collectives.
TEST_F(ElasticGroups, BothEpochsContinueAfterARestart) {
  for (const std::string placement : {"aaa", "aab"}) {
    auto members = join_elastic(placement);
    members[1]->leave("has ended its session");
    network_.settle();
    std::vector<MemberRef> next;
    for (collective::Rank rank = 0; rank < 3; ++rank) {
      auto member = try_join(std::string(1, placement[rank]), rank, 3, true, rank != 1);
      ASSERT_TRUE(member.ok()) << member.status().message();
      next.push_back(std::make_shared<TestRank>(*member));
    }
    network_.settle();
    for (const MemberRef& each : next) EXPECT_TRUE(each->begin());
    for (const std::size_t rank : {0u, 2u}) (void)deposit(members[rank], {1});
    network_.settle();
    bool rests = false;
    for (int i = 0; i < 10 && !rests; ++i) {
      rests = network_["a"].groups.rest();
      network_.settle();
    }
    ASSERT_TRUE(rests);
    // The session of the rank that came back is restored first.
    std::vector<std::pair<MemberRef*, program::Image::Group>> images;
    for (MemberRef* const each : {&next[1], &next[0], &members[0], &members[2], &next[2]}) {
      if (placement[(*each)->rank()] != 'a') continue;
      const auto image = (*each)->member().image();
      ASSERT_TRUE(image);
      images.emplace_back(each, *image);
    }
    members[1].reset();
    for (const auto& [member, image] : images) member->reset();
    network_.replace("a");
    for (const auto& [member, image] : images) {
      auto again = network_["a"].groups.restore(returning(image), image);
      ASSERT_TRUE(again.ok()) << again.status().message();
      *member = std::make_shared<TestRank>(*again);
    }
    network_["a"].groups.restored();
    network_.meet("a");
    network_.settle();
    const RowMajor earlier = deposit(members[0], {1});
    (void)deposit(members[2], {2});
    RowMajor sum;
    for (const MemberRef& each : next) sum = deposit(each, {10});
    network_.settle();
    ASSERT_TRUE(members[0]->take().ok()) << members[0]->take().message();
    EXPECT_EQ(floats(earlier), std::vector<float>{3});
    for (const MemberRef& each : next) ASSERT_TRUE(each->take().ok()) << each->take().message();
    EXPECT_EQ(floats(sum), std::vector<float>{30});
    members.clear();
    next.clear();
    network_.settle();
  }
}

TEST_F(ElasticGroups, AHealedGroupContinuesAfterARestart) {
  auto members = join_elastic("aab");
  members[0]->leave("has ended its session");
  network_.settle();
  bool rests = false;
  for (int i = 0; i < 10 && !rests; ++i) {
    rests = network_["a"].groups.rest();
    network_.settle();
  }
  ASSERT_TRUE(rests);
  const auto image = members[1]->member().image();
  ASSERT_TRUE(image);
  EXPECT_FALSE(members[0]->member().image());
  members.erase(members.begin(), members.begin() + 2);
  network_.replace("a");
  Groups::Join back = returning(*image);
  const auto again = network_["a"].groups.restore(back, *image);
  ASSERT_TRUE(again.ok()) << again.status().message();
  const auto rank = std::make_shared<TestRank>(*again);
  network_["a"].groups.restored();
  network_.meet("a");
  network_.settle();
  const RowMajor result = deposit(rank, {1});
  (void)deposit(members[0], {2});
  network_.settle();
  ASSERT_TRUE(rank->take().ok()) << rank->take().message();
  EXPECT_EQ(floats(result), std::vector<float>{3});
}

}  // namespace
}  // namespace teletensor::runtime::testing
