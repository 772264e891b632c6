// Tests of groups over several daemons that have formed.
#include <random>
#include <thread>

#include "engine/runtime/groups/groups_fabric_kit_test.h"

namespace teletensor::runtime::testing {
namespace {

std::vector<float> drawn(std::mt19937& dice, std::size_t elements) {
  std::vector<float> values(elements);
  for (float& value : values) value = static_cast<float>(dice()) / 1e9f;
  return values;
}

// The bits of a sum depend only on the operands and the ranks.
TEST_F(GroupsFabric, SumsAreTheSameWhereverTheRanksAre) {
  std::mt19937 dice(7);
  for (const std::size_t elements : {1u, 100u, 5000u, 200'000u}) {
    std::vector<std::vector<float>> operands;
    for (int rank = 0; rank < 5; ++rank) operands.push_back(drawn(dice, elements));
    std::vector<float> wanted;
    for (const std::string placement : {"aaaaa", "abcab", "aabbc", "cbaab", "bbbba"}) {
      const auto members = join_all(placement);
      std::vector<RowMajor> results;
      for (std::size_t rank = 0; rank < 5; ++rank) {
        results.push_back(deposit(members[rank], operands[rank]));
      }
      network_.settle(dice());
      for (std::size_t rank = 0; rank < 5; ++rank) {
        ASSERT_TRUE(members[rank]->ended()) << placement << " " << elements;
        ASSERT_TRUE(members[rank]->take().ok()) << members[rank]->take().message();
        if (wanted.empty()) wanted = floats(results[0]);
        ASSERT_EQ(floats(results[rank]), wanted) << placement << " " << elements;
      }
    }
  }
}

TEST_F(GroupsFabric, ARankWaitsForAllToJoin) {
  const MemberRef first = join("a", 0, 2);
  EXPECT_FALSE(first->begin());
  Counted waiter;
  EXPECT_TRUE(first->wait(&waiter));
  network_.settle();
  EXPECT_EQ(waiter.times, 0);
  const MemberRef second = join("b", 1, 2);
  network_.settle();
  EXPECT_EQ(waiter.times, 1);
  EXPECT_TRUE(first->take().ok());
  EXPECT_TRUE(first->begin());
  EXPECT_TRUE(second->begin());
}

TEST_F(GroupsFabric, DifferentCallsAreOneErrorAndTheGroupGoesOn) {
  const auto members = join_all("abc");
  for (int rank = 0; rank < 3; ++rank) {
    deposit(members[rank], std::vector<float>(rank == 1 ? 3 : 2));
  }
  network_.settle();
  for (const MemberRef& member : members) {
    EXPECT_EQ(member->take().code(), Code::kInvalidArgument);
    EXPECT_THAT(member->take().message(), HasSubstr("rank 1 in all_reduce(sum, float32[3])"));
  }
  for (const MemberRef& member : members) deposit(member, {1});
  network_.settle();
  for (const MemberRef& member : members) EXPECT_TRUE(member->take().ok());
}

// A call that a rank declines before the group has formed counts as its call.
TEST_F(GroupsFabric, ARankMayDeclineBeforeAllHaveJoined) {
  const MemberRef first = join("a", 0, 2);
  first->decline(sum(1), Status(Code::kResourceExhausted, "no memory"));
  EXPECT_EQ(first->take().code(), Code::kResourceExhausted);
  const MemberRef second = join("b", 1, 2);
  EXPECT_FALSE(second->begin());
  network_.settle();
  deposit(second, {1});
  network_.settle();
  EXPECT_EQ(second->take().code(), Code::kResourceExhausted);
  EXPECT_THAT(second->take().message(), HasSubstr("rank 0 in all_reduce(sum, float32[1]): no mem"));
  deposit(first, {1});
  const RowMajor result = deposit(second, {2});
  network_.settle();
  EXPECT_EQ(floats(result), std::vector<float>{3});
}

TEST_F(GroupsFabric, TransfersGoFromDaemonToDaemon) {
  std::mt19937 dice(3);
  const auto members = join_all("ab");
  for (const std::size_t elements : {1u, 70'000u}) {
    const std::vector<float> values = drawn(dice, elements);
    send(members[0], 1, values);
    EXPECT_TRUE(members[0]->take().ok());
    const RowMajor result = receive(members[1], 0, elements);
    network_.settle();
    ASSERT_TRUE(members[1]->take().ok());
    EXPECT_EQ(members[1]->sender(), 0u);
    EXPECT_EQ(floats(result), values);
    members[0]->await_sends();
    EXPECT_TRUE(members[0]->take().ok());
  }
}

// A program's last collective succeeds for all ranks, in whatever order they leave.
TEST_F(GroupsFabric, ARankThatLeavesLetsTheOthersFinish) {
  constexpr std::int64_t kElements = 20'000;
  for (unsigned seed = 1; seed <= 300; ++seed) {
    std::mt19937 dice(seed);
    auto members = join_all("abcab");
    Call call = sum(kElements);
    constexpr Op kOps[] = {Op::kAllReduce, Op::kReduce, Op::kBroadcast, Op::kAllGather};
    call.op = kOps[seed % 4];
    call.root = call.op == Op::kReduce || call.op == Op::kBroadcast ? dice() % 5 : 0;
    const bool gathers = call.op == Op::kAllGather;
    if (gathers) call.counts.assign(5, kElements), call.count = 0;
    const auto result_elements = static_cast<std::size_t>(gathers ? 5 * kElements : kElements);
    std::vector<RowMajor> results;
    for (int rank = 0; rank < 5; ++rank) {
      results.push_back(row(std::vector<float>(result_elements)));
      members[rank]->deposit({call, row(std::vector<float>(kElements, 1)), results.back()});
    }
    std::vector<bool> left(5);
    for (bool more = true; more;) {
      more = network_.step(dice);
      for (std::size_t rank = 0; rank < 5; ++rank) {
        if (left[rank] || !members[rank]->ended() || dice() % 4 > 0) continue;
        ASSERT_TRUE(members[rank]->take().ok())
            << "seed " << seed << ": " << members[rank]->take().message();
        members[rank].reset();
        left[rank] = true;
      }
    }
    for (std::size_t rank = 0; rank < 5; ++rank) {
      ASSERT_TRUE(left[rank] || members[rank]->ended()) << seed;
      ASSERT_TRUE(left[rank] || members[rank]->take().ok()) << seed;
      const bool adds = call.op == Op::kAllReduce || call.op == Op::kReduce;
      if (call.op == Op::kReduce && rank != call.root) continue;
      ASSERT_EQ(floats(results[rank]), std::vector<float>(result_elements, adds ? 5 : 1)) << seed;
    }
  }
}

// Rank 0 sends and leaves, its daemon stops, and the other ranks continue to send.
TEST_F(GroupsFabric, TransfersOfOtherRanksOutliveARankAndItsDaemon) {
  for (unsigned seed = 1; seed <= 50; ++seed) {
    std::mt19937 dice(seed);
    auto members = join_all(seed % 2 == 0 ? "abc" : "acb");
    send(members[0], 1, {5});
    members[0]->await_sends();
    const RowMajor first = receive(members[1], 0, 1);
    while (!members[0]->ended()) ASSERT_TRUE(network_.step(dice));
    EXPECT_TRUE(members[0]->take().ok());
    members[0].reset();
    receive(members[2], 0, 1);
    while (!members[2]->ended()) ASSERT_TRUE(network_.step(dice));
    EXPECT_EQ(members[2]->take().message(), "group \"g\": rank 0 has left the group");
    network_.settle(seed);
    for (const char* const other : {"b", "c"}) {
      network_[other].receiver->lost("a", "no connection for 30 s");
    }
    network_.settle(seed);
    const RowMajor second = receive(members[2], 1, 30'000);
    send(members[1], 2, std::vector<float>(30'000, 6));
    network_.settle(seed);
    ASSERT_TRUE(members[1]->take().ok() && members[2]->take().ok()) << seed;
    EXPECT_EQ(floats(first), std::vector<float>{5});
    EXPECT_EQ(floats(second), std::vector<float>(30'000, 6));
    send(members[2], 0, {1});
    EXPECT_EQ(members[2]->take().message(), "group \"g\": rank 0 has left the group");
  }
}

TEST_F(GroupsFabric, NothingIsHeldAfterACall) {
  const auto members = join_all("abcab");
  const std::uint64_t before = pool_->account().used();
  for (int i = 0; i < 3; ++i) {
    for (const MemberRef& member : members) deposit(member, std::vector<float>(300'000, 1));
    network_.settle();
    for (const MemberRef& member : members) EXPECT_TRUE(member->take().ok());
  }
  EXPECT_EQ(pool_->account().used(), before);
}

TEST_F(GroupsFabric, ARankThatLeavesEndsTheGroupEverywhere) {
  auto members = join_all("abc");
  deposit(members[0], {1});
  deposit(members[1], {1});
  members[2].reset();
  network_.settle();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(members[rank]->take().code(), Code::kDeadlineExceeded);
    EXPECT_EQ(members[rank]->take().message(), "group \"g\": rank 2 has left the group");
    deposit(members[rank], {1});
    EXPECT_EQ(members[rank]->take().message(), "group \"g\": rank 2 has left the group");
  }
}

TEST_F(GroupsFabric, ALostDaemonEndsTheGroup) {
  for (const bool restarts : {false, true}) {
    const auto members = join_all("abb");
    deposit(members[0], {1});
    deposit(members[1], {1});
    if (restarts) {
      PeerMessage nothing;  // lists no groups, because b has restarted
      nothing.kind = PeerMessage::Kind::kKept;
      EXPECT_TRUE(network_["a"].receiver->received("b", nothing, {}).ok());
    } else {
      network_["a"].receiver->lost("b", "no connection for 30 s");
    }
    EXPECT_EQ(members[0]->take().message(),
              std::string("group \"g\": rank 1 has lost its daemon: b") +
                  (restarts ? " has restarted" : ": no connection for 30 s"));
    network_.settle();
    EXPECT_FALSE(members[1]->take().ok());
  }
}

// Ranks 0 and 3 are in the daemon that restarts; the other ranks are ahead of them, or run ahead
// later.
TEST_F(GroupsFabric, AGroupGoesOnAfterARestart) {
  for (unsigned seed = 1; seed <= 40; ++seed) {
    std::mt19937 dice(seed);
    const bool all_come_back = seed % 4 != 0;
    auto members = join_all("abca");
    const auto sum_of = [&](const std::vector<int>& ranks) {
      for (const int rank : ranks) deposit(members[rank], {1.0f + static_cast<float>(rank)});
    };
    send(members[0], 1, {7});
    const RowMajor received = receive(members[1], 0, 1);
    network_.settle(dice());
    EXPECT_TRUE(members[1]->take().ok());
    sum_of({0, 1, 2, 3});
    network_.settle(dice());
    sum_of({1, 2});  // collective #2
    Groups& groups = network_["a"].groups;
    bool rests = false;
    for (int i = 0; i < 1000 && !(rests = groups.rest()); ++i) {
      if (dice() % 2 == 0) network_.step(dice);
      for (const int rank : {0, 3}) {
        if (!members[rank]->member().wanted()) continue;
        EXPECT_TRUE(members[rank]->take().ok());
        sum_of({rank});
      }
    }
    ASSERT_TRUE(rests) << seed;
    network_.settle(dice());
    for (const int rank : {1, 2}) {
      EXPECT_TRUE(members[rank]->take().ok());
      sum_of({rank});  // collective #3, which waits
    }
    network_.settle(dice());
    std::map<int, program::Image::Group> images;
    for (const int rank : {0, 3}) {
      auto image = members[rank]->member().image();
      ASSERT_TRUE(image);
      EXPECT_EQ(image->collectives, 2u);
      images.emplace(rank, *image);
    }
    for (const int rank : {0, 3}) members[rank].reset();
    network_.replace("a");
    for (auto& [rank, image] : images) {
      if (rank == 3 && !all_come_back) continue;
      auto member = network_["a"].groups.restore(returning(image), image);
      ASSERT_TRUE(member.ok()) << member.status().message();
      members[rank] = std::make_shared<TestRank>(*member);
    }
    network_["a"].groups.restored();
    network_.meet("a");
    network_.settle(dice());
    EXPECT_EQ(members[1]->ended(), !all_come_back);
    sum_of({0});
    if (all_come_back) {
      sum_of({3});
      send(members[0], 1, {8});
    }
    network_.settle(dice());
    for (const MemberRef& member : members) {
      if (!member) continue;
      const Status status = member->take();
      EXPECT_EQ(status.ok(), all_come_back) << status.message();
      if (!status.ok()) {
        EXPECT_THAT(status.message(), HasSubstr("rank 3 has lost its session"));
      }
    }
    if (!all_come_back) continue;
    const RowMajor again = receive(members[1], 0, 1);
    network_.settle(dice());
    EXPECT_TRUE(members[1]->take().ok());
    EXPECT_EQ(floats(again), std::vector<float>{8});
  }
}

// Rank 1 is ahead of the others, and rank 2 waits for a send, when all daemons are asked to stop.
TEST_F(GroupsFabric, AGroupGoesOnAfterARestartOfAllDaemonsAtOnce) {
  const std::string placement = "abca";
  for (unsigned seed = 1; seed <= 40; ++seed) {
    std::mt19937 dice(seed);
    auto members = join_all(placement);
    const auto sum_of = [&](int rank) { deposit(members[rank], {1.0f + rank}); };
    for (int rank = 0; rank < 4; ++rank) sum_of(rank);
    network_.settle(dice());
    for (const MemberRef& member : members) EXPECT_TRUE(member->take().ok());
    const bool transfers = seed % 2 == 0;
    bool sent = !transfers;
    const RowMajor received = transfers ? receive(members[2], 0, 1) : row({});
    sum_of(1);  // #2
    std::vector<int> order = {0, 1, 2};
    std::shuffle(order.begin(), order.end(), dice);
    const auto groups_of = [&](int place) -> Groups& {
      return network_[placement.substr(static_cast<std::size_t>(place), 1)].groups;
    };
    for (const int place : order) EXPECT_FALSE(groups_of(place).rest());
    std::map<int, program::Image::Group> images;
    for (int i = 0; i < 20'000 && images.size() < 4; ++i) {
      if (dice() % 2 == 0) network_.step(dice);
      const int place = order[dice() % 3];
      const bool rests = groups_of(place).rest();
      for (int rank = 0; rank < 4; ++rank) {
        if (placement[static_cast<std::size_t>(rank)] != placement[static_cast<std::size_t>(place)])
          continue;
        Groups::Member& member = members[rank]->member();
        if (rests) {
          if (auto image = member.image()) images.emplace(rank, *image);
          continue;
        }
        if (!members[rank]->ended()) continue;
        if (rank == 0 && !sent && (member.wanted() || member.busy())) {
          send(members[0], 2, {7});
          sent = true;
        } else if (member.wanted()) {
          EXPECT_TRUE(members[rank]->take().ok());
          sum_of(rank);
        }
      }
    }
    ASSERT_EQ(images.size(), 4u) << seed;
    for (auto& [rank, image] : images) {
      EXPECT_EQ(image.collectives, 2u);
      EXPECT_TRUE(members[rank]->take().ok());
      members[rank].reset();
    }
    EXPECT_EQ(floats(received), std::vector<float>(transfers ? 1 : 0, 7));
    for (const char* const name : {"a", "b", "c"}) network_.replace(name);
    for (auto& [rank, image] : images) {
      auto member = groups_of(rank).restore(returning(image), image);
      ASSERT_TRUE(member.ok()) << member.status().message();
      members[rank] = std::make_shared<TestRank>(*member);
    }
    for (const int place : order) groups_of(place).restored();
    network_.meet("a");
    network_["b"].receiver->met("c");
    network_["c"].receiver->met("b");
    for (int rank = 0; rank < 4; ++rank) sum_of(rank);
    network_.settle(dice());
    for (const MemberRef& member : members) EXPECT_TRUE(member->take().ok());
  }
}

// Ranks 0 and 1 have deposited a collective, and the programs of ranks 2 and 3 send nothing.
// Daemons with and without silent ranks restart.
TEST_F(GroupsFabric, OpenCollectivesGoOnAfterARestart) {
  const std::string placement = "abca";
  for (unsigned seed = 1; seed <= 60; ++seed) {
    std::mt19937 dice(seed);
    auto members = join_all(placement);
    const std::size_t elements = seed % 3 == 0 ? 5000 : 3;  // too many to be sent with the vote
    const auto values = [&](int rank, int number) {
      return std::vector<float>(elements, static_cast<float>(10 * number + rank));
    };
    for (int number = 1; number <= 2; ++number) {
      for (int rank = 0; rank < 4; ++rank) deposit(members[rank], values(rank, number));
      network_.settle(dice());
      for (const MemberRef& member : members) EXPECT_TRUE(member->take().ok());
    }
    const std::string stops = std::vector<std::string>{"a", "b", "c", "ab", "bc"}[seed % 5];
    std::map<int, RowMajor> results;
    for (const int rank : {0, 1}) results[rank] = deposit(members[rank], values(rank, 3));
    if (seed % 2 == 0) network_.settle(dice());
    std::set<char> held;
    for (int i = 0; i < 10'000 && held.size() < stops.size(); ++i) {
      const char name = stops[dice() % stops.size()];
      network_.step(dice);
      if (held.contains(name)) continue;
      Groups& groups = network_[std::string(1, name)].groups;
      if (i < 20 ? groups.rest() : groups.hold_open("stops")) held.insert(name);
    }
    ASSERT_EQ(held.size(), stops.size()) << seed;
    network_.settle(dice());
    std::map<int, program::Image::Group> images;
    for (int rank = 0; rank < 4; ++rank) {
      if (!held.contains(placement[static_cast<std::size_t>(rank)])) continue;
      auto image = members[rank]->member().image();
      ASSERT_TRUE(image) << seed;
      EXPECT_EQ(image->collectives, 2u);
      images.emplace(rank, *image);
      members[rank].reset();
    }
    for (const char name : stops) network_.replace(std::string(1, name));
    for (auto& [rank, image] : images) {
      Groups& groups = network_[placement.substr(static_cast<std::size_t>(rank), 1)].groups;
      auto member = groups.restore(returning(image), image);
      ASSERT_TRUE(member.ok()) << member.status().message();
      members[rank] = std::make_shared<TestRank>(*member);
      if (rank < 2) results[rank] = deposit(members[rank], values(rank, 3));
    }
    for (const char name : stops) network_[std::string(1, name)].groups.restored();
    for (const auto& [one, other] :
         {std::pair('a', 'b'), std::pair('a', 'c'), std::pair('b', 'c')}) {
      if (!held.contains(one) && !held.contains(other)) continue;  // they are still connected
      network_[std::string(1, one)].receiver->met(std::string(1, other));
      network_[std::string(1, other)].receiver->met(std::string(1, one));
    }
    network_.settle(dice());
    EXPECT_FALSE(members[0]->ended()) << seed;
    for (const int rank : {2, 3}) results[rank] = deposit(members[rank], values(rank, 3));
    network_.settle(dice());
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_TRUE(members[rank]->ended()) << seed;
      EXPECT_TRUE(members[rank]->take().ok()) << members[rank]->take().message();
      EXPECT_EQ(floats(results[rank]), std::vector<float>(elements, 126));
    }
  }
}

TEST_F(GroupsFabric, AGroupThatDoesNotComeToRestEndsWithTheNameOfTheDaemon) {
  auto members = join_all("ab");
  deposit(members[0], {1});
  EXPECT_FALSE(network_["a"].groups.hold_open("stops"));  // the other daemon has not answered
  network_["a"].groups.end_moving("stops");
  EXPECT_TRUE(network_["a"].groups.hold_open("stops"));
  network_.settle();
  deposit(members[1], {1});
  for (const MemberRef& member : members) {
    EXPECT_THAT(member->take().message(), HasSubstr("rank 0 stops: a"));
  }
}

// The image was written before an earlier restart.
TEST_F(GroupsFabric, AnOldImageEndsTheGroup) {
  auto members = join_all("ab");
  for (int i = 0; i < 100 && !network_["a"].groups.rest(); ++i) network_.settle();
  auto image = members[0]->member().image();
  ASSERT_TRUE(image);
  members[0].reset();
  for (const bool old : {false, true}) {
    network_.replace("a");
    const auto member = network_["a"].groups.restore(returning(*image), *image);
    ASSERT_TRUE(member.ok());
    network_["a"].groups.restored();
    network_.meet("a");
    network_.settle();
    TestRank back(*member);
    deposit(members[1], {1});
    network_.settle();
    EXPECT_EQ(members[1]->ended(), old);
    if (old) {
      EXPECT_EQ(members[1]->take().message(),
                "group \"g\": rank 0 has lost its daemon: a has restarted");
      break;
    }
    Groups::Part part{sum(1), row({1}), row({1})};
    back.deposit(std::move(part));
    network_.settle();
    EXPECT_TRUE(members[1]->take().ok());
    EXPECT_TRUE(back.take().ok());
  }
}

// The image does not have them, and the session of the image deposits them again.
TEST_F(GroupsFabric, DepositsAfterTheImageStayOpen) {
  auto members = join_all("ab");
  for (int i = 0; i < 100 && !network_["a"].groups.rest(); ++i) network_.settle();
  ASSERT_TRUE(members[0]->member().image());
  deposit(members[0], {1});
  EXPECT_FALSE(members[0]->ended());
  send(members[0], 1, {1});
  EXPECT_FALSE(members[0]->ended());
  receive(members[0], 1, 1);
  EXPECT_FALSE(members[0]->ended());
  members[0]->member().end_waits();
  EXPECT_EQ(members[0]->take().code(), Code::kAborted);
  members[0]->decline(sum(1), Status(Code::kInternal, "not this one"));
  network_.settle();
  EXPECT_FALSE(network_["b"].groups.all().at(0).state == GroupFacts::State::kEnded);
}

TEST_F(GroupsFabric, ATimeoutNamesTheLateRankOfAnotherDaemon) {
  std::vector<MemberRef> members;
  for (collective::Rank rank = 0; rank < 3; ++rank) {
    members.push_back(
        join(std::string(1, "abb"[rank]), rank, 3, milliseconds(rank == 0 ? 1 : 60'000)));
  }
  network_.settle();
  deposit(members[0], {1});
  deposit(members[1], {1});
  Counted waiter;
  if (members[0]->wait(&waiter)) {
    std::mt19937 dice(1);
    while (waiter.times == 0) {
      if (!network_.step(dice)) std::this_thread::yield();
    }
  }
  EXPECT_THAT(members[0]->take().message(), HasSubstr("timeout in all_reduce"));
  EXPECT_THAT(members[0]->take().message(), HasSubstr("rank 2"));
  network_.settle();
  EXPECT_FALSE(members[1]->take().ok());
}

// A message that violates the protocol is refused and has no other effect.
TEST_F(GroupsFabric, BadMessagesAreRefused) {
  const auto members = join_all("ab");
  const auto refused = [&](PeerMessage message) {
    return !network_["a"].receiver->received("b", message, {}).ok();
  };
  PeerMessage message;
  message.kind = PeerMessage::Kind::kRegister;
  EXPECT_TRUE(refused(message));
  message.user = "alice", message.name = "h", message.ranks = 2, message.rank = 2;
  EXPECT_TRUE(refused(message));
  message.rank = 1;
  EXPECT_FALSE(refused(message));
  EXPECT_FALSE(refused(message));  // when daemons connect, a registration may arrive twice
  message.kind = PeerMessage::Kind::kForm;
  message.epoch = {9, 9};
  EXPECT_TRUE(refused(message));
  message.places = {{"b", {{0, 1}}}, {"b", {{1, 1}}}};
  EXPECT_TRUE(refused(message));
  message.places = {{"a", {{0, 1}}}, {"b", {{1, 1}}}};
  EXPECT_TRUE(refused(message));
  message.places = {{"b", {{0, 1}}}, {"a", {{0, 1}}}};
  EXPECT_TRUE(refused(message));
  message.places = {{"b", {{0, 1}}}, {"a", {{2, 1}}}};  // one more than the last rank
  EXPECT_TRUE(refused(message));
  PeerMessage large = message;  // consistent, but with more ranks than a group may have
  large.ranks = 1025;
  large.places = {{"b", {}}, {"a", {{1024, 1}}}};
  for (collective::Rank rank = 0; rank < 1024; ++rank) large.places[0].members.push_back({rank, 1});
  EXPECT_TRUE(refused(large));
  message.places = {{"b", {{0, 1}}}, {"a", {{1, 1}}}};
  EXPECT_FALSE(refused(message));  // the answer is that no rank waits
  message.kind = PeerMessage::Kind::kGroup;
  EXPECT_FALSE(refused(message));  // belongs to a group that has ended
  network_.settle();
  deposit(members[0], {1});
  deposit(members[1], {2});
  network_.settle();
  EXPECT_TRUE(members[0]->take().ok());
}

// Ranks run on their own threads, and another thread delivers the messages of the daemons.
TEST_F(GroupsFabric, ManyThreads) {
  constexpr int kRanks = 6, kCalls = 150;
  auto members = join_all("abcabc");
  std::atomic<int> running{kRanks}, wrong{0};
  std::thread mover([&] {
    std::mt19937 dice(5);
    while (running > 0 || network_.step(dice)) {
      if (!network_.step(dice)) std::this_thread::yield();
    }
  });
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      MemberRef member = std::move(members[static_cast<std::size_t>(r)]);
      Counted waiter;
      int waits = 0;
      for (int i = 0; i < kCalls; ++i) {
        if (i % 37 == r) {
          member->decline(sum(5000), Status(Code::kInternal, "not this one"));
          continue;
        }
        const RowMajor result =
            deposit(member, std::vector<float>(5000, static_cast<float>(i + r)));
        if (member->wait(&waiter)) waiter.wait_for(++waits);
        const Status status = member->take();
        wrong += status.ok() == (i % 37 < kRanks);
        if (!status.ok()) continue;
        const float total = kRanks * i + kRanks * (kRanks - 1) / 2;
        wrong += floats(result) != std::vector<float>(5000, total);
      }
      --running;
    });
  }
  for (std::thread& thread : threads) thread.join();
  mover.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace teletensor::runtime::testing
