// What a peer's malformed messages, and unusual orders of good ones, do to a Participant.
#include "engine/collective/participant.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <set>

namespace teletensor::collective {
namespace {

// Two daemons with a rank each, over a network that neither delays nor loses.
class Pair {
 public:
  explicit Pair(Limits limits = {}) : limits_(limits), group_(2, {{0}, {1}}) {
    for (Place place = 0; place < 2; ++place) {
      at_[place] =
          std::make_unique<Participant>(group_, place, "test", limits_, Participant::Image());
    }
  }
  Participant& operator[](Place place) { return *at_[place]; }

  // Moves messages until none is left. Data of sends stays under way while `keep_data`.
  void settle(bool keep_data = false) {
    for (bool more = true; more;) {
      more = false;
      for (Place place = 0; place < 2; ++place) {
        for (const Action& action : at_[place]->take()) note(place, action);
      }
      std::deque<std::pair<Place, Message>> kept;
      for (; !wire_.empty(); wire_.pop_front(), more = true) {
        const auto& [from, message] = wire_.front();
        if (keep_data && message.kind == Kind::kData) {
          kept.push_back(wire_.front());
          continue;
        }
        Participant& to = *at_[1 - from];
        const Slice slice = message.payload > 0 ? *to.expect(from, message) : Slice();
        EXPECT_TRUE(to.receive(from, message, slice).ok());
      }
      more = more && kept.empty();
      wire_ = std::move(kept);
      if (!more) break;
    }
  }
  // Both ranks deposit their next collectives.
  void deposit(Number number, const Call& call) {
    for (Place place = 0; place < 2; ++place) {
      EXPECT_TRUE(at_[place]->deposit(place, number, call).ok());
    }
  }
  std::vector<std::pair<Place, std::uint64_t>> completed;
  std::vector<std::pair<Place, Action::Kind>> cuts;  // kAtRest and kGoOn
  std::set<std::pair<Place, Buffer>> staging;

 private:
  void note(Place place, const Action& action) {
    switch (action.kind) {
      case Action::Kind::kComplete:
        return completed.push_back({place, action.token});
      case Action::Kind::kSend:
        return wire_.push_back({place, action.message});
      case Action::Kind::kAtRest:
      case Action::Kind::kGoOn:
        return cuts.push_back({place, action.kind});
      case Action::Kind::kReserve:
        EXPECT_TRUE(staging.insert({place, action.buffer}).second);
        return;
      case Action::Kind::kFree:
        EXPECT_EQ(staging.erase({place, action.buffer}), 1u);
        return;
      default:
        return;
    }
  }

  Limits limits_;
  Group group_;
  std::unique_ptr<Participant> at_[2];
  std::deque<std::pair<Place, Message>> wire_;
};

Call transfer(Op op, std::int64_t count) {
  Call call;
  call.op = op;
  call.peer = op == Op::kSend ? 1 : 0;
  call.count = count;
  return call;
}

Call collective(Op op, std::int64_t count) {
  Call call;
  call.op = op;
  call.count = count;
  return call;
}

Message of(Kind kind, Number number) {
  Message message;
  message.kind = kind;
  message.number = number;
  message.from = 0;
  message.to = 1;
  return message;
}

TEST(Participant, RefusesDataWithoutPayload) {
  Pair pair;
  EXPECT_FALSE(pair[1].receive(0, of(Kind::kData, 1)).ok());
  Message result = of(Kind::kFinal, 1);
  result.range = {-5, -9};
  EXPECT_FALSE(pair[1].receive(0, result).ok());
  EXPECT_FALSE(pair[1].receive(0, of(Kind::kPartial, 1)).ok());
}

TEST(Participant, RefusesKindsAndPurposesThatDoNotExist) {
  Pair pair;
  ASSERT_TRUE(pair[0].deposit_point_to_point(0, 1, transfer(Op::kSend, 4)).ok());
  EXPECT_FALSE(pair[0].receive(1, of(static_cast<Kind>(77), 1)).ok());
  Message vote = of(Kind::kVote, 1);
  vote.purpose = static_cast<Purpose>(77);
  EXPECT_FALSE(pair[0].receive(1, vote).ok());
  Message payload = of(Kind::kVote, 1);
  payload.payload = 8;
  EXPECT_FALSE(pair[0].expect(1, payload).ok());
}

TEST(Participant, RefusesAnEndThatIsNoError) {
  Pair pair;
  EXPECT_FALSE(pair[0].receive(1, of(Kind::kEnd, 0)).ok());
  EXPECT_FALSE(pair[0].ended());
}

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

// An empty send overtakes an earlier one whose data is under way; the third must not take its
// order.
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
    ASSERT_TRUE(pair[0].interrupts());
    pair[0].drain();
    pair.settle();
    pair.cuts.clear();
    drain_ends_first ? pair[0].end_drain() : pair[0].end_interrupt();
    pair.settle();
    EXPECT_EQ(pair.cuts, Cuts());
    drain_ends_first ? pair[0].end_interrupt() : pair[0].end_drain();
    pair.settle();
    EXPECT_EQ(pair.cuts, (Cuts{{0, Action::Kind::kGoOn}, {1, Action::Kind::kGoOn}}));
  }
}

// An interrupt waits for the cut after one that has begun; the end of the first leaves the second.
TEST(Participant, AnInterruptAtRestBringsAnotherCut) {
  Pair pair;
  for (int i = 0; i < 2; ++i) {
    pair[0].interrupt();
    pair.settle();
  }
  EXPECT_EQ(pair.cuts.size(), 2u);
  pair[0].end_interrupt();
  pair.settle();
  EXPECT_TRUE(pair[0].interrupts());
  EXPECT_EQ(pair.cuts.size(), 6u);
  pair[0].end_interrupt();
  pair.settle();
  EXPECT_FALSE(pair[0].held());
  // One that is taken back before its cut leaves nothing.
  pair[1].drain();
  pair.settle();
  pair[0].interrupt();
  pair[0].end_interrupt();
  pair[1].end_drain();
  pair.settle();
  EXPECT_FALSE(pair[0].held());
}

TEST(Participant, RefusesASecondDepositOfANumber) {
  Pair pair;
  ASSERT_TRUE(pair[0].deposit(0, 1, collective(Op::kAllReduce, 1)).ok());
  ASSERT_TRUE(pair[0].deposit(0, 2, Call()).ok());
  for (const Number number : {1, 2}) {
    const core::Status status = pair[0].deposit(0, number, collective(Op::kAllReduce, 9));
    EXPECT_EQ(status.code(), core::Code::kAlreadyExists);
    EXPECT_EQ(status.message(),
              "group \"test\" #" + std::to_string(number) + ": rank 0 has deposited it already");
  }
}

// Two ranks on one daemon: a number that one of them has deposited is not announced yet.
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

// Both places have started an all_reduce of several segments.
constexpr std::int64_t kSegments = 8, kSegment = 65536;
void start_large(Pair& pair, Number numbers) {
  for (Number number = 1; number <= numbers; ++number) {
    pair.deposit(number, collective(Op::kAllReduce, 2 * kSegments * kSegment));
  }
  pair.settle();
}

TEST(Participant, RefusesCreditsThatLowerOrExceed) {
  Pair pair;
  start_large(pair, 1);
  Message credit = of(Kind::kCredit, 1);
  for (const std::int64_t end :
       {std::int64_t{-1}, std::int64_t{0}, std::int64_t{2}, kSegments + 1, std::int64_t{1} << 62}) {
    credit.range.end = end;
    EXPECT_FALSE(pair[1].receive(0, credit).ok()) << end;
  }
  credit.range.end = 4;
  EXPECT_TRUE(pair[1].receive(0, credit).ok());
  credit.range.end = 3;
  EXPECT_FALSE(pair[1].receive(0, credit).ok());
}

TEST(Participant, RefusesSegmentsWithoutCreditOrBeforeTheirTurn) {
  Pair pair;
  start_large(pair, 3);
  Message partial = of(Kind::kPartial, 1);
  partial.payload = kSegment * 4;
  // The first two have come.
  partial.range = {kSegments * kSegment + 2 * kSegment, kSegments * kSegment + 3 * kSegment};
  EXPECT_EQ(pair[1].expect(0, partial).status().message(),
            "collective: a peer sends a segment without a credit");
  partial.number = 3;
  partial.range = {kSegments * kSegment, kSegments * kSegment + kSegment};
  EXPECT_EQ(pair[1].expect(0, partial).status().message(),
            "collective: a peer sends a segment before its turn");
}

TEST(Participant, RefusesToHearOfWhatIsNotAnnounced) {
  Pair pair;
  start_large(pair, 1);
  for (const Number done : {Number{2}, ~Number{0}}) {
    Message message = of(Kind::kProgress, 0);
    message.done = done;
    EXPECT_FALSE(pair[0].receive(1, message).ok()) << done;
  }
  for (const Number announced : {Number{1 + Limits().ahead + 1}, ~Number{0}}) {
    Message vote = of(Kind::kVote, 1);
    vote.purpose = Purpose::kHold;
    vote.vote.announced = announced;
    EXPECT_FALSE(pair[0].receive(1, vote).ok()) << announced;
    EXPECT_FALSE(pair[0].held());
  }
}

TEST(Participant, RefusesTextsAndListsWithoutEnd) {
  Pair pair;
  Message vote = of(Kind::kVote, 1);
  vote.purpose = Purpose::kExplain;
  vote.vote.claims.resize(Vote::kClaims + 1);
  EXPECT_FALSE(pair[0].receive(1, vote).ok());
  vote.vote.claims.clear();
  vote.vote.failure.resize(kMaxText + 1);
  EXPECT_FALSE(pair[0].receive(1, vote).ok());
  vote.vote.failure.clear();
  vote.vote.code = static_cast<core::Code>(99);
  EXPECT_FALSE(pair[0].receive(1, vote).ok());
  EXPECT_EQ(pair[0].open(), 0u);
  Message query = of(Kind::kQuery, 1);
  EXPECT_TRUE(pair[0].receive(1, query).ok());
  EXPECT_FALSE(pair[0].receive(1, query).ok());
}

TEST(Participant, LongTextsOfItsOwnerAreShortened) {
  Pair pair;
  ASSERT_TRUE(
      pair[0].deposit(0, 1, Call(), {core::Code::kInternal, std::string(1 << 20, 'x')}).ok());
  ASSERT_TRUE(pair[1].deposit(1, 1, Call()).ok());
  pair.settle();
  EXPECT_EQ(pair.completed.size(), 2u);
  EXPECT_EQ(shortened("a\xc3\xa9", 2), "a");
}

TEST(Participant, RefusesOffersWithoutEnd) {
  Limits limits;
  limits.offers = 3;
  Pair pair(limits);
  Message offer = of(Kind::kOffer, 1);
  offer.vote.claims.resize(1);
  for (offer.tag = 1; offer.tag <= 3; ++offer.tag) EXPECT_TRUE(pair[1].receive(0, offer).ok());
  EXPECT_FALSE(pair[1].receive(0, offer).ok());
  offer.tag = 1;
  EXPECT_EQ(pair[1].receive(0, offer).message(), "collective: a peer sends an offer twice");
  EXPECT_EQ(pair[1].open(), 3u);
}

// More sends than may be offered wait for their turn.
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

// The group goes on before a daemon that restarted is connected with all others: a receive that
// accepts an offer of its earlier incarnation accepts it once more.
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
  pair[1].drain();  // nothing is under way that rest would wait for
  pair[0].drain();
  pair.settle();
  EXPECT_EQ(pair.cuts.size(), 2u);
}

TEST(Participant, RefusesToSendTheOperandOfAFailedSend) {
  Pair pair;
  ASSERT_TRUE(pair[0]
                  .deposit_point_to_point(0, 1, transfer(Op::kSend, 4),
                                          {core::Code::kResourceExhausted, "out of memory"})
                  .ok());
  EXPECT_FALSE(pair[0].receive(1, of(Kind::kAccept, 1)).ok());
}

// A barrier has no data: a place that sends some ends the epoch, and its staging is freed.
TEST(Participant, DataOfABarrierIsNotKept) {
  Pair pair;
  Message partial = of(Kind::kPartial, 1);
  partial.range = {0, 1};
  partial.payload = 4;
  for (int i = 0; i < 2; ++i) {
    const core::Result<Slice> at = pair[1].expect(0, partial);
    ASSERT_TRUE(at.ok());
    ASSERT_TRUE(pair[1].receive(0, partial, *at).ok());
  }
  EXPECT_FALSE(pair[1].expect(0, partial).ok());
  pair.deposit(1, Call());
  pair.settle();
  EXPECT_TRUE(pair[0].ended());
  EXPECT_TRUE(pair[1].ended());
  EXPECT_TRUE(pair.staging.empty());
}

TEST(Participant, APayloadThatComesAgainHasOneBuffer) {
  Pair pair;
  Message partial = of(Kind::kPartial, 1);
  partial.range = {0, 1};
  partial.payload = 4;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(pair[1].expect(0, partial).ok());
  pair.settle();
  EXPECT_EQ(pair.staging.size(), 1u);
  EXPECT_FALSE(pair[1].receive(0, partial, {{1, Buffer::Kind::kStaging, 7}, 0, 4}).ok());
  pair[1].lost(0, "is lost");
  pair.settle();
  EXPECT_TRUE(pair.staging.empty());
}

TEST(Participant, NothingHappensAfterTheEndOfTheEpoch) {
  Pair pair;
  ASSERT_TRUE(pair[0].deposit_point_to_point(0, 1, transfer(Op::kSend, 4)).ok());
  ASSERT_TRUE(pair[1].deposit_point_to_point(1, 2, transfer(Op::kRecv, 4)).ok());
  for (int i = 0; i < 4; ++i) pair.settle(true);
  pair[0].drain();
  for (int i = 0; i < 4; ++i) pair.settle(true);
  ASSERT_TRUE(pair[0].held());  // it would rest now, because no transfer is under way any more
  pair[0].lost(1, "is lost");
  (void)pair[0].take();
  pair[0].reduced(99);
  EXPECT_TRUE(pair[0].take().empty());
}

// A partial sum that does not fit its call ends the epoch in the middle of advance(), while several
// numbers are open.
TEST(Participant, TheEndOfTheEpochInTheMiddleOfEvents) {
  Pair pair;
  Message partial = of(Kind::kPartial, 1);
  partial.range = {0, 2};
  partial.payload = 8;
  const core::Result<Slice> at = pair[1].expect(0, partial);
  ASSERT_TRUE(at.ok());
  ASSERT_TRUE(pair[1].receive(0, partial, *at).ok());
  for (Number number = 1; number <= 9; ++number) {
    pair.deposit(number, collective(Op::kAllReduce, 1));
  }
  pair.settle();
  EXPECT_TRUE(pair[1].ended());
  EXPECT_EQ(pair.completed.size(), 18u);
  EXPECT_TRUE(pair.staging.empty());
}

TEST(Participant, RefusesAResultOutsideOfWhatIsKeptHere) {
  Pair pair;
  pair.deposit(1,
               collective(Op::kReduce, 2 * kSegment));  // to rank 0: rank 1 keeps the second half
  pair.settle();
  Message result = of(Kind::kFinal, 1);
  result.from = result.to = kNoRank;
  for (const Range range : {Range{0, 4}, Range{kSegment - 1, kSegment + 1},
                            Range{2 * kSegment - 1, 2 * kSegment + 1}, Range{-4, -1}}) {
    result.range = range;
    result.payload = range.size() * 4;
    EXPECT_FALSE(pair[1].expect(0, result).ok()) << range.begin;
  }
  result.range = {kSegment, kSegment + 4};
  result.payload = 16;
  EXPECT_TRUE(pair[1].expect(0, result).ok());
}

TEST(Participant, RefusesVotesOnCutsOfTheFuture) {
  Pair pair;
  Message vote = of(Kind::kVote, 3);
  for (const Purpose purpose : {Purpose::kHold, Purpose::kRest, Purpose::kRelease}) {
    vote.purpose = purpose;
    EXPECT_FALSE(pair[0].receive(1, vote).ok());
  }
  vote.number = 2;  // its sender may have gone on already
  EXPECT_TRUE(pair[0].receive(1, vote).ok());
}

TEST(Participant, RefusesStatesOfUnknownRanks) {
  Pair pair;
  ASSERT_TRUE(pair[0].deposit(0, 1, Call()).ok());
  Message state = of(Kind::kState, 1);
  state.vote.claims = {{1, 0, 1, "in a debugger"}, {2, 0, 1, "?"}};
  EXPECT_FALSE(pair[0].receive(1, state).ok());
  state.vote.claims.pop_back();
  EXPECT_TRUE(pair[0].receive(1, state).ok());
}

}  // namespace
}  // namespace teletensor::collective
