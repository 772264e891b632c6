#include "server/session/leases/lease_table.h"

#include <gtest/gtest.h>

#include "server/session/leases/leases.h"
#include "server/testing.h"
#include "teletensor/v1/state.pb.h"

namespace teletensor::server {
namespace {

using core::Code;

Limits limits() {
  Limits limits;
  limits.sessions = 3;
  limits.users["ann"].sessions = 2;
  return limits;
}

class LeaseTableTest : public ::testing::Test {
 protected:
  LeaseRef lease(const std::string& token, std::uint64_t id = 1, const std::string& user = "ann") {
    ClientInfo client;
    client.name = "n";
    client.named = true;
    client.user = user;
    client.id = id;
    return leases.make(token, "ticket", client);
  }

  testing::Books books;
  testing::FakeEngine engine{books};
  Leases leases{engine, limits()};
  const Limits bounds = limits();
  MovedSessions moved;
  LeaseTable table{bounds, moved};
};

TEST_F(LeaseTableTest, AReservedPlaceCountsAsASession) {
  auto one = table.reserve("ann");
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one->number, 1u);
  {
    const auto two = table.reserve("ann");
    ASSERT_TRUE(two.ok());
    EXPECT_TRUE(table.full("ann"));
    EXPECT_EQ(table.reserve("ann").status().code(), Code::kResourceExhausted);
    EXPECT_FALSE(table.full("bob"));
  }
  EXPECT_FALSE(table.full("ann"));
  ASSERT_TRUE(table.add(lease("a"), std::move(*one)).ok());
  EXPECT_FALSE(table.full("ann"));  // The place is not counted beside its session.
  EXPECT_EQ(table.opened(), 2u);
}

TEST_F(LeaseTableTest, NoSessionIsAddedAfterClose) {
  auto place = table.reserve("ann");
  ASSERT_TRUE(place.ok());
  table.close();
  EXPECT_EQ(table.add(lease("a"), std::move(*place)).code(), Code::kUnavailable);
  EXPECT_EQ(table.admit(lease("b")).code(), Code::kUnavailable);
  EXPECT_EQ(table.reserve("ann").status().code(), Code::kUnavailable);
  EXPECT_TRUE(table.all().empty());
  // The session exists already and must be written to a file.
  EXPECT_EQ(table.add_taken_over(lease("c")).code(), Code::kUnavailable);
  EXPECT_EQ(table.all().size(), 1u);
}

TEST_F(LeaseTableTest, NewSessionsCanBeRefused) {
  table.refuse_new("the machine is to be repaired");
  EXPECT_EQ(table.check_room("ann").code(), Code::kFailedPrecondition);
  EXPECT_TRUE(table.admit(lease("a")).ok());
  table.refuse_new("");
  EXPECT_TRUE(table.check_room("ann").ok());
}

TEST_F(LeaseTableTest, ARemovedLeaseLeavesItsReason) {
  const LeaseRef ended = lease("a");
  ASSERT_TRUE(table.admit(ended).ok());
  EXPECT_EQ(table.admit(lease("a")).code(), Code::kInvalidArgument);
  std::vector<LeaseRef> kept;
  const auto keep = [&](LeaseRef each) { kept.push_back(std::move(each)); };
  table.remove(*ended, {core::Status(Code::kAborted, "ended by root"), "killed"}, keep);
  table.remove(*ended, {core::Status(Code::kAborted, "again"), "again"}, keep);
  EXPECT_EQ(kept, std::vector{ended});
  std::string word;
  EXPECT_EQ(table.find("a", &word).status().code(), Code::kAborted);
  EXPECT_EQ(word, "killed");
  EXPECT_EQ(table.find("b", &word).status().code(), Code::kNotFound);
  EXPECT_EQ(word, "unknown");
  ASSERT_TRUE(moved.expect("b", "ann", "m"));
  EXPECT_EQ(table.find("b", &word).status().code(), Code::kUnavailable);
  EXPECT_EQ(word, "arriving");
}

TEST_F(LeaseTableTest, RestoredSessionsKeepTheirNumbers) {
  EXPECT_EQ(table.claim_number(7), 7u);
  EXPECT_EQ(table.claim_number(0), 8u);
  ASSERT_TRUE(table.admit(lease("a", 7)).ok());
  EXPECT_EQ(table.claim_number(7), 9u);
  EXPECT_EQ(table.find_id(7)->token, "a");
  EXPECT_EQ(table.find_name("ann", "n")->token, "a");
  EXPECT_EQ(table.find_name("bob", "n"), nullptr);
}

TEST_F(LeaseTableTest, ANameIsRefusedAsLongAsTheReasonHolds) {
  v1::SavedHead head;
  head.set_token("a");
  head.set_user("ann");
  head.set_name("n");
  head.set_named(true);
  bool holds = true;
  table.refuse(head, core::Status(Code::kAborted, "damaged file"), "damaged",
               [&] { return holds; });
  EXPECT_EQ(table.refusal("ann", "n").message(), "damaged file");
  EXPECT_TRUE(table.refusal("bob", "n").ok());
  std::string word;
  EXPECT_FALSE(table.find("a", &word).ok());
  EXPECT_EQ(word, "damaged");
  holds = false;
  EXPECT_TRUE(table.refusal("ann", "n").ok());
}

}  // namespace
}  // namespace teletensor::server
