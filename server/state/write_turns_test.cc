// Tests of the turns of users at the snapshot writer, with a clock that only writing advances.
#include "server/state/write_turns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace teletensor::server {
namespace {

// Writes what waits, one session after the other.
class Writer {
 public:
  void add(const std::string& user, double seconds) {
    turns_.enter(user);
    waiting_[user].push_back(seconds);
  }
  // Writes one session and returns its user.
  std::string write() {
    const std::string user = turns_.next();
    const double seconds = waiting_[user].front();
    waiting_[user].pop_front();
    turns_.begin(user);
    turns_.end(user, seconds);
    used_[user] += seconds;
    return user;
  }
  std::string write(int count) {
    std::string users;
    for (int i = 0; i < count; ++i) users += write();
    return users;
  }
  double used(const std::string& user) { return used_[user]; }

 private:
  WriteTurns turns_;
  std::map<std::string, std::deque<double>> waiting_;
  std::map<std::string, double> used_;
};

TEST(WriteTurns, AUserWithOneSessionWaitsForOneOfAnotherUser) {
  Writer writer;
  for (int i = 0; i < 5; ++i) writer.add("m", 2);
  EXPECT_EQ(writer.write(), "m");
  writer.add("z", 0.01);
  EXPECT_EQ(writer.write(5), "zmmmm");
}

TEST(WriteTurns, ASessionThatIsAlwaysAskedForAgainKeepsNobodyWaiting) {
  Writer writer;
  for (int i = 0; i < 3; ++i) writer.add("m", 2);
  for (int round = 0; round < 100; ++round) {
    ASSERT_EQ(writer.write(), "m");
    writer.add("m", 2);
    writer.add("z", 0.01);
    ASSERT_EQ(writer.write(), "z") << round;
  }
}

TEST(WriteTurns, UsersGetEqualTimeWhateverTheirSizes) {
  std::mt19937 random(1);
  std::exponential_distribution<double> small(10), large(1);
  Writer writer;
  for (int i = 0; i < 8; ++i) writer.add("small", small(random));
  writer.add("large", large(random));
  double longest = 0;
  for (int i = 0; i < 5000; ++i) {
    const std::string user = writer.write();
    const double next = user == "large" ? large(random) : small(random);
    longest = std::max(longest, next);
    writer.add(user, next);
    // The known bound of this scheme: the sum of the longest session of each user.
    ASSERT_LE(std::abs(writer.used("large") - writer.used("small")), 2 * longest);
  }
}

TEST(WriteTurns, NobodySavesUpTurns) {
  Writer writer;
  writer.add("a", 1);
  for (int i = 0; i < 50; ++i) writer.add("m", 1);
  writer.write(20);  // The first session of a, and nineteen of m.
  for (int i = 0; i < 10; ++i) writer.add("a", 1);
  const std::string users = writer.write(10);
  EXPECT_LE(std::ranges::count(users, 'a'), 6) << users;
  EXPECT_GE(std::ranges::count(users, 'a'), 4) << users;
}

TEST(WriteTurns, AfterAPauseAllUsersAreEqual) {
  Writer writer;
  writer.add("m", 100);
  writer.write();
  writer.add("m", 1);
  writer.add("m", 1);
  writer.add("z", 1);
  writer.add("z", 1);
  const std::string users = writer.write(4);
  EXPECT_TRUE(users == "mzmz" || users == "mzzm") << users;
}

}  // namespace
}  // namespace teletensor::server
