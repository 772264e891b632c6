// Tests of the objects that a group epoch consists of: the operations of a rank, and the memory of
// open operations.
#include "engine/runtime/groups/group_memory.h"
#include "engine/runtime/groups/groups_kit_test.h"
#include "engine/runtime/groups/rank_operations.h"

namespace teletensor::runtime {
namespace {

using testing::Counted;
using Kind = RankOperations::Open::Kind;
using core::Code;
using core::Status;

constexpr std::chrono::milliseconds kTimeout{1000};

collective::Action transfer(std::uint64_t token, const Status& status, bool lost = false) {
  collective::Action action;
  action.kind = collective::Action::Kind::kComplete;
  action.token = token;
  action.status = status;
  action.lost = lost;
  action.rank = 3;
  return action;
}

TEST(RankOperations, AnOperationEndsOnceAndCallsItsWaiter) {
  RankOperations operations;
  RankOperations::Waiters met;
  Counted waiter;
  RankOperations::Open& open = operations.start(1, Kind::kCollective, kTimeout);
  open.number = 7;
  open.waiter = &waiter;
  EXPECT_TRUE(operations.waits());
  EXPECT_EQ(operations.open_after(6), 1u);
  EXPECT_EQ(operations.open_after(7), 0u);
  operations.finish_collective(8, {}, met);
  EXPECT_TRUE(met.empty());
  operations.finish_collective(7, {}, met);
  operations.finish_all(Status(Code::kAborted, "later"), met);
  EXPECT_EQ(met, RankOperations::Waiters{&waiter});
  EXPECT_FALSE(operations.waits());
  EXPECT_TRUE(operations.take(1).status.ok());
  EXPECT_TRUE(operations.all().empty());
}

TEST(RankOperations, AReceiveHasItsSender) {
  RankOperations operations;
  RankOperations::Waiters met;
  operations.start(1, Kind::kReceive, kTimeout).token = 5;
  operations.transferred(transfer(6, {}), met);
  EXPECT_TRUE(operations.waits());
  operations.transferred(transfer(5, {}), met);
  const Groups::Outcome outcome = operations.take(1);
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_EQ(outcome.sender, 3u);
}

TEST(RankOperations, AwaitingSendsEndsWithTheLastOne) {
  RankOperations operations;
  RankOperations::Waiters met;
  operations.await_sends(1, kTimeout);
  EXPECT_FALSE(operations.waits());  // Nothing was sent.
  operations.sends(5);
  operations.sends(6);
  operations.sends(7);
  operations.does_not_send(7);
  operations.await_sends(2, kTimeout);
  EXPECT_EQ(operations.oldest_send(), 5u);
  operations.transferred(transfer(5, {}), met);
  EXPECT_FALSE(operations.at(2).ended.has_value());
  operations.transferred(transfer(6, {}), met);
  EXPECT_TRUE(operations.take(2).status.ok());
}

TEST(RankOperations, ASendThatWasLostIsReportedOnce) {
  RankOperations operations;
  RankOperations::Waiters met;
  operations.sends(5);
  operations.transferred(transfer(5, Status(Code::kAborted, "rank 3 is lost"), true), met);
  operations.await_sends(1, kTimeout);
  EXPECT_EQ(operations.take(1).status.message(), "rank 3 is lost");
  operations.await_sends(2, kTimeout);
  EXPECT_TRUE(operations.take(2).status.ok());
}

TEST(RankOperations, DeadlinesCanBePostponed) {
  RankOperations operations;
  const auto deadline = operations.start(1, Kind::kBegin, kTimeout).deadline;
  EXPECT_EQ(deadline, operations.at(1).began + kTimeout);
  operations.postpone(std::chrono::seconds(5));
  EXPECT_EQ(operations.at(1).deadline, deadline + std::chrono::seconds(5));
}

class GroupMemoryTest : public testing::GroupsKit {
 protected:
  static collective::Buffer staging(std::uint64_t index) {
    return {1, collective::Buffer::Kind::kStaging, index};
  }
  GroupMemory memory_{adder_};
};

TEST_F(GroupMemoryTest, HeldMemoryOutlivesItsCollective) {
  const RowMajor operand = row({1, 2, 3});
  memory_.add(1, 0, {sum(3), operand, operand});
  memory_.reserve(staging(0), 64);
  GroupMemory::Held held;
  const collective::Slice part{{1, collective::Buffer::Kind::kOperand, 0}, 4, 8};
  const collective::Slice partial{staging(0), 8, 4};
  memory_.hold(part, held);
  memory_.hold(partial, held);
  memory_.hold(partial, held);  // Held once.
  memory_.free(staging(0));
  memory_.finished(1);
  EXPECT_EQ(held.at(part), operand.data() + 4);
  ASSERT_EQ(held.staging.size(), 1u);
  EXPECT_EQ(held.at(partial), static_cast<char*>(held.staging[0]->data()) + 8);
}

TEST_F(GroupMemoryTest, ALackOfMemoryIsRememberedUntilTheGroupKnows) {
  memory_.reserve(staging(0), 64);
  EXPECT_FALSE(memory_.lacks());
  adder_.has_memory = false;
  memory_.reserve(staging(1), 64);
  adder_.has_memory = true;
  memory_.reserve(staging(2), 64);
  EXPECT_TRUE(memory_.lacks());
  memory_.clear_lack();
  EXPECT_FALSE(memory_.lacks());
}

TEST_F(GroupMemoryTest, ATransferHasATokenOfItsOwn) {
  const auto first = memory_.add_transfer(2, nullptr), second = memory_.add_transfer(4, nullptr);
  EXPECT_NE(first, second);
  EXPECT_EQ(memory_.end_transfer(first), 2u);
  EXPECT_EQ(memory_.end_transfer(first), std::nullopt);
  EXPECT_TRUE(memory_.has_transfers());
  memory_.clear();
  EXPECT_FALSE(memory_.has_transfers());
}

}  // namespace
}  // namespace teletensor::runtime
