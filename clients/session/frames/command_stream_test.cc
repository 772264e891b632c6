// Tests CommandStream without a Stream: which transport receives frames, what messages change, and
// how the session ends.
#include "clients/session/frames/command_stream.h"

#include <gtest/gtest.h>

#include <string>

namespace teletensor::client {
namespace {

using core::Code;

SessionLimits limits() {
  SessionLimits limits;
  limits.keeps = true;
  limits.retained_bytes = 1 << 20;
  return limits;
}

class CommandStreamTest : public testing::Test {
 protected:
  void append(int commands) {
    for (int i = 0; i < commands; ++i) stream_.append(program::Command(program::Leave{1}), 0);
  }
  // The size of the next frame; 0 if there is none, -1 if the stream takes no more frames.
  int next(std::uint64_t number) {
    std::string frame;
    return stream_.next_frame(frame, 0, number) ? static_cast<int>(frame.size()) : -1;
  }
  core::Status receive(const wire::Progress& progress) {
    return stream_.on_progress(wire::encode_progress(progress));
  }
  static wire::Progress completed(std::uint64_t upto, std::uint64_t number) {
    wire::Progress progress;
    progress.completed_upto = upto;
    progress.number = number;
    return progress;
  }

  Recorder recorder_;
  CommandStream stream_{limits(), recorder_, [] {}};
};

TEST_F(CommandStreamTest, OnlyTheLatestStreamReceivesFrames) {
  EXPECT_EQ(stream_.take_up(1, 0), 1u);
  append(1);
  EXPECT_GT(next(1), 0);
  EXPECT_EQ(next(1), 0);
  EXPECT_EQ(stream_.take_up(2, 0), 2u);
  EXPECT_EQ(next(1), -1);
  EXPECT_GT(next(2), 0);
}

TEST_F(CommandStreamTest, AClosedSessionSendsItsRemainingFrames) {
  stream_.take_up(1, 0);
  append(1);
  stream_.close();
  EXPECT_TRUE(stream_.over());
  EXPECT_FALSE(stream_.takes_after(1));
  EXPECT_EQ(stream_.status().code(), Code::kUnavailable);
  EXPECT_GT(next(1), 0);
  EXPECT_EQ(next(1), -1);
  // The end of its stream is no loss.
  stream_.lost(core::internal("cut"));
  const core::MutexLock lock(stream_.mutex());
  EXPECT_TRUE(stream_.lost_status().ok());
}

TEST_F(CommandStreamTest, TheFirstLossIsReported) {
  stream_.lost(core::internal("first"));
  stream_.lost(core::internal("second"));
  EXPECT_EQ(stream_.status().message(), "first");
  EXPECT_EQ(next(0), -1);
}

TEST_F(CommandStreamTest, AMessageThatIsReceivedAgainChangesNothing) {
  wire::Progress message = completed(2, 1);
  message.errors.push_back({1, core::invalid("text")});
  EXPECT_TRUE(receive(message).ok());
  EXPECT_EQ(stream_.completed_upto(), 2u);
  EXPECT_EQ(stream_.progress_upto(), 1u);
  EXPECT_TRUE(stream_.received().errors.any());
  {
    const core::MutexLock lock(stream_.mutex());
    EXPECT_EQ(stream_.received().errors.take_all().size(), 1u);
  }
  EXPECT_TRUE(receive(message).ok());
  EXPECT_FALSE(stream_.received().errors.any());
}

TEST_F(CommandStreamTest, AFragileOrFailedCommandIsNotReplayed) {
  EXPECT_EQ(stream_.replay_from(), 1u);
  stream_.mark_fragile(3);
  EXPECT_EQ(stream_.replay_from(), 4u);
  wire::Progress message = completed(7, 1);
  message.errors.push_back({6, core::invalid("text")});
  EXPECT_TRUE(receive(message).ok());
  EXPECT_EQ(stream_.replay_from(), 7u);
}

TEST_F(CommandStreamTest, AReplayedCommandThatFailsEndsTheSession) {
  stream_.take_up(1, 0);
  stream_.retain();
  append(2);
  EXPECT_GT(next(1), 0);
  EXPECT_TRUE(receive(completed(2, 1)).ok());
  EXPECT_EQ(stream_.replay(2, 0, 100, 1 << 20, 0), 2u);
  EXPECT_GT(next(2), 0);
  wire::Progress message = completed(2, 2);
  message.errors.push_back({1, core::invalid("text")});
  EXPECT_FALSE(receive(message).ok());
  EXPECT_TRUE(stream_.over());
  EXPECT_NE(stream_.status().message().find("[rollback]"), std::string::npos);
}

}  // namespace
}  // namespace teletensor::client
