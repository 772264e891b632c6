// Tests of the order in which a shutdown writes sessions: users and sizes, and the waits for
// sessions that still run.
#include "server/state/write_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace teletensor::server {
namespace {

using std::chrono::milliseconds;
using Session = WriteOrder::Session;

constexpr std::uint64_t kMiB = 1 << 20, kGiB = 1 << 30;
const WriteOrder::Time kBegan{};

// The places of the sessions in the order of writing, if all can be written at once.
std::vector<std::size_t> order_of(const std::vector<Session>& sessions) {
  WriteOrder order(kBegan, milliseconds(1000));
  std::vector<Session> left = sessions;
  std::vector<std::size_t> result;
  while (!left.empty()) {
    const std::optional<std::size_t> chosen = order.choose(left, kBegan);
    if (!chosen) return {};
    const Session next = left[*chosen];
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(*chosen));
    order.charge(next.user, next.bytes);
    result.push_back(static_cast<std::size_t>(next.place));
  }
  return result;
}

TEST(WriteOrder, ASmallSessionComesBeforeLargeOnesWithAnEarlierPlace) {
  EXPECT_EQ(order_of({{nullptr, "mallory", kGiB, 0},
                      {nullptr, "mallory", 2 * kGiB, 1},
                      {nullptr, "alice", 8192, 2}}),
            (std::vector<std::size_t>{2, 0, 1}));
}

TEST(WriteOrder, AUserWithLessIsNotDelayedByTheSessionsOfAnother) {
  // Alice's session is larger than each one of mallory's.
  EXPECT_EQ(order_of({{nullptr, "mallory", 10 * kMiB, 0},
                      {nullptr, "mallory", 10 * kMiB, 1},
                      {nullptr, "mallory", 10 * kMiB, 2},
                      {nullptr, "alice", 15 * kMiB, 3}}),
            (std::vector<std::size_t>{0, 3, 1, 2}));
}

TEST(WriteOrder, ManyEmptySessionsAreNotFree) {
  std::vector<Session> sessions;
  for (int i = 0; i < 100; ++i) sessions.push_back({nullptr, "mallory", 0, i});
  sessions.push_back({nullptr, "alice", 3 * WriteOrder::kFile, 100});
  const std::vector<std::size_t> order = order_of(sessions);
  EXPECT_LE(std::ranges::find(order, 100u) - order.begin(), 4);
}

TEST(WriteOrder, ThePlaceDecidesBetweenEqualSessions) {
  EXPECT_EQ(order_of({{nullptr, "a", 100, 2}, {nullptr, "b", 100, 0}, {nullptr, "c", 100, 1}}),
            (std::vector<std::size_t>{0, 1, 2}));
}

TEST(WriteOrder, NoUserIsAheadOfAnotherByMoreThanTheNextSessionOfTheOther) {
  std::mt19937 random(1);
  const std::vector<std::string> users{"a", "b", "c", "d"};
  for (int round = 0; round < 200; ++round) {
    std::vector<Session> left;
    for (int i = 0; i < 64; ++i) {
      const std::uint64_t bytes = std::uint64_t{1} << (random() % 30);
      left.push_back({nullptr, users[random() % users.size()], bytes, i});
    }
    WriteOrder order(kBegan, milliseconds(0));
    std::map<std::string_view, std::uint64_t> written;
    while (!left.empty()) {
      const std::size_t at = order.choose(left, kBegan).value();
      const Session next = left[at];
      for (const Session& each : left) {
        EXPECT_LE(written[next.user] + next.bytes, written[each.user] + each.bytes);
      }
      order.charge(next.user, next.bytes);
      written[next.user] += next.bytes + WriteOrder::kFile;
      left.erase(left.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
}

TEST(WriteOrder, ALargeSessionWaitsForASmallOneThatRuns) {
  WriteOrder order(kBegan, milliseconds(1000));
  const int small = 0;
  order.expect({&small, "alice", 8192, 1});
  const std::vector<Session> ready{{nullptr, "mallory", 64 * kMiB, 0}};
  EXPECT_EQ(order.choose(ready, kBegan), std::nullopt);
  // Writing 64 MiB takes a quarter of a second at 256 MiB per second.
  EXPECT_EQ(order.choose(ready, kBegan + milliseconds(249)), std::nullopt);
  EXPECT_EQ(order.choose(ready, kBegan + milliseconds(250)), 0u);
  order.settle(&small);
  EXPECT_EQ(order.choose(ready, kBegan), 0u);
}

TEST(WriteOrder, AWaitIsBounded) {
  WriteOrder order(kBegan, milliseconds(1000));
  const int small = 0;
  order.expect({&small, "alice", 8192, 1});
  const std::vector<Session> ready{{nullptr, "mallory", 64 * kGiB, 0}};
  EXPECT_EQ(order.choose(ready, kBegan + milliseconds(999)), std::nullopt);
  EXPECT_EQ(order.choose(ready, kBegan + milliseconds(1000)), 0u);
}

TEST(WriteOrder, ASessionDoesNotWaitForALaterOne) {
  WriteOrder order(kBegan, milliseconds(1000));
  const int large = 0;
  order.expect({&large, "mallory", kGiB, 0});
  const std::vector<Session> ready{{nullptr, "alice", 64 * kMiB, 1}};
  EXPECT_EQ(order.choose(ready, kBegan), 0u);
}

TEST(WriteOrder, ASmallSessionIsWrittenWhileALargerOneWaits) {
  WriteOrder order(kBegan, milliseconds(1000));
  const int running = 0;
  order.expect({&running, "alice", 0, 0});
  const std::vector<Session> ready{{nullptr, "mallory", 64 * kMiB, 1}, {nullptr, "bob", 0, 2}};
  EXPECT_EQ(order.choose(ready, kBegan + WriteOrder::kShortestWait), 1u);
}

TEST(WriteOrder, ASessionThatRanIsNotOvertakenOnceItCanBeWritten) {
  WriteOrder order(kBegan, milliseconds(1000));
  const int small = 0;
  order.expect({&small, "alice", 8192, 9});
  std::vector<Session> ready;
  for (int i = 0; i < 5; ++i) ready.push_back({nullptr, "mallory", kGiB, i});
  const WriteOrder::Time late = kBegan + milliseconds(5000);
  EXPECT_EQ(order.choose(ready, late), 0u);
  order.charge("mallory", kGiB);
  order.settle(&small);
  ready.push_back({&small, "alice", 8192, 9});
  EXPECT_EQ(order.choose(ready, late), 5u);
}

TEST(WriteOrder, AnOlderImageOfARunningSessionIsWritten) {
  WriteOrder order(kBegan, milliseconds(1000));
  const int session = 0;
  order.expect({&session, "alice", 8192, 0});
  const std::vector<Session> ready{{&session, "alice", kGiB, 1}};
  EXPECT_EQ(order.choose(ready, kBegan), 0u);
}

TEST(WriteOrder, ARefundRestoresTheTurnOfAUser) {
  WriteOrder order(kBegan, milliseconds(0));
  order.charge("alice", kGiB);
  const std::vector<Session> ready{{nullptr, "alice", 1024, 0}, {nullptr, "bob", 4096, 1}};
  EXPECT_EQ(order.choose(ready, kBegan), 1u);
  order.refund("alice", kGiB);
  EXPECT_EQ(order.choose(ready, kBegan), 0u);
}

TEST(WriteOrder, NothingIsChosenIfNothingIsReady) {
  const WriteOrder order(kBegan, milliseconds(0));
  EXPECT_EQ(order.choose({}, kBegan), std::nullopt);
}

}  // namespace
}  // namespace teletensor::server
