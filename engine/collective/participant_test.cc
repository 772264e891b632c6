// What a peer's malformed messages, and unusual orders of good ones, do to a Participant.
#include "engine/collective/participant.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>

namespace teletensor::collective {
namespace {

// Two daemons with a rank each, over a network that neither delays nor loses.
class Pair {
 public:
  Pair() : group_(2, {{0}, {1}}) {
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
        for (Action& action : at_[place]->take()) {
          if (action.kind == Action::Kind::kComplete) completed.push_back({place, action.token});
          if (action.kind == Action::Kind::kSend) wire_.push_back({place, action.message});
        }
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
  std::vector<std::pair<Place, std::uint64_t>> completed;

 private:
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
  Call call;
  call.op = Op::kAllReduce;
  call.count = 1;
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

}  // namespace
}  // namespace teletensor::collective
