// Tests which frames SentFrames keeps, sends again and gives up for a replay.
#include "clients/session/frames/sent_frames.h"

#include <gtest/gtest.h>

namespace teletensor::client {
namespace {

constexpr std::size_t kRoom = 1 << 20;

// Adds frames whose last commands are 10, 20, ..., 10 * count.
void add_frames(SentFrames& frames, int count, std::size_t size = 1) {
  for (int i = 1; i <= count; ++i) {
    const auto number = static_cast<std::uint64_t>(i) * 10;
    frames.add({number, std::make_shared<const std::string>(size, static_cast<char>('0' + i))});
  }
}

std::string first_letters(const std::vector<FrameRef>& frames) {
  std::string letters;
  for (const FrameRef& frame : frames) letters += frame->front();
  return letters;
}

std::string repeated(SentFrames& frames) {
  std::vector<FrameRef> again;
  while (frames.repeats()) again.push_back(frames.repeat());
  return first_letters(again);
}

std::string taken(SentFrames& frames, std::uint64_t received_upto) {
  std::vector<FrameRef> newest_first;
  for (SentFrame& each : frames.take_after(received_upto)) newest_first.push_back(each.frame);
  return first_letters(newest_first);
}

TEST(SentFrames, FramesThatWereNotReceivedAreSentAgainInOrder) {
  SentFrames frames(true, kRoom);
  add_frames(frames, 4);
  frames.repeat_after(20);
  EXPECT_EQ(repeated(frames), "34");
  frames.repeat_after(25);  // The daemon received a part of the commands of the third frame.
  EXPECT_EQ(repeated(frames), "34");
  frames.repeat_after(40);
  EXPECT_FALSE(frames.repeats());
}

TEST(SentFrames, FramesThatHaveRunAreDroppedAndNotSentAgain) {
  SentFrames frames(true, kRoom);
  add_frames(frames, 4);
  frames.repeat_after(0);
  frames.confirm(35, 0);
  EXPECT_EQ(frames.dropped_upto(), 30u);
  EXPECT_EQ(first_letters(frames.unconfirmed()), "4");
  EXPECT_EQ(repeated(frames), "4");
}

TEST(SentFrames, RetainedFramesAreTakenForAReplayUntilASnapshotContainsThem) {
  SentFrames frames(true, kRoom);
  add_frames(frames, 4);
  frames.retain();
  frames.confirm(30, 0);
  EXPECT_EQ(frames.dropped_upto(), 0u);
  frames.confirm(30, 10);
  EXPECT_EQ(frames.dropped_upto(), 10u);
  EXPECT_EQ(taken(frames, 10), "432");
  EXPECT_TRUE(frames.unconfirmed().empty());
}

TEST(SentFrames, AReplayTakesOnlyFramesThatTheDaemonLacks) {
  SentFrames frames(true, kRoom);
  add_frames(frames, 4);
  frames.retain();
  frames.confirm(30, 0);
  EXPECT_EQ(taken(frames, 20), "43");
  EXPECT_EQ(taken(frames, 0), "21");
}

TEST(SentFrames, TheNewDaemonOfAReplayHasConfirmedNothing) {
  SentFrames frames(true, kRoom);
  add_frames(frames, 2);
  frames.retain();
  frames.confirm(20, 0);
  for (SentFrame& each : frames.take_after(0)) {
    if (each.last_seq == 10) frames.add(std::move(each));
  }
  frames.confirm(5, 0);
  EXPECT_EQ(first_letters(frames.unconfirmed()), "1");
}

TEST(SentFrames, TheOldestRetainedFramesAreDroppedWhenThereIsNoRoom) {
  SentFrames frames(true, 2500);
  add_frames(frames, 3, 1000);
  frames.retain();
  frames.confirm(30, 0);
  EXPECT_EQ(frames.dropped_upto(), 10u);
  EXPECT_EQ(taken(frames, 10), "32");
  // The room of the frames that were taken is free again.
  add_frames(frames, 2, 1000);
  frames.confirm(20, 0);
  EXPECT_EQ(taken(frames, 0), "21");
}

TEST(SentFrames, NoFrameIsKeptForASessionThatEndsWithItsStream) {
  SentFrames frames(false, kRoom);
  add_frames(frames, 2);
  frames.repeat_after(0);
  EXPECT_FALSE(frames.repeats());
  EXPECT_TRUE(frames.unconfirmed().empty());
}

}  // namespace
}  // namespace teletensor::client
