// Tests when Outgoing has frames to send, within the credits, and what it sends again.
#include "clients/session/frames/outgoing.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace teletensor::client {
namespace {

// Frames of two commands.
SessionLimits limits() {
  SessionLimits limits;
  limits.keeps = true;
  limits.retained_bytes = 1 << 20;
  limits.frame.commands = 2;
  return limits;
}

struct Fixture {
  explicit Fixture(const SessionLimits& limits = client::limits()) : outgoing(limits, recorder) {}

  void append(int commands) {
    for (int i = 0; i < commands; ++i) outgoing.append(program::Command(program::Leave{1}), 0);
  }
  wire::Frame take() {
    wire::Frame frame;
    EXPECT_TRUE(outgoing.sendable());
    EXPECT_TRUE(reader.read(*outgoing.take(), frame).ok());
    return frame;
  }
  // The first commands of the frames that are sendable.
  std::vector<std::uint64_t> take_all() {
    std::vector<std::uint64_t> firsts;
    while (outgoing.sendable()) firsts.push_back(take().first_seq);
    return firsts;
  }

  Recorder recorder;
  Outgoing outgoing;
  wire::FrameReader reader;
};

using Seqs = std::vector<std::uint64_t>;

TEST(Outgoing, FramesAreTakenInOrderAndTheLastOneIncomplete) {
  Fixture f;
  EXPECT_FALSE(f.outgoing.sendable());
  EXPECT_TRUE(f.outgoing.empty());
  f.append(2);
  EXPECT_FALSE(f.outgoing.whole_frame());
  f.append(3);
  EXPECT_TRUE(f.outgoing.whole_frame());
  EXPECT_EQ(f.take_all(), (Seqs{1, 3, 5}));
  EXPECT_TRUE(f.outgoing.empty());
}

TEST(Outgoing, TheCreditsForCommandsBoundWhatIsIssuedAndSent) {
  SessionLimits few = limits();
  few.credit_upto = 100;
  Fixture f(few);
  EXPECT_TRUE(f.outgoing.has_room(36));
  EXPECT_FALSE(f.outgoing.has_room(37));
  wire::Progress progress;
  progress.credit_upto = 101;
  f.outgoing.confirm(progress);
  EXPECT_TRUE(f.outgoing.has_room(37));
  progress.credit_upto = 50;  // An older message does not lower the credits.
  f.outgoing.confirm(progress);
  EXPECT_TRUE(f.outgoing.has_room(37));
}

TEST(Outgoing, AFrameThatExceedsTheCreditsForBytesWaits) {
  SessionLimits few = limits();
  few.credit_bytes = 1;
  Fixture f(few);
  f.append(1);
  EXPECT_FALSE(f.outgoing.sendable());
  EXPECT_FALSE(f.outgoing.empty());
  wire::Progress progress;
  progress.credit_bytes = 1 << 20;
  f.outgoing.confirm(progress);
  EXPECT_EQ(f.take_all(), Seqs{1});
}

TEST(Outgoing, AFrameAcknowledgesTheLastMessageWhichCountsOnce) {
  Fixture f;
  EXPECT_TRUE(f.outgoing.acknowledge(7, 10));
  EXPECT_FALSE(f.outgoing.acknowledge(7, 10));
  EXPECT_FALSE(f.outgoing.sendable());
  f.append(1);
  EXPECT_EQ(f.take().ack_upto, 7u);
  // Many bytes are acknowledged without commands.
  EXPECT_TRUE(f.outgoing.acknowledge(8, (1 << 20) + 1));
  const wire::Frame frame = f.take();
  EXPECT_EQ(frame.ack_upto, 8u);
  EXPECT_TRUE(frame.commands.empty());
  EXPECT_FALSE(f.outgoing.sendable());
}

TEST(Outgoing, ANewStreamTakesFramesAgainThatTheDaemonHasNotReceived) {
  Fixture f;
  f.append(5);
  EXPECT_EQ(f.take_all(), (Seqs{1, 3, 5}));
  f.outgoing.repeat(2, 2);
  EXPECT_TRUE(f.outgoing.whole_frame());
  EXPECT_EQ(f.take_all(), (Seqs{3, 5}));
  f.append(1);
  EXPECT_EQ(f.take().attach_counter, 2u);
}

TEST(Outgoing, AReplayTakesFramesThatHaveRunWithinTheNewCredits) {
  Fixture f;
  f.outgoing.sent().retain();
  f.append(5);
  EXPECT_EQ(f.take_all(), (Seqs{1, 3, 5}));
  wire::Progress progress;
  progress.completed_upto = 5;
  f.outgoing.confirm(progress);
  f.outgoing.replay(2, 2, 4, 1 << 20, 0);
  EXPECT_EQ(f.take_all(), Seqs{3});
  progress.credit_upto = 5;
  f.outgoing.confirm(progress);
  EXPECT_EQ(f.take_all(), Seqs{5});
}

TEST(Outgoing, FramesThatWaitAndAreTooLargeTogetherLeaveNoRoom) {
  SessionLimits many = limits();
  many.frame.commands = 1;
  Fixture f(many);
  const std::string megabyte(1 << 20, 'x');
  int appended = 0;
  for (; f.outgoing.has_room(0) && appended < 100; ++appended) {
    f.outgoing.append(program::Command(program::Define{1, megabyte}), 0);
  }
  EXPECT_EQ(appended, 33);  // 32 MiB in full frames, and one that is being filled.
  (void)f.outgoing.take();
  EXPECT_TRUE(f.outgoing.has_room(0));
}

}  // namespace
}  // namespace teletensor::client
