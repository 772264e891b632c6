// Tests that messages which no daemon of this version sends are refused with a status.
#include "engine/collective/participant_test.h"

namespace teletensor::collective {
namespace {

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
  EXPECT_FALSE(pair[0].epoch_end().ended());
}

// Lets both places start an all_reduce of several segments.
constexpr std::int64_t kSegments = 8, kSegment = Limits().segment / 4;
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
  // The first two segments have arrived.
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
    EXPECT_FALSE(pair[0].cut().holding());
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

TEST(Participant, RefusesToSendTheOperandOfAFailedSend) {
  Pair pair;
  ASSERT_TRUE(pair[0]
                  .deposit_point_to_point(0, 1, transfer(Op::kSend, 4),
                                          {core::Code::kResourceExhausted, "out of memory"})
                  .ok());
  EXPECT_FALSE(pair[0].receive(1, of(Kind::kAccept, 1)).ok());
}

// A barrier has no data: data from a place ends the epoch, and its staging is freed.
TEST(Participant, DataOfABarrierIsNotKept) {
  Pair pair;
  const Message partial = partial_sums(1);
  for (int i = 0; i < 2; ++i) {
    const core::Result<Slice> at = pair[1].expect(0, partial);
    ASSERT_TRUE(at.ok());
    ASSERT_TRUE(pair[1].receive(0, partial, *at).ok());
  }
  EXPECT_FALSE(pair[1].expect(0, partial).ok());
  pair.deposit(1, Call());
  pair.settle();
  EXPECT_TRUE(pair[0].epoch_end().ended());
  EXPECT_TRUE(pair[1].epoch_end().ended());
  EXPECT_TRUE(pair.staging.empty());
}

// A collective fails while its payload is being received.
TEST(Participant, APayloadOfAFailedNumberIsFreed) {
  Pair pair;
  const Message partial = partial_sums(1);
  const core::Result<Slice> at = pair[1].expect(0, partial);
  ASSERT_TRUE(at.ok());
  ASSERT_TRUE(pair[0].deposit(0, 1, Call(), {core::Code::kInternal, "failed"}).ok());
  ASSERT_TRUE(pair[1].deposit(1, 1, Call()).ok());
  pair.settle();
  EXPECT_EQ(pair.completed.size(), 2u);
  EXPECT_EQ(pair.staging.size(), 1u);
  EXPECT_TRUE(pair[1].receive(0, partial, *at).ok());
  pair.settle();
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
  for (const Purpose purpose :
       {Purpose::kHold, Purpose::kLower, Purpose::kRest, Purpose::kRelease}) {
    vote.purpose = purpose;
    EXPECT_FALSE(pair[0].receive(1, vote).ok());
  }
  vote.number = 2;  // its sender may already be at the next collective
  EXPECT_TRUE(pair[0].receive(1, vote).ok());
}

TEST(Participant, RefusesACutBeforeACollectiveThatHasFinished) {
  Pair pair;
  pair.deposit(1, collective(Op::kBarrier, 0));
  pair.settle();
  ASSERT_EQ(pair[0].finished(), 1u);
  ASSERT_TRUE(pair[0].deposit(0, 2, collective(Op::kAllReduce, 4)).ok());
  Message vote = of(Kind::kVote, 1);
  vote.purpose = Purpose::kLower;
  vote.vote.done = 0;
  EXPECT_FALSE(pair[0].receive(1, vote).ok());
  vote.vote.done = 1;
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
