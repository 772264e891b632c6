// Tests which errors of the daemon PendingErrors raises. The daemon's answers come from the test.
#include "clients/session/pending_errors.h"

#include <gtest/gtest.h>

#include "clients/session/plain_session_test.h"

namespace teletensor::client {
namespace {

using core::Code;

class Client final : public PlainSession {
 public:
  using PlainSession::PlainSession;
  // What the postponed calls return when an error is about to be raised.
  void postpone(Status result) {
    watching = true;
    result_ = std::move(result);
  }
  void receive(Status error, std::uint64_t root) {
    wire::Progress message;
    message.number = ++number_;
    message.completed_upto = root;
    message.errors.push_back({root, std::move(error)});
    EXPECT_TRUE(stream().on_progress(wire::encode_progress(message)).ok());
  }

 protected:
  Status before_raise() override { return result_; }
  Status block(const std::function<bool()>&) override { return core::internal("no answer"); }

 private:
  Status result_;
  std::uint64_t number_ = 0;
};

class PendingErrorsTest : public testing::Test {
 protected:
  PendingErrorsTest() {
    EXPECT_TRUE(session_.constant(core::DType::kF32, {}, {}, std::string(4, '\0')).ok());
    session_.receive(core::invalid("the error of the daemon"), 1);
  }
  Code raised() { return session_.errors().raise().status.code(); }

  Client session_{SessionLimits()};
};

TEST_F(PendingErrorsTest, AnErrorIsRaisedOnce) {
  EXPECT_TRUE(session_.errors().any());
  EXPECT_EQ(raised(), Code::kInvalidArgument);
  EXPECT_EQ(raised(), Code::kOk);
}

// The postponed calls could not run: what they would have read is not known.
TEST_F(PendingErrorsTest, PostponedCallsThatAreInterruptedOrAbortedAreTheError) {
  for (const Code code : {Code::kCancelled, Code::kAborted}) {
    session_.postpone(Status(code, "a postponed call"));
    EXPECT_EQ(raised(), code);
    EXPECT_TRUE(session_.errors().any());
  }
}

TEST_F(PendingErrorsTest, PostponedCallsThatFailLeaveTheErrorThatCameFirst) {
  session_.postpone(core::internal("a postponed call"));
  EXPECT_EQ(raised(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace teletensor::client
