#include "server/session/leases/moved_sessions.h"

#include <gtest/gtest.h>

namespace teletensor::server {
namespace {

using core::Code;

TEST(MovedSessions, SaysWhereASessionHasGone) {
  MovedSessions places;
  std::string word;
  EXPECT_TRUE(places.of("t1", &word).ok());
  places.gone("t1", {"ann", "exp", "box2:7420", "unix:/b.sock"});
  places.gone("t2", {"ann", "", "box3:7420", ""});
  EXPECT_EQ(places.of("t1", &word).code(), Code::kAborted);
  EXPECT_EQ(word, "moved");
  ASSERT_TRUE(places.find("t1"));
  EXPECT_EQ(places.find("t1")->for_client(true), "unix:/b.sock");
  EXPECT_EQ(places.find("t1")->for_client(false), "box2:7420");
  EXPECT_EQ(places.find("t2")->for_client(true), "box3:7420");
  EXPECT_TRUE(places.find("ann", "exp"));
  EXPECT_FALSE(places.find("bob", "exp"));
  EXPECT_FALSE(places.find("ann", ""));  // An empty name finds no session.
  places.forget("t1");
  EXPECT_TRUE(places.of("t1", nullptr).ok());
}

TEST(MovedSessions, ANameIsTakenWhileItsSessionComes) {
  MovedSessions places;
  EXPECT_TRUE(places.expect("t1", "ann", "exp"));
  EXPECT_FALSE(places.expect("t2", "ann", "exp"));
  EXPECT_TRUE(places.expect("t3", "bob", "exp"));
  EXPECT_TRUE(places.expect("t4", "ann", ""));
  EXPECT_TRUE(places.expect("t5", "ann", ""));
  EXPECT_TRUE(places.expected("ann", "exp"));
  std::string word;
  EXPECT_EQ(places.of("t1", &word).code(), Code::kUnavailable);
  EXPECT_EQ(word, "arriving");
  // Also if the session had moved away from here before and is now on its way back.
  places.gone("t1", {"ann", "exp", "box2:7420", ""});
  EXPECT_EQ(places.of("t1", &word).code(), Code::kUnavailable);
  places.arrived("t1");
  EXPECT_FALSE(places.expected("ann", "exp"));
  EXPECT_TRUE(places.expect("t2", "ann", "exp"));
}

}  // namespace
}  // namespace teletensor::server
