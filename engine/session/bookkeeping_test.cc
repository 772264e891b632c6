// Tests that names, tape, queue and late errors are charged to the session and can run out like
// memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/session/client_test.h"
#include "engine/session/session.h"

namespace teletensor::session {
namespace {

using namespace testing;  // for Client
using core::Code;
using core::Status;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::uint64_t kQuota = 16u << 20;

// Repeats x = x + 1 with recording and releases all names but the last, so that only the tape
// grows.
std::vector<HandleId> grow_tape(Client& client, int steps) {
  HandleId x = client.constant({1}, {0});
  client.requires_grad(x);
  std::vector<HandleId> kept{x};
  for (int i = 0; i < steps; ++i) {
    const HandleId next = client.apply("add", {h(x), number(1)}, {}, true);
    if (i > 0) client.release({x});
    x = next;
    if (i % 256 == 0) {
      EXPECT_TRUE(client.send().ok());
    }
  }
  kept.push_back(x);
  return kept;
}

TEST(Bookkeeping, OfAFewNamesIsFree) {
  Daemon daemon;
  Client client(daemon);
  const std::vector<HandleId> kept = grow_tape(client, 500);
  EXPECT_THAT(client.read(kept.back()), ElementsAre(500));
  EXPECT_EQ(daemon.used(kHostDevice), 0u);
}

TEST(Bookkeeping, OfALongTapeIsChargedAndGivenBack) {
  Daemon daemon;
  Client client(daemon);
  const std::vector<HandleId> kept = grow_tape(client, 20000);
  EXPECT_THAT(client.read(kept.back()), ElementsAre(20000));
  EXPECT_GT(daemon.used(kHostDevice), 20000u * sizeof(float) * 32);
  client.release(kept);
  client.synchronize();
  EXPECT_EQ(daemon.used(kHostDevice), 0u);
}

TEST(Bookkeeping, RunsOutLikeMemory) {
  Daemon daemon;
  Client client(daemon, kSimDevice, kQuota);
  const HandleId other = client.constant({2}, {1, 2});
  const std::vector<HandleId> kept = grow_tape(client, 40000);
  client.inplace("add", {h(other), number(1)});
  EXPECT_THAT(client.read(kept.back()), IsEmpty());
  EXPECT_EQ(client.last.status.code(), Code::kResourceExhausted);
  EXPECT_THAT(client.last.status.message(), HasSubstr("names and tape ("));
  EXPECT_THAT(client.last.status.message(),
              HasSubstr("recorded operations): out of memory on cpu"));
  EXPECT_LE(daemon.used(kHostDevice), kQuota);
  // The in-place write failed and had no effect. The session continues once the tape is freed.
  client.release(kept);
  client.raise(client.last.root);
  EXPECT_THAT(client.read(other), ElementsAre(1, 2));
  client.inplace("add", {h(other), number(1)});
  EXPECT_THAT(client.read(other), ElementsAre(2, 3));
  EXPECT_EQ(daemon.used(kHostDevice), 0u);
  client.session = nullptr;
  EXPECT_EQ(daemon.used(kSimDevice), 0u);
}

TEST(Bookkeeping, ASecondRefusalIsAnErrorOfItsOwn) {
  Daemon daemon;
  Client client(daemon, kSimDevice, kQuota);
  std::uint64_t root = 0;
  for (int round = 0; round < 2; ++round) {
    const std::vector<HandleId> kept = grow_tape(client, 40000);
    EXPECT_THAT(client.read(kept.back()), IsEmpty());
    EXPECT_GT(client.last.root, root);
    root = client.last.root;
    client.release(kept);
    client.raise(root);
  }
}

// Fails `count` commands, each of which is a root with a long text.
std::vector<HandleId> fail(Daemon& daemon, Client& client, HandleId x, int count) {
  std::vector<HandleId> kept;
  client.synchronize();
  daemon.sim->faults().fail_instruction(1, Status(Code::kUnavailable, std::string(2000, 'e')),
                                        true);
  for (int i = 0; i < count; ++i) {
    kept.push_back(client.apply("add", {h(x), number(1)}));
    if (i % 256 == 0) client.synchronize();
  }
  client.synchronize();
  daemon.sim->faults().fail_instruction(0, {});
  return kept;
}

TEST(Bookkeeping, OfErrorsThatNobodyRaisesIsChargedAndGivenBack) {
  Daemon daemon;
  Client client(daemon);
  constexpr int kCount = 5000;  // 10 MB, of which 4 MiB are free
  const HandleId x = client.constant({1}, {0});
  const std::vector<HandleId> kept = fail(daemon, client, x, kCount);
  EXPECT_GT(daemon.used(kHostDevice), kCount * 2000u - Charge::kFree);
  const std::vector<engine::LateError> errors = client.listener.take_errors();
  ASSERT_EQ(errors.size(), static_cast<std::size_t>(kCount));
  for (const engine::LateError& error : errors) client.raise(error.root);
  // The names still hold their errors.
  EXPECT_GT(daemon.used(kHostDevice), kCount * 2000u - Charge::kFree);
  client.release(kept);
  client.synchronize();
  client.synchronize();
  EXPECT_EQ(daemon.used(kHostDevice), 0u);
}

TEST(Bookkeeping, OfErrorsRunsOutLikeMemory) {
  Daemon daemon;
  Client client(daemon, kSimDevice, 8u << 20);
  const HandleId x = client.constant({1}, {0});
  const std::vector<HandleId> kept = fail(daemon, client, x, 8000);
  EXPECT_LE(daemon.used(kHostDevice), 8u << 20);
  EXPECT_THAT(client.read(client.apply("add", {h(x), number(1)})), IsEmpty());
  EXPECT_EQ(client.last.status.code(), Code::kResourceExhausted);
  EXPECT_THAT(client.last.status.message(), HasSubstr("late errors ("));
  // Another session of the daemon computes.
  Client other(daemon);
  EXPECT_THAT(other.read(other.constant({2}, {1, 2})), ElementsAre(1, 2));
}

// A root that the client has not raised takes memory although no name has its error any more.
TEST(Bookkeeping, OfErrorsThatNoNameHasIsCharged) {
  Daemon daemon;
  Client client(daemon);
  constexpr int kCount = 60'000;
  const HandleId x = client.constant({1}, {0});
  client.synchronize();
  daemon.sim->faults().fail_instruction(1, core::invalid("no"), true);
  for (int i = 0; i < kCount; ++i) {
    client.release({client.apply("add", {h(x), number(1)})});
    if (i % 256 == 0) client.synchronize();
  }
  client.synchronize();
  daemon.sim->faults().fail_instruction(0, {});
  client.synchronize();
  EXPECT_GE(daemon.used(kHostDevice), kCount * runtime::Failures::kPerRoot - Charge::kFree);
}

// Values that wait for the client are charged, and a value for which there is no memory fails.
TEST(Bookkeeping, OfUnreadReportsIsCharged) {
  constexpr std::uint64_t kUnread = 12u << 20;
  Daemon daemon;
  Client client(daemon, kSimDevice, kQuota);
  const HandleId x = client.constant({2}, {1, 2});
  client.listener.unread = kUnread;
  client.synchronize();
  client.synchronize();
  EXPECT_GE(daemon.used(kHostDevice), kUnread - Charge::kFree);
  EXPECT_LE(daemon.used(kHostDevice), kUnread - Charge::kFree + (1u << 20));
  EXPECT_THAT(client.read(x), ElementsAre(1, 2));
  client.listener.unread = 2 * kQuota;
  EXPECT_THAT(client.read(x), IsEmpty());
  EXPECT_EQ(client.last.status.code(), Code::kResourceExhausted);
  EXPECT_THAT(client.last.status.message(), HasSubstr("bytes that the client has not read"));
  client.listener.unread = 0;
  client.raise(client.last.root);
  EXPECT_THAT(client.read(x), ElementsAre(1, 2));
  EXPECT_EQ(daemon.used(kHostDevice), 0u);
}

// Creates names until the session ends. Returns their number.
int names_until_the_end(Client& client, HandleId x) {
  int made = 0;
  Status status;
  for (; status.ok() && made < 2'000'000; ++made) {
    client.apply("view", {h(x)}, {core::Attribute::of(core::Dims{1})});
    if (made % 1024 == 0) status = client.send();
  }
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  return made;
}

// However many sessions exceed their memory, together they take no more than the overdraft.
TEST(Bookkeeping, BeyondTheMemoryIsBoundedForAllSessionsTogether) {
  Daemon daemon;
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<int> made;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<Client>(daemon, kSimDevice, 4u << 20));
    // Sessions without a user share one part of the overdraft.
    Client& client = *clients.back();
    made.push_back(names_until_the_end(client, client.constant({1}, {0})));
  }
  // The first session has used that part up. The others end with what is free, the first 4 MiB, and
  // what their quota allows.
  EXPECT_GT(made[0], 10 * made[1]);
  EXPECT_GT(made[0], 10 * made[2]);
  clients.clear();
  Client after(daemon, kSimDevice, 4u << 20);
  EXPECT_GT(names_until_the_end(after, after.constant({1}, {0})), 10 * made[1]);
}

// A client that ignores errors and creates names without end loses its session; the daemon keeps
// its memory.
TEST(Bookkeeping, WithoutEndEndsTheSession) {
  Daemon daemon;
  Client client(daemon, kSimDevice, kQuota);
  HandleId x = client.constant({1}, {0});
  Status status;
  int made = 0;
  for (; status.ok() && made < 2'000'000; ++made) {
    client.apply("view", {h(x)}, {core::Attribute::of(core::Dims{1})});
    if (made % 1024 == 0) status = client.send();
  }
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("names and tape"));
  EXPECT_THAT(status.message(), HasSubstr("; the session ends at command "));
  EXPECT_THAT(status.message(), HasSubstr("the daemon has 256.0 MiB in all"));
  EXPECT_LT(made, 1'000'000);
  EXPECT_GT(made, 100'000);
  client.session = nullptr;
  EXPECT_EQ(daemon.used(kHostDevice), 0u);
}

}  // namespace
}  // namespace teletensor::session
