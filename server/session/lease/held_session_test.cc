#include "server/session/lease/held_session.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>

#include "server/testing.h"

namespace teletensor::server {
namespace {

class Silent final : public engine::SessionListener {
 public:
  void on_completed(std::uint64_t) override {}
  void on_fetched(engine::Fetched) override {}
  void on_error(engine::LateError) override {}
  void on_raised(engine::Raised) override {}
};

class HeldSessionTest : public ::testing::Test {
 protected:
  HeldSessionTest() { held.hold({nullptr, std::move(*engine.open({}, &listener))}); }

  testing::Books books;
  testing::FakeEngine engine{books};
  Silent listener;
  HeldSession held;
};

TEST_F(HeldSessionTest, CloseWaitsForItsUsersAndRefusesFurtherOnes) {
  std::optional<HeldSession::User> user(std::in_place, held);
  ASSERT_NE(user->session(), nullptr);
  engine::Session* const session = user->session();
  std::atomic<bool> closed{false};
  std::thread closer([&] {
    EXPECT_EQ(held.close(), session);
    closed = true;
  });
  // Further users are refused soon, while the present user still has the session.
  EXPECT_TRUE(testing::eventually([&] { return HeldSession::User(held).session() == nullptr; }));
  EXPECT_FALSE(closed);
  user.reset();
  closer.join();
  EXPECT_TRUE(closed);
}

TEST_F(HeldSessionTest, TheNextLeaseGetsTheSessionOfAClosedOne) {
  engine::Session* const session = held.close();
  HeldSession next;
  next.hold(held.release());
  EXPECT_EQ(held.close(), nullptr);
  EXPECT_EQ(HeldSession::User(held).session(), nullptr);
  EXPECT_EQ(HeldSession::User(next).session(), session);
  EXPECT_EQ(next.close(), session);
  next.destroy();
  EXPECT_EQ(next.close(), nullptr);
}

}  // namespace
}  // namespace teletensor::server
