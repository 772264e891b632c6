// Tests of unusual orders of owner's events and valid messages.
#include "engine/collective/participant_test.h"

namespace teletensor::collective {
namespace {

TEST(Participant, AFailureThatNoPeerExplainsIsStillAnError) {
  Pair pair;
  const Call call = collective(Op::kAllReduce, 1);
  ASSERT_TRUE(pair[0].deposit(0, 1, call).ok());
  Message vote = of(Kind::kVote, 1);
  vote.vote.lowest = 1;
  vote.vote.fingerprint = fingerprint(call);
  vote.vote.failed = 1;
  ASSERT_TRUE(pair[0].receive(1, vote).ok());
  vote.purpose = Purpose::kExplain;
  ASSERT_TRUE(pair[0].receive(1, vote).ok());
  bool complete = false;
  for (const Action& action : pair[0].take()) {
    if (action.kind != Action::Kind::kComplete) continue;
    complete = true;
    EXPECT_EQ(action.status.code(), core::Code::kInternal);
  }
  EXPECT_TRUE(complete);
}

// An empty send overtakes an earlier one whose data is in transit; the third must not take its
// position.
TEST(Participant, AnEmptySendBetweenOthersLosesNone) {
  Pair pair;
  const std::int64_t counts[] = {4, 0, 3};
  for (std::uint64_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(pair[0].deposit_point_to_point(0, 1 + i, transfer(Op::kSend, counts[i])).ok());
    ASSERT_TRUE(pair[1].deposit_point_to_point(1, 11 + i, transfer(Op::kRecv, counts[i])).ok());
  }
  for (int i = 0; i < 4; ++i) pair.settle(true);
  ASSERT_TRUE(pair[0].deposit_point_to_point(0, 3, transfer(Op::kSend, counts[2])).ok());
  ASSERT_TRUE(pair[1].deposit_point_to_point(1, 13, transfer(Op::kRecv, counts[2])).ok());
  for (int i = 0; i < 4; ++i) pair.settle(true);
  pair.settle();
  EXPECT_EQ(pair.completed.size(), 6u);
}

TEST(Participant, TheEndOfAnInterruptLeavesADrainAndTheOtherWayRound) {
  using Cuts = std::vector<std::pair<Place, Action::Kind>>;
  for (const bool drain_ends_first : {false, true}) {
    Pair pair;
    pair[0].interrupt();
    pair.settle();
    ASSERT_TRUE(pair[0].cut().interrupts);
    pair[0].drain();
    pair.settle();
    pair.cuts.clear();
    drain_ends_first ? pair[0].end_drain() : pair[0].end_interrupt();
    pair.settle();
    EXPECT_EQ(pair.cuts, Cuts());
    drain_ends_first ? pair[0].end_interrupt() : pair[0].end_drain();
    pair.settle();
    EXPECT_EQ(pair.cuts, (Cuts{{1, Action::Kind::kGoOn}, {0, Action::Kind::kGoOn}}));
  }
}

// An interrupt during a cut waits for the next cut; the end of the first cut does not cancel the
// second.
TEST(Participant, AnInterruptAtRestBringsAnotherCut) {
  Pair pair;
  for (int i = 0; i < 2; ++i) {
    pair[0].interrupt();
    pair.settle();
  }
  EXPECT_EQ(pair.cuts.size(), 2u);
  pair[0].end_interrupt();
  pair.settle();
  EXPECT_TRUE(pair[0].cut().interrupts);
  EXPECT_EQ(pair.cuts.size(), 6u);
  pair[0].end_interrupt();
  pair.settle();
  EXPECT_FALSE(pair[0].cut().holding());
  // An interrupt that is cancelled before its cut has no effect.
  pair[1].drain();
  pair.settle();
  pair[0].interrupt();
  pair[0].end_interrupt();
  pair[1].end_drain();
  pair.settle();
  EXPECT_FALSE(pair[0].cut().holding());
}

TEST(Participant, RefusesASecondDepositOfANumber) {
  Pair pair;
  ASSERT_TRUE(pair[0].deposit(0, 1, collective(Op::kAllReduce, 1)).ok());
  ASSERT_TRUE(pair[0].deposit(0, 2, Call()).ok());
  for (const Number number : {1, 2}) {
    const core::Status status = pair[0].deposit(0, number, collective(Op::kAllReduce, 9));
    EXPECT_EQ(status.code(), core::Code::kAlreadyExists);
    EXPECT_EQ(status.message(), "group \"test\" #" + std::to_string(number) +
                                    ": rank 0 has already deposited this number");
  }
}

// Two ranks on one daemon: a collective that only one of them has deposited is not announced yet.
TEST(Participant, RefusesASecondDepositThatIsNotAnnounced) {
  const Group group(2, {{0, 1}});
  Participant alone(group, 0, "test", {}, {});
  ASSERT_TRUE(alone.deposit(0, 1, collective(Op::kAllReduce, 1)).ok());
  EXPECT_EQ(alone.deposit(0, 1, collective(Op::kAllReduce, 9)).code(), core::Code::kAlreadyExists);
  ASSERT_TRUE(alone.deposit(1, 1, collective(Op::kAllReduce, 1)).ok());
  for (const Action& action : alone.take()) EXPECT_NE(action.kind, Action::Kind::kComplete);
}

TEST(Participant, RefusesMoreThan2To48Bytes) {
  const Group group(2, {{0, 1}});
  Participant alone(group, 0, "test", {}, {});
  const std::int64_t large = std::int64_t{1} << 62;
  const auto refused = [&](const Call& call) {
    const bool transfer = call.op == Op::kSend || call.op == Op::kRecv;
    const core::Status status =
        transfer ? alone.deposit_point_to_point(0, 1, call) : alone.deposit(0, 1, call);
    EXPECT_EQ(status.code(), core::Code::kInvalidArgument);
    EXPECT_NE(status.message().find(": more than 2^48 bytes"), std::string::npos)
        << status.message();
  };
  refused(collective(Op::kAllReduce, large));
  refused(collective(Op::kBroadcast, (std::int64_t{1} << 46) + 1));
  refused(transfer(Op::kSend, large));
  Call call = collective(Op::kAllGather, 0);
  call.counts = {large, large};
  refused(call);
  call = collective(Op::kAllToAll, 0);
  call.sends = {1, large};
  call.receives = {1, 1};
  refused(call);
  EXPECT_TRUE(alone.deposit(0, 1, collective(Op::kReduce, std::int64_t{1} << 46)).ok());
}

TEST(Participant, LongTextsOfItsOwnerAreShortened) {
  Pair pair;
  ASSERT_TRUE(
      pair[0].deposit(0, 1, Call(), {core::Code::kInternal, std::string(1 << 20, 'x')}).ok());
  ASSERT_TRUE(pair[1].deposit(1, 1, Call()).ok());
  pair.settle();
  EXPECT_EQ(pair.completed.size(), 2u);
  EXPECT_EQ(program::shortened("a\xc3\xa9", 2), "a");
}

// Sends beyond the maximum number of offers wait for their turn.
TEST(Participant, SendsBeyondTheMaximumOfOffersWait) {
  Limits limits;
  limits.offers = 2;
  Pair pair(limits);
  std::vector<Call> receives;
  for (std::uint64_t i = 0; i < 5; ++i) {
    Call send = transfer(Op::kSend, 0), receive = transfer(Op::kRecv, 0);
    send.tag = receive.tag = static_cast<std::int64_t>(i);
    ASSERT_TRUE(pair[0].deposit_point_to_point(0, 1 + i, send).ok());
    receives.push_back(receive);
  }
  pair.settle();
  for (std::uint64_t i = 0; i < 5; ++i) {
    ASSERT_TRUE(pair[1].deposit_point_to_point(1, 11 + i, receives[i]).ok());
  }
  pair.settle();
  EXPECT_EQ(pair.completed.size(), 10u);
  EXPECT_EQ(pair[0].open() + pair[1].open(), 0u);
}

// A group may continue before a restarted daemon is connected with all places. A receive that
// accepted an offer of the daemon's earlier incarnation then accepts it once more.
TEST(Participant, AnOfferIsAcceptedAgainAfterARestart) {
  Pair pair;
  ASSERT_TRUE(pair[1].deposit_point_to_point(1, 2, transfer(Op::kRecv, 4)).ok());
  Message offer = of(Kind::kOffer, 1);
  Call send = transfer(Op::kBroadcast, 4);
  offer.vote.claims = {{0, fingerprint(send), 1, "send"}};
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(pair[1].receive(0, offer).ok());
    const std::vector<Action> actions = pair[1].take();
    ASSERT_EQ(actions.size(), 1u);
    EXPECT_EQ(actions.front().message.kind, Kind::kAccept);
    pair[1].restarted(0);
  }
  pair[1].drain();  // no transfer is in progress that rest would wait for
  pair[0].drain();
  pair.settle();
  EXPECT_EQ(pair.cuts.size(), 2u);
}

TEST(Participant, APayloadThatComesAgainHasOneBuffer) {
  Pair pair;
  const Message partial = partial_sums(1);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(pair[1].expect(0, partial).ok());
  pair.settle();
  EXPECT_EQ(pair.staging.size(), 1u);
  EXPECT_FALSE(pair[1].receive(0, partial, {{1, Buffer::Kind::kStaging, 7}, 0, 4}).ok());
  pair[1].lost(0, "is lost");
  pair.settle();
  EXPECT_TRUE(pair.staging.empty());
}

// A message names at most 16 ranks, and a rank that was reported as late must be among them.
TEST(Participant, ARankThatIsLateForSureIsNamedFirst) {
  std::vector<Rank> many(20);
  for (Rank rank = 0; rank < 20; ++rank) many[rank] = rank;
  const Group group(21, {many, {20}});
  Participant waits(group, 1, "test", {}, {});
  ASSERT_TRUE(waits.deposit(20, 1, Call()).ok());
  Message state = of(Kind::kState, 1);
  state.vote.claims = {{19, 0, 1, "in a debugger"}};
  ASSERT_TRUE(waits.receive(0, state).ok());
  waits.deadline_passed(1);
  const std::vector<Action> actions = waits.take();
  ASSERT_FALSE(actions.empty());
  EXPECT_NE(actions.back().status.message().find("waits for rank 19 (in a debugger), rank 0, "),
            std::string::npos)
      << actions.back().status.message();
}

TEST(Participant, NothingHappensAfterTheEndOfTheEpoch) {
  Pair pair;
  ASSERT_TRUE(pair[0].deposit_point_to_point(0, 1, transfer(Op::kSend, 4)).ok());
  ASSERT_TRUE(pair[1].deposit_point_to_point(1, 2, transfer(Op::kRecv, 4)).ok());
  for (int i = 0; i < 4; ++i) pair.settle(true);
  pair[0].drain();
  for (int i = 0; i < 4; ++i) pair.settle(true);
  ASSERT_TRUE(
      pair[0].cut().holding());  // it would rest now, because no transfer is in progress any more
  pair[0].lost(1, "is lost");
  (void)pair[0].take();
  pair[0].reduced(99);
  EXPECT_TRUE(pair[0].take().empty());
}

// A partial sum that does not fit its call ends the epoch during advance(), while several
// collectives are open.
TEST(Participant, TheEndOfTheEpochInTheMiddleOfEvents) {
  Pair pair;
  const Message partial = partial_sums(2);
  const core::Result<Slice> at = pair[1].expect(0, partial);
  ASSERT_TRUE(at.ok());
  ASSERT_TRUE(pair[1].receive(0, partial, *at).ok());
  for (Number number = 1; number <= 9; ++number) {
    pair.deposit(number, collective(Op::kAllReduce, 1));
  }
  pair.settle();
  EXPECT_TRUE(pair[1].epoch_end().ended());
  EXPECT_EQ(pair.completed.size(), 18u);
  EXPECT_TRUE(pair.staging.empty());
}

}  // namespace
}  // namespace teletensor::collective
