#include "server/session/stream_shares.h"

#include <gtest/gtest.h>

#include <deque>

namespace teletensor::server {
namespace {

using Kind = StreamShares::Kind;

class StreamSharesTest : public ::testing::Test {
 protected:
  // Opens streams of the user until one is refused; returns how many were opened. Each session has
  // at most `each` of them.
  std::size_t fill(const std::string& user, Kind kind, std::size_t each = 100) {
    std::size_t opened = 0;
    while (true) {
      if (opened % each == 0) ++session;
      auto place = shares.enter(user, session, kind);
      if (!place.ok()) {
        refusal = place.status();
        return opened;
      }
      places.push_back(std::move(*place));
      ++opened;
    }
  }

  StreamShares shares{1024};
  std::deque<StreamShares::Place> places;
  std::uint64_t session = 0;
  core::Status refusal;
};

TEST_F(StreamSharesTest, AUserHasAThirdOfWhatTransfersMayUse) {
  EXPECT_EQ(fill("mallory", Kind::kTransfer), 256u);
  EXPECT_EQ(refusal.code(), core::Code::kResourceExhausted);
  EXPECT_EQ(refusal.message(), "too many streams: user mallory may have 256 now");
  EXPECT_EQ(fill("alice", Kind::kTransfer), 171u);
}

TEST_F(StreamSharesTest, EveryFurtherUserFindsStreams) {
  for (const char* user : {"a", "b", "c", "d", "e", "f", "g", "h"}) {
    EXPECT_GT(fill(user, Kind::kTransfer), 8u) << user;
  }
  EXPECT_TRUE(shares.enter("z", 1000, Kind::kRun).ok());
}

TEST_F(StreamSharesTest, TransfersLeaveAQuarterToRun) {
  for (int user = 0; user < 100; ++user) fill(std::to_string(user), Kind::kTransfer);
  EXPECT_LE(places.size(), 768u);
  EXPECT_GE(fill("late", Kind::kRun, 1), 256u);
  EXPECT_EQ(refusal.message(), "too many streams of all users");
}

TEST_F(StreamSharesTest, AUserMayHaveASessionForEachStream) {
  EXPECT_EQ(fill("alice", Kind::kRun, 1), 1024u);
}

TEST_F(StreamSharesTest, ASessionHasAFewRunStreams) {
  EXPECT_EQ(fill("mallory", Kind::kRun), 8u);
  EXPECT_EQ(refusal.message(), "too many streams: a session may have 8 now");
}

TEST_F(StreamSharesTest, ASessionHasAnEighthForItsTransfers) {
  EXPECT_EQ(fill("mallory", Kind::kTransfer, 1000), 128u);
  EXPECT_EQ(refusal.message(), "too many streams: a session may have 128 now");
  EXPECT_TRUE(shares.enter("mallory", session, Kind::kRun).ok());
  EXPECT_TRUE(shares.enter("mallory", session + 1, Kind::kTransfer).ok());
}

TEST_F(StreamSharesTest, StreamsThatEndAreFreeAgain) {
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(fill("mallory", Kind::kTransfer), 256u);
    EXPECT_EQ(fill("alice", Kind::kTransfer), 171u);
    places.clear();
  }
}

}  // namespace
}  // namespace teletensor::server
