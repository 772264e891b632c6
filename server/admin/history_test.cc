#include "server/admin/history.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "server/testing.h"

namespace teletensor::server {
namespace {

using nlohmann::json;
using namespace std::chrono_literals;

class HistoryTest : public ::testing::Test {
 protected:
  void open(const std::string& user) {
    ClientInfo client;
    client.name = "n";
    client.user = user;
    client.attach_counter = 1;
    client.lease = std::chrono::seconds(600);
    ASSERT_TRUE(leases.open(client).ok());
  }
  json read(const Caller& caller, std::uint64_t since = 0) {
    return json::parse(history.json(caller, since));
  }

  testing::Books books;
  testing::FakeEngine engine{books};
  Leases leases{engine, {}};
  History history{leases, 0ms};  // Takes samples without a pause between them.
};

const Caller kAdmin{"root", Role::kAdmin};

TEST_F(HistoryTest, KeepsAnHourAndGivesWhatIsNew) {
  ASSERT_TRUE(testing::eventually([&] { return read(kAdmin)["first"] > 0; }));
  const json all = read(kAdmin);
  EXPECT_EQ(all["next"].get<std::uint64_t>() - all["first"].get<std::uint64_t>(),
            History::kSamples);
  for (const char* column : {"times", "queued"}) EXPECT_EQ(all[column].size(), History::kSamples);
  for (const json& device : all["devices"]) EXPECT_EQ(device["used"].size(), History::kSamples);
  EXPECT_LE(all["began"], all["times"][0]);
  // The first sample is kept unless an hour's number of samples is taken between two reads.
  ASSERT_TRUE(testing::eventually([&] {
    const std::uint64_t since = read(kAdmin)["next"];
    const json more = read(kAdmin, since);
    return more["first"] == since &&
           more["times"].size() == more["next"].get<std::uint64_t>() - since;
  }));
  // A sample number from an earlier daemon gives the whole history.
  EXPECT_EQ(read(kAdmin, 1ull << 60)["times"].size(), History::kSamples);
}

// A session of the fake engine uses one byte.
TEST_F(HistoryTest, AUserSeesTheOthersAsOneSum) {
  open("alice");
  open("alice");
  open("bob");
  const auto last = [](const json& of) { return of["memory"].back(); };
  ASSERT_TRUE(testing::eventually([&] {
    const json all = read(kAdmin);
    return all["users"].size() == 2 && last(all["users"][0]) == 2 && last(all["users"][1]) == 1;
  }));
  EXPECT_FALSE(read(kAdmin).contains("others"));
  const json of_bob = read({"bob", Role::kUser});
  ASSERT_EQ(of_bob["users"].size(), 1u);
  EXPECT_EQ(of_bob["users"][0]["name"], "bob");
  EXPECT_EQ(last(of_bob["others"]), 2);
  const json of_metrics = read({"bob", Role::kMetrics});
  EXPECT_TRUE(of_metrics["users"].empty());
  EXPECT_EQ(last(of_metrics["others"]), 3);
}

TEST_F(HistoryTest, ColoursDifferAsLongAsTheyLastAndStay) {
  std::set<int> colors;
  for (int i = 0; i < History::kColors; ++i) {
    colors.insert(history.color("user" + std::to_string(i)));
  }
  EXPECT_EQ(colors.size(), static_cast<std::size_t>(History::kColors));
  const int first = history.color("user0");
  const int more = history.color("one more");
  EXPECT_TRUE(more >= 0 && more < History::kColors);
  EXPECT_EQ(history.color("user0"), first);
  EXPECT_EQ(history.color("one more"), more);
}

}  // namespace
}  // namespace teletensor::server
