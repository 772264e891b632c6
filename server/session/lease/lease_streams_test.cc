#include "server/session/lease/lease_streams.h"

#include <gtest/gtest.h>

namespace teletensor::server {
namespace {

using core::Code;
using Arrival = LeaseStreams::Arrival;

class Call final : public LeaseCall {
 public:
  void lease_ended(const Ending&) override {}
  void abandon() override {}
};

class LeaseStreamsTest : public ::testing::Test {
 protected:
  static ClientInfo process() {
    ClientInfo client;
    client.instance = "process";
    client.attach_counter = 1;
    client.lease = std::chrono::seconds(600);
    return client;
  }
  static wire::Frame frame(std::uint64_t seq, std::uint64_t attach) {
    wire::Frame made;
    made.first_seq = seq;
    made.attach_counter = attach;
    made.commands.emplace_back(program::Fetch{1, false});
    return made;
  }
  core::Status attach(const AttachCall& call) {
    return streams.attach(call, saved, &word).status();
  }

  ClientInfo client = process();
  Outbox outbox{{}, true, 1};
  LeaseStreams streams{client, outbox};
  SavedFile saved;
  std::string word;
  std::shared_ptr<Call> one = std::make_shared<Call>(), two = std::make_shared<Call>();
};

TEST_F(LeaseStreamsTest, TheLeaseHasOneRunStreamForEachAttach) {
  EXPECT_FALSE(streams.attached());
  ASSERT_TRUE(streams.join(one, 1).ok());
  EXPECT_TRUE(streams.attached());
  EXPECT_EQ(streams.join(two, 1).code(), Code::kAlreadyExists);
  EXPECT_EQ(streams.join(two, 2).code(), Code::kFailedPrecondition);
  EXPECT_TRUE(streams.join(two, std::nullopt).ok());  // An upload, for example.
  EXPECT_EQ(streams.calls().size(), 2u);
  EXPECT_EQ(streams.run(), one);
}

TEST_F(LeaseStreamsTest, AFrameIsNewOnceAndOccupiesTheStream) {
  ASSERT_TRUE(streams.join(one, 1).ok());
  EXPECT_EQ(*streams.arrive(one.get(), frame(1, 1), 10), Arrival::kNew);
  EXPECT_FALSE(streams.readable());
  streams.consumed();
  EXPECT_EQ(*streams.arrive(one.get(), frame(1, 1), 10), Arrival::kKnown);
  EXPECT_TRUE(streams.readable());
  EXPECT_EQ(streams.arrive(one.get(), frame(2, 2), 10).status().code(), Code::kFailedPrecondition);
}

TEST_F(LeaseStreamsTest, FramesOfAReplacedStreamAreIgnored) {
  ASSERT_TRUE(streams.join(one, 1).ok());
  const auto attached = streams.attach({"process", 2, 0, 0, 0, 0}, saved, &word);
  ASSERT_TRUE(attached.ok()) << attached.status().message();
  EXPECT_EQ(attached->older, one);
  EXPECT_EQ(*streams.arrive(one.get(), frame(1, 1), 10), Arrival::kReplaced);
  ASSERT_TRUE(streams.join(two, 2).ok());
  EXPECT_EQ(*streams.arrive(two.get(), frame(1, 2), 10), Arrival::kNew);
  EXPECT_TRUE(streams.detach(one.get()));  // Changes nothing.
  EXPECT_TRUE(streams.attached());
}

TEST_F(LeaseStreamsTest, AttachIsRefusedToOthersAndToLateCalls) {
  EXPECT_EQ(attach({"another", 2, 0, 0, 0, 0}).code(), Code::kPermissionDenied);
  EXPECT_EQ(attach({"process", 1, 0, 0, 0, 0}).code(), Code::kFailedPrecondition);
  EXPECT_EQ(attach({"process", 2, 0, 1, 0, 0}).code(), Code::kInvalidArgument);
  EXPECT_TRUE(attach({"process", 2, 0, 0, 0, 0}).ok());
}

TEST_F(LeaseStreamsTest, ARestoredLeaseWaitsForAttach) {
  outbox.restore({}, 5, 5);
  streams.restore(3, {7, false});
  EXPECT_EQ(streams.wants_attach().code(), Code::kUnavailable);
  EXPECT_EQ(streams.join(one, 3, &word).code(), Code::kUnavailable);
  EXPECT_EQ(word, "restart");
  ASSERT_TRUE(attach({"process", 4, 0, 5, 7, 0}).ok());
  EXPECT_TRUE(streams.wants_attach().ok());
  EXPECT_TRUE(streams.join(one, 4).ok());
}

TEST_F(LeaseStreamsTest, AClientThatIsAheadOfASnapshotReplaysOrIsRolledBack) {
  outbox.restore({}, 5, 5);
  streams.restore(3, {7, false});
  saved.set_failure("the disk is full");
  const core::Status refused = attach({"process", 4, 0, 6, 7, 0});
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_EQ(word, "rollback");
  EXPECT_NE(refused.message().find("the disk is full"), std::string::npos);
  EXPECT_FALSE(attach({"process", 4, 0, 6, 8, 6}).ok());  // An upload is missing.
  const auto attached = streams.attach({"process", 4, 0, 6, 7, 6}, saved, &word);
  ASSERT_TRUE(attached.ok());
  EXPECT_TRUE(attached->reply.replay);
}

TEST_F(LeaseStreamsTest, ASessionWithSharedTensorsIsNotReplayed) {
  outbox.restore({}, 5, 5);
  streams.restore(3, {7, true});
  EXPECT_FALSE(attach({"process", 4, 0, 6, 7, 6}).ok());
  EXPECT_EQ(word, "rollback");
}

TEST_F(LeaseStreamsTest, TheFirstReasonOfAnEndCounts) {
  ASSERT_TRUE(streams.join(one, 1).ok());
  const auto calls = streams.end({core::Status(Code::kAborted, "killed"), "killed"});
  ASSERT_TRUE(calls.has_value());
  EXPECT_EQ(calls->size(), 1u);
  EXPECT_FALSE(streams.end({core::Status(Code::kCancelled, "closed"), "closed"}).has_value());
  EXPECT_EQ(streams.ended_status().message(), "killed");
  EXPECT_TRUE(streams.over());
  EXPECT_EQ(streams.join(two, std::nullopt, &word).message(), "killed");
  EXPECT_EQ(word, "killed");
  EXPECT_EQ(streams.detached_since(), Clock::time_point{});
}

TEST_F(LeaseStreamsTest, WithoutALeaseTermTheStreamIsTheLast) {
  client.lease = std::chrono::seconds(0);
  ASSERT_TRUE(streams.join(one, 1).ok());
  EXPECT_FALSE(streams.detach(one.get()));
  EXPECT_EQ(attach({"process", 2, 0, 0, 0, 0}).code(), Code::kFailedPrecondition);
}

}  // namespace
}  // namespace teletensor::server
