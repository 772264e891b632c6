#include "engine/collective/exchange/point_to_point.h"

#include <gtest/gtest.h>

namespace teletensor::collective {
namespace {

// The receiving daemon has all data and restarts before the sender is informed.
TEST(PointToPoint, ASendWhoseEndIsLostWithADaemonIsOfferedAgain) {
  const Group group(2, {{0}, {1}});
  const Limits limits;
  Outbox out(2);
  PointToPoint sender(group, 0, limits, out, {});
  Call call;
  call.op = Op::kSend;
  call.shape = {8};
  call.count = 8;
  call.peer = 1;
  constexpr std::uint64_t kToken = 7;
  const auto kinds = [&] {
    std::vector<Kind> sent;
    for (const Action& action : out.take()) {
      if (action.kind == Action::Kind::kSend) sent.push_back(action.message.kind);
      if (action.kind == Action::Kind::kComplete) {
        EXPECT_EQ(action.token, kToken);
      }
    }
    return sent;
  };
  const auto answer = [](Kind kind) {
    Message message;
    message.kind = kind;
    message.from = 0;
    message.to = 1;
    message.number = 1;
    return message;
  };
  sender.deposit(0, kToken, call, {});
  EXPECT_EQ(kinds(), std::vector<Kind>{Kind::kOffer});
  sender.hold(true);
  EXPECT_TRUE(sender.at_rest());
  ASSERT_TRUE(sender.receive(1, answer(Kind::kAccept)).ok());
  EXPECT_EQ(kinds(), std::vector<Kind>{Kind::kData});
  EXPECT_FALSE(sender.at_rest());
  sender.restarted(1);
  EXPECT_TRUE(sender.at_rest());
  sender.hold(false);
  EXPECT_EQ(kinds(), std::vector<Kind>{Kind::kOffer});
  ASSERT_TRUE(sender.receive(1, answer(Kind::kDone)).ok());
  EXPECT_EQ(sender.open(), 0u);
}

}  // namespace
}  // namespace teletensor::collective
