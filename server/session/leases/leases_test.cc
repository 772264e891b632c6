#include "server/session/leases/leases.h"

#include <gtest/gtest.h>

#include <future>

#include "server/testing.h"

namespace teletensor::server {
namespace {

class Stream final : public LeaseCall {
 public:
  void lease_ended(const Ending&) override {}
  void abandon() override {}
};

ClientInfo client_of(const std::string& name) {
  ClientInfo client;
  client.name = name;
  client.named = true;
  client.user = "me";
  client.attach_counter = 1;
  client.lease = std::chrono::seconds(600);
  return client;
}

std::string frame_of(std::uint64_t seq) {
  wire::FrameWriter writer;
  writer.begin(seq, 1);
  const program::Command command = program::Fetch{1, false};
  writer.append(command, wire::usual_made(command));
  return std::string(writer.finish(0, 1));
}

class LeasesTest : public ::testing::Test {
 protected:
  // The callback that the engine calls when the session is the next client's. Null if the engine
  // was not asked.
  std::function<void(core::Result<engine::TakenOver>)> asked_for() {
    std::function<void(core::Result<engine::TakenOver>)> successor;
    (void)testing::eventually([&] {
      core::MutexLock lock(books.mutex);
      successor.swap(books.successor);
      return successor != nullptr;
    });
    return successor;
  }

  testing::Books books;
  testing::FakeEngine engine{books};
  Leases leases{engine, {}};
};

// The command numbers of such a frame would be those of the next client's first commands.
TEST_F(LeasesTest, AFrameOfTheClientBeforeDoesNotReachASessionOnItsWayToTheNext) {
  const LeaseRef old = *leases.open(client_of("n"));
  const auto stream = std::make_shared<Stream>();
  ASSERT_TRUE(old->streams().join(stream, 1).ok());
  ASSERT_TRUE(old->submit(stream.get(), frame_of(1)).ok());
  ASSERT_EQ(books.get(&testing::Books::commands), 1u);

  core::Result<LeaseRef> taken = core::internal("not yet");
  std::atomic<bool> ready{false};
  leases.takeovers().begin(client_of("n"), [&](core::Result<LeaseRef> lease) {
    taken = std::move(lease);
    ready = true;
  });
  const auto successor = asked_for();
  ASSERT_TRUE(successor);
  EXPECT_EQ(old->submit(stream.get(), frame_of(2)).code(), core::Code::kAborted);
  EXPECT_EQ(books.get(&testing::Books::commands), 1u);

  engine::TakenOver start;
  start.next_seq = 2;
  start.next_id = 1;
  successor(std::move(start));
  ASSERT_TRUE(testing::eventually([&] { return ready.load(); }));
  ASSERT_TRUE(taken.ok()) << taken.status().message();
  const auto next = std::make_shared<Stream>();
  ASSERT_TRUE((*taken)->streams().join(next, 1).ok());
  EXPECT_TRUE((*taken)->submit(next.get(), frame_of(2)).ok());
  EXPECT_EQ(books.get(&testing::Books::commands), 2u);
}

TEST_F(LeasesTest, ACommandIsLackingOnlyIfTheClientCouldHaveSentIt) {
  const LeaseRef lease = *leases.open(client_of("n"));
  const std::chrono::milliseconds at_once(0);
  EXPECT_FALSE(lacks_command(*lease, 9, at_once));  // There is no Run stream.
  const auto stream = std::make_shared<Stream>();
  ASSERT_TRUE(lease->streams().join(stream, 1).ok());
  EXPECT_TRUE(testing::eventually([&] { return lacks_command(*lease, 9, at_once); }));
  EXPECT_FALSE(lacks_command(*lease, 9, testing::kHang));
  ASSERT_TRUE(lease->submit(stream.get(), frame_of(1)).ok());
  EXPECT_FALSE(lacks_command(*lease, 9, at_once));  // The client does not know that it has run.
  while (lease->outbox().take(1)) continue;
  EXPECT_TRUE(testing::eventually([&] { return lacks_command(*lease, 9, at_once); }));
  EXPECT_FALSE(lacks_command(*lease, 9, testing::kHang));
  EXPECT_FALSE(lacks_command(*lease, 1, at_once));  // It was received.
  {
    core::MutexLock lock(books.mutex);
    books.hold_done = true;
  }
  ASSERT_TRUE(lease->submit(stream.get(), frame_of(2)).ok());
  EXPECT_FALSE(lacks_command(*lease, 9, at_once));  // Command 2 has not run.
  lease->on_completed(2);
  while (lease->outbox().take(1)) continue;
  EXPECT_TRUE(testing::eventually([&] { return lacks_command(*lease, 9, at_once); }));
  lease->streams().detach(stream.get());
  EXPECT_FALSE(lacks_command(*lease, 9, at_once));  // The client may be on its way back.
}

TEST_F(LeasesTest, ANameWhoseSessionArrivesFromAPeerIsUnavailable) {
  const ClientInfo client = client_of("n");
  ASSERT_TRUE(leases.moved_sessions().expect("token", client.user, "n"));
  core::Status refused;
  leases.takeovers().begin(client, [&](const auto& lease) { refused = lease.status(); });
  EXPECT_EQ(refused.code(), core::Code::kUnavailable);
  leases.moved_sessions().arrived("token");
  leases.takeovers().begin(client, [&](const auto& lease) { refused = lease.status(); });
  EXPECT_TRUE(refused.ok()) << refused.message();
}

TEST_F(LeasesTest, ASessionThatArrivesWhenNobodyIsLetInAnyMoreIsThere) {
  (void)*leases.open(client_of("n"));
  std::promise<core::Status> told;
  leases.takeovers().begin(client_of("n"),
                           [&](const auto& lease) { told.set_value(lease.status()); });
  const auto successor = asked_for();
  ASSERT_TRUE(successor);
  leases.table().close();
  EXPECT_FALSE(leases.takeovers().settle(std::chrono::milliseconds(1)));
  EXPECT_TRUE(leases.table().all().empty());
  engine::TakenOver start;
  start.next_seq = start.next_id = 1;
  successor(std::move(start));
  EXPECT_TRUE(leases.takeovers().settle(testing::kHang));
  EXPECT_EQ(told.get_future().get().code(), core::Code::kUnavailable);
  // The session still exists, so that it can be written to a file.
  EXPECT_NE(leases.table().find_name("me", "n"), nullptr);
}

// The commands that the end interrupts fail as cancelled. Their errors must not reach the client
// before the reason for which its session has ended.
TEST_F(LeasesTest, AClientOfAnEndedSessionIsNotToldThatItsCommandsWereCancelled) {
  const LeaseRef lease = *leases.open(client_of("n"));
  const auto stream = std::make_shared<Stream>();
  ASSERT_TRUE(lease->streams().join(stream, 1).ok());
  ASSERT_TRUE(lease->submit(stream.get(), frame_of(1)).ok());
  while (lease->outbox().take(1)) continue;
  leases.end(*lease, core::Status(core::Code::kAborted, "ended by root"), "killed");
  lease->on_error({1, core::Status(core::Code::kCancelled, "the session is closed")});
  lease->on_completed(1);
  EXPECT_EQ(lease->outbox().take(1), nullptr);
}

TEST_F(LeasesTest, AShutdownMeanwhileTellsTheNextClient) {
  (void)*leases.open(client_of("n"));
  std::atomic<int> told{0};
  std::string why;
  leases.takeovers().begin(client_of("n"), [&](core::Result<LeaseRef> lease) {
    why = lease.status().message();
    ++told;
  });
  const auto successor = asked_for();
  ASSERT_TRUE(successor);
  leases.shutdown();
  successor(engine::TakenOver{});
  EXPECT_EQ(told, 1);
  EXPECT_EQ(why, "the server is shutting down");
}

}  // namespace
}  // namespace teletensor::server
