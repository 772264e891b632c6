#include "engine/collective/link.h"

#include <gtest/gtest.h>

namespace teletensor::collective {
namespace {

Parcel parcel(Number number, std::int64_t payload = 0) {
  Parcel result;
  result.message.number = number;
  result.message.payload = payload;
  return result;
}

void connect(Link& a, Link& b) {
  const Link::Hello from_a = a.hello(), from_b = b.hello();
  a.connected(from_b);
  b.connected(from_a);
}

TEST(Link, SendsAgainExactlyWhatDidNotArrive) {
  Link a(1, 100), b(2, 100);
  connect(a, b);
  for (Number number = 1; number <= 3; ++number) a.send(parcel(number));
  ASSERT_TRUE(*b.receive(*a.next()));
  ASSERT_TRUE(*b.receive(*a.next()));
  ASSERT_TRUE(a.next());  // still in transit when the connection is cut, like all acknowledgements
  a.disconnected();
  b.disconnected();
  EXPECT_FALSE(a.next());
  connect(a, b);
  const auto again = a.next();
  ASSERT_TRUE(again);
  EXPECT_EQ(again->parcel.message.number, 3u);
  EXPECT_TRUE(*b.receive(*again));
  EXPECT_FALSE(a.next());
}

TEST(Link, RefusesAFrameTwice) {
  Link a(1, 100), b(2, 100);
  connect(a, b);
  a.send(parcel(1));
  const auto frame = a.next();
  ASSERT_TRUE(*b.receive(*frame));
  EXPECT_EQ(b.receive(*frame).status().message(), "link: a peer sends #1 after #1");
  Link::Frame acknowledgement{0, 2, {}};
  EXPECT_FALSE(a.receive(acknowledgement).ok());
}

TEST(Link, TheWindowBoundsBytesThatAreNotAcknowledged) {
  Link a(1, 100), b(2, 100);
  connect(a, b);
  a.send(parcel(1, 80));
  a.send(parcel(2, 80));
  ASSERT_TRUE(*b.receive(*a.next()));
  EXPECT_FALSE(a.next());
  ASSERT_TRUE(b.owes());
  EXPECT_FALSE(*a.receive(b.acknowledgement()));
  EXPECT_TRUE(a.next());
  EXPECT_EQ(a.in_flight(), 80);
}

TEST(Link, ARestartedPeerHasForgotten) {
  Link a(1, 100), b(2, 100);
  connect(a, b);
  a.send(parcel(1));
  ASSERT_TRUE(a.next());
  Link again(3, 100);
  EXPECT_TRUE(a.connected(again.hello()));
  EXPECT_TRUE(a.idle());
  a.send(parcel(2));
  again.connected(a.hello());
  EXPECT_TRUE(*again.receive(*a.next()));
}

// The connection to a restarted daemon is established late: parcels queued meanwhile go to its new
// incarnation.
TEST(Link, ARestartedPeerGetsWhatWasNeverSent) {
  Link a(1, 100), b(2, 100);
  connect(a, b);
  a.send(parcel(1));
  ASSERT_TRUE(a.next());
  a.disconnected();
  a.send(parcel(2));
  Link again(3, 100);
  EXPECT_TRUE(a.connected(again.hello()));
  again.connected(a.hello());
  const auto frame = a.next();
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->parcel.message.number, 2u);
  EXPECT_TRUE(*again.receive(*frame));
  EXPECT_FALSE(a.next());
}

// The parcel precedes those that wait, but not those that were sent and may have arrived.
TEST(Link, SendsFirst) {
  Link a(1, 100), b(2, 100);
  connect(a, b);
  a.send(parcel(1));
  ASSERT_TRUE(a.next());
  a.disconnected();
  a.send(parcel(3));
  a.send_first(parcel(2));
  connect(a, b);
  for (Number number = 1; number <= 3; ++number) {
    const auto frame = a.next();
    ASSERT_TRUE(frame);
    EXPECT_EQ(frame->parcel.message.number, number);
    EXPECT_TRUE(*b.receive(*frame));
  }
}

}  // namespace
}  // namespace teletensor::collective
