// Tests which values Fetches stores and hands out.
#include "clients/session/frames/fetches.h"

#include <gtest/gtest.h>

namespace teletensor::client {
namespace {

wire::FetchedValue value(std::uint64_t seq, const char* data = "data") {
  wire::FetchedValue value;
  value.seq = seq;
  value.data = data;
  return value;
}

TEST(Fetches, AValueIsTakenOnce) {
  Fetches fetches;
  EXPECT_FALSE(fetches.take(1).has_value());
  fetches.receive(value(1, "one"), 0);
  EXPECT_TRUE(fetches.received(1));
  EXPECT_EQ(fetches.take(1)->data, "one");
  EXPECT_FALSE(fetches.received(1));
  EXPECT_FALSE(fetches.take(1).has_value());
}

TEST(Fetches, ADroppedValueIsIgnoredWheneverItIsReceived) {
  Fetches fetches;
  fetches.receive(value(1), 0);
  fetches.drop(1);
  EXPECT_FALSE(fetches.received(1));
  fetches.drop(2);
  fetches.receive(value(2), 0);
  EXPECT_FALSE(fetches.received(2));
  // Only one value was ignored.
  fetches.receive(value(2), 0);
  EXPECT_TRUE(fetches.received(2));
}

TEST(Fetches, AReplayStoresOnlyValuesThatWereNotReceivedBefore) {
  Fetches fetches;
  fetches.expect(1);
  fetches.expect(2);
  fetches.receive(value(1), 0);
  EXPECT_TRUE(fetches.take(1).has_value());
  fetches.receive(value(1), 2);
  EXPECT_FALSE(fetches.received(1));
  fetches.receive(value(2), 2);
  EXPECT_TRUE(fetches.received(2));
  fetches.receive(value(3), 2);
  EXPECT_TRUE(fetches.received(3));
}

}  // namespace
}  // namespace teletensor::client
