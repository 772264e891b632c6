#include "engine/session/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "engine/memory/blocks/size_class.h"
#include "engine/session/client_test.h"

namespace teletensor::session {
namespace {

using namespace testing;  // for Client
using core::Attribute;
using core::Code;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

core::Attributes select_row(int row) { return {Attribute::of(0), Attribute::of(row)}; }
core::Attributes device_of(core::Device device) { return {Attribute::of(device)}; }

TEST(Session, ComputesReadsAndReleases) {
  Daemon daemon;
  Client client(daemon);
  const HandleId a = client.constant({2, 2}, {1, 2, 3, 4});
  const HandleId t = client.apply("transpose", {h(a)}, {Attribute::of(0), Attribute::of(1)});
  const HandleId b = client.apply("mul", {h(a), number(2)});
  EXPECT_THAT(client.read(b), ElementsAre(2, 4, 6, 8));
  EXPECT_THAT(client.read(t), ElementsAre(1, 3, 2, 4));
  EXPECT_EQ(client.session->handles(), 3u);
  client.release({a, t, b});
  client.synchronize();
  EXPECT_EQ(client.used(), 0u);
  EXPECT_EQ(client.session->handles(), 0u);
  EXPECT_EQ(client.session->completed_upto(), client.last_seq());
}

TEST(Session, BackwardRunsOnTheDaemon) {
  Daemon daemon;
  Client client(daemon);
  const HandleId x = client.constant({3}, {1, 2, 3});
  client.requires_grad(x);
  const HandleId y = client.apply("mul", {h(x), h(x)}, {}, true);
  const HandleId loss = client.apply("sum", {h(y)}, {}, true);
  program::Backward backward;
  backward.roots = {loss};
  backward.made = 1;
  client.add(backward);
  const HandleId grad = client.name();
  EXPECT_THAT(client.read(grad), ElementsAre(2, 4, 6));
  client.release({x, y, loss, grad});
  client.synchronize();
  EXPECT_EQ(client.used(), 0u);
}

TEST(Session, ALongBackwardAndALongFrameWaitForRoom) {
  Daemon daemon;
  Client client(daemon);
  const HandleId x = client.constant({1}, {1});
  client.requires_grad(x);
  HandleId y = x;
  std::vector<HandleId> all{x};
  for (int i = 0; i < 30000; ++i) {
    y = client.apply("mul", {h(y), number(1)}, {}, true);
    all.push_back(y);
  }
  program::Backward backward;
  backward.roots = {y};
  backward.made = 1;
  client.add(backward);
  all.push_back(client.name());
  EXPECT_THAT(client.read(all.back()), ElementsAre(1));
  client.release(all);
  client.synchronize();
  EXPECT_EQ(client.used(), 0u);
}

TEST(Session, AFailureIsRaisedAndNamesHaveTheirGoodValues) {
  Daemon daemon;
  Client client(daemon);
  const HandleId x = client.constant({2}, {1, 2});  // command 1
  client.inplace("add", {h(x), number(1)});         // command 2
  client.synchronize();
  daemon.sim->faults().fail_instruction(1, core::Status(Code::kUnavailable, "injected"));
  client.inplace("mul", {h(x), number(3)});                   // command 3, which fails
  const HandleId y = client.apply("add", {h(x), number(1)});  // command 4
  client.inplace("add", {h(x), number(5)});                   // command 5
  EXPECT_THAT(client.read(y), IsEmpty());                     // command 6
  EXPECT_EQ(client.last.status.code(), Code::kUnavailable);
  EXPECT_EQ(client.last.root, 3u);
  const std::vector<engine::LateError> errors = client.listener.take_errors();
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].root, 3u);
  EXPECT_THAT(client.raise(3).rebinds, ElementsAre(3, 5));
  EXPECT_THAT(client.read(x), ElementsAre(2, 3));
  EXPECT_THAT(client.read(y), IsEmpty());  // a new name keeps the error
  client.inplace("mul", {h(x), number(3)});
  EXPECT_THAT(client.read(x), ElementsAre(6, 9));
  client.release({x, y});
  client.synchronize();
  EXPECT_EQ(client.used(), 0u);
}

// Values that a Raise could restore are freed once it has run, without another frame.
TEST(Session, AnIdleSessionHoldsNoOldValues) {
  Daemon daemon(256u << 20, 1);
  Client client(daemon);
  const HandleId x = client.constant({200000}, std::vector<float>(200000, 1));
  for (int i = 0; i < 100; ++i) client.inplace("add", {h(x), number(1)});
  client.release({x});
  client.synchronize();
  EXPECT_EQ(client.used(), 0u);
}

TEST(Session, OutOfMemoryFailsOneInstruction) {
  Daemon daemon;
  Client client(daemon, kSimDevice, 1 << 20);
  const HandleId x = client.constant({400, 500}, std::vector<float>(200000, 1));  // 0.8 MB
  const HandleId y = client.apply("add", {h(x), number(1)});
  client.inplace("add", {h(x), number(1)});
  EXPECT_THAT(client.read(y), IsEmpty());
  EXPECT_EQ(client.last.status.code(), Code::kResourceExhausted);
  EXPECT_THAT(client.last.status.message(),
              HasSubstr("add: out of memory on sim:0: requested 781.2 KiB (800000 bytes), this "
                        "session uses 896.0 KiB of its quota of 1.0 MiB"));
  EXPECT_THAT(client.last.status.message(), HasSubstr("896.0 KiB made by command 1"));
  client.raise(2);
  EXPECT_THAT(client.read(x), Each(2));
  client.release({y, x});
  const HandleId z = client.constant({2}, {1, 2});
  EXPECT_THAT(client.read(z), ElementsAre(1, 2));
}

// Fails every k-th instruction of a training-like program on the simulated device. After the
// client's Raise, its names have their last good values, and no memory leaks.
TEST(Session, FaultSweep) {
  for (std::uint64_t k = 1; k <= 14; ++k) {
    Daemon daemon;
    Client client(daemon);
    const HandleId w = client.constant({4}, {1, 1, 1, 1});
    const HandleId x = client.constant({4}, {1, 2, 3, 4});
    client.synchronize();
    const core::Status fault(Code::kUnavailable, "injected");
    daemon.sim->faults().fail_instruction(k, fault);
    std::vector<float> expected{1, 1, 1, 1};
    int failures = 0;
    for (int step = 0; step < 4; ++step) {
      const HandleId g = client.apply("mul", {h(w), h(x)});
      const std::uint64_t first = client.last_seq();
      const HandleId s = client.apply("sum", {h(g)});
      client.inplace("add", {h(w), h(g)});
      client.read(s);
      const bool read_failed = !client.last.status.ok();
      bool updated = true;
      client.synchronize();
      for (const engine::LateError& error : client.listener.take_errors()) {
        ++failures;
        client.raise(error.root);
        EXPECT_EQ(read_failed, error.root != first + 2);
        updated = error.root == first + 1;  // the new value of w and its operand both failed
      }
      for (int i = 0; updated && i < 4; ++i) expected[i] *= static_cast<float>(2 + i);
      EXPECT_EQ(client.read(w), expected) << "k " << k << " step " << step;
      client.release({g, s});
    }
    EXPECT_EQ(failures, k <= 12 ? 1 : 0) << k;
    client.release({w, x});
    client.synchronize();
    EXPECT_EQ(client.used(), 0u);
  }
}

TEST(Session, RowWritesIntoALargeTensorCopyNothing) {
  Daemon daemon;
  Client client(daemon);
  const HandleId x = client.constant({1000, 256}, std::vector<float>(256000, 0));
  const HandleId row = client.constant({256}, std::vector<float>(256, 7));
  client.synchronize();
  const std::uint64_t before = daemon.sim->faults().copied_bytes();
  const auto& session = static_cast<const Session&>(*client.session);
  const std::uint64_t copied = session.back().executor().copied_bytes();
  for (int i = 0; i < 1000; ++i) {
    const HandleId view = client.apply("select", {h(x)}, select_row(i));
    client.inplace("copy", {h(view), h(row)});
    client.release({view});
  }
  client.synchronize();
  EXPECT_EQ(session.back().executor().copied_bytes(), copied);
  EXPECT_LE(daemon.sim->faults().copied_bytes() - before, 1000u * 1024);
  EXPECT_EQ(client.used(), memory::charged_bytes(1024000) + 1024);
  const HandleId sum = client.apply("sum", {h(x)});
  EXPECT_THAT(client.read(sum), ElementsAre(7 * 256000));
}

TEST(Session, UploadsAreCheckedAdmittedAndBound) {
  Daemon daemon;
  Client client(daemon, kSimDevice, 1 << 20);
  engine::Session& session = *client.session;
  EXPECT_EQ(session.uploads().begin(kSimDevice, 2 << 20).status().code(), Code::kResourceExhausted);
  EXPECT_EQ(session.uploads().begin({core::DeviceKind::kCuda, 0}, 8).status().code(),
            Code::kInvalidArgument);
  const std::uint64_t id = *session.uploads().begin(kSimDevice, 8);
  EXPECT_EQ(client.used(), 256u);
  const float elements[2] = {1.5f, 2.5f};
  const std::string_view bytes(reinterpret_cast<const char*>(elements), 8);
  EXPECT_TRUE(session.uploads().write(id, 0, bytes.substr(0, 3)).ok());
  EXPECT_EQ(session.uploads().write(id, 2, bytes.substr(2)).code(), Code::kOutOfRange);
  EXPECT_EQ(session.uploads().finish(id).code(), Code::kInvalidArgument);  // shorter than declared
  // Longer than declared.
  EXPECT_EQ(session.uploads().write(id, 3, "123456").code(), Code::kOutOfRange);
  EXPECT_TRUE(session.uploads().write(id, 3, bytes.substr(3)).ok());
  EXPECT_TRUE(session.uploads().finish(id).ok());
  EXPECT_EQ(session.uploads().write(77, 0, bytes).code(), Code::kNotFound);
  client.add(program::Uploaded{id, core::DType::kF32, kSimDevice, {2}});
  const HandleId x = client.name();
  EXPECT_THAT(client.read(x), ElementsAre(1.5, 2.5));
  EXPECT_EQ(session.uploads().finish(id).code(), Code::kNotFound);
  const std::uint64_t aborted = *session.uploads().begin(kSimDevice, 8);
  session.uploads().abort(aborted);
  EXPECT_EQ(client.used(), 256u);
}

TEST(Session, UploadsThatNoHandleUsesHaveALimit) {
  Daemon daemon;
  program::Amounts limits = program::kUsualLimits;
  limits.staged_bytes = 1000;
  Client client(daemon, kSimDevice, 1 << 20, limits);
  engine::Session& session = *client.session;
  EXPECT_EQ(session.uploads().begin(kSimDevice, 1001).status().code(), Code::kResourceExhausted);
  const std::uint64_t whole = *session.uploads().begin(kSimDevice, 1000);  // exactly the limit
  EXPECT_EQ(session.uploads().begin(kSimDevice, 1).status().code(), Code::kResourceExhausted);
  session.uploads().abort(whole);
  const auto first = session.uploads().begin(kSimDevice, 600);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(session.uploads().begin(kSimDevice, 401).status().code(), Code::kResourceExhausted);
  const auto second = session.uploads().begin(kSimDevice, 400);
  ASSERT_TRUE(second.ok());
  session.uploads().abort(*first);
  session.uploads().abort(*second);
}

// The value of that command has the error, which a Raise clears; nothing else in the session is
// affected.
TEST(Session, AnUploadThatIsNotThereFailsItsCommandAlone) {
  Daemon daemon;
  Client client(daemon);
  engine::Session& session = *client.session;
  const HandleId kept = client.constant({1}, {7});
  const std::uint64_t other = *session.uploads().begin(kSimDevice, 4);
  EXPECT_TRUE(session.uploads().write(other, 0, "1234").ok());
  const auto bind = [&](std::uint64_t upload) {
    client.add(program::Uploaded{upload, core::DType::kF32, kSimDevice, {2}});
    const HandleId x = client.name();
    const std::uint64_t seq = client.last_seq();
    client.read(x);
    EXPECT_EQ(client.last.root, seq);
    return client.last.status.code();
  };
  EXPECT_EQ(bind(77), Code::kNotFound);
  EXPECT_EQ(bind(other), Code::kFailedPrecondition);  // the upload is not finished
  EXPECT_TRUE(session.uploads().finish(other).ok());
  EXPECT_EQ(bind(other), Code::kInvalidArgument);  // wrong size
  session.uploads().abort(other);
  EXPECT_EQ(bind(other), Code::kNotFound);
  EXPECT_THAT(client.read(kept), ElementsAre(7));
  EXPECT_EQ(client.listener.take_errors().size(), 4u);
  // A device that the daemon lacks is an error of the whole frame.
  client.add(program::Uploaded{77, core::DType::kF32, {core::DeviceKind::kCuda, 0}, {2}});
  EXPECT_EQ(client.send().code(), Code::kInvalidArgument);
}

TEST(Session, BooleansFromOutsideAreZeroOrOne) {
  Daemon daemon;
  Client client(daemon);
  client.add(
      program::Constant{core::DType::kBool, kSimDevice, {3}, std::string("\x00\x02\xff", 3)});
  const HandleId a = client.name();
  const std::uint64_t id = *client.session->uploads().begin(kSimDevice, 2);
  EXPECT_TRUE(client.session->uploads().write(id, 0, std::string("\x80\x00", 2)).ok());
  EXPECT_TRUE(client.session->uploads().finish(id).ok());
  client.add(program::Uploaded{id, core::DType::kBool, kSimDevice, {2}});
  const HandleId b = client.name();
  client.read(a);
  EXPECT_EQ(client.last.bytes, std::string("\0\1\1", 3));
  client.read(b);
  EXPECT_EQ(client.last.bytes, std::string("\1\0", 2));
  // A large upload is corrected in pieces.
  std::string bytes(10'000, '\0'), expected = bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(i % 7);
    expected[i] = static_cast<char>(i % 7 != 0);
  }
  const std::uint64_t large = *client.session->uploads().begin(kSimDevice, bytes.size());
  EXPECT_TRUE(client.session->uploads().write(large, 0, bytes).ok());
  EXPECT_TRUE(client.session->uploads().finish(large).ok());
  client.add(program::Uploaded{large, core::DType::kBool, kSimDevice, {10'000}});
  client.read(client.name());
  EXPECT_EQ(client.last.bytes, expected);
}

TEST(Session, DownloadsAreBoundAtTheirFetch) {
  Daemon daemon;
  Client client(daemon);
  std::promise<core::Result<engine::Fetched>> early;
  client.session->downloads().begin(2, [&](auto result) { early.set_value(std::move(result)); });
  const HandleId x = client.constant({2, 2}, {1, 2, 3, 4});
  client.add(program::Fetch{x, true});  // command 2
  client.inplace("add", {h(x), number(1)});
  client.synchronize();
  const core::Result<engine::Fetched> fetched = early.get_future().get();
  ASSERT_TRUE(fetched.ok());
  EXPECT_EQ(fetched->shape, (core::Dims{2, 2}));
  std::array<float, 4> all{};
  const std::span<char> bytes(reinterpret_cast<char*>(all.data()), sizeof all);
  ASSERT_TRUE(client.session->downloads().read(2, 0, bytes.first(4)).ok());
  ASSERT_TRUE(client.session->downloads().read(2, 4, bytes.subspan(4)).ok());
  EXPECT_THAT(all, ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(client.session->downloads().read(2, 17, {}).code(), Code::kOutOfRange);
  EXPECT_EQ(client.session->downloads().read(2, 1, bytes).code(), Code::kOutOfRange);
  EXPECT_EQ(client.used(), 512u);
  client.session->downloads().end(2);
  EXPECT_EQ(client.used(), 256u);
  EXPECT_EQ(client.session->downloads().read(2, 0, bytes).code(), Code::kNotFound);
  bool told = false;
  client.session->downloads().begin(
      1, [&](auto result) { told = result.status().code() == Code::kNotFound; });
  EXPECT_TRUE(told);
  // A download of a command that has not run yet and is no fetch.
  std::promise<Code> none;
  client.session->downloads().begin(4,
                                    [&](auto result) { none.set_value(result.status().code()); });
  client.inplace("add", {h(x), number(1)});  // command 4
  client.synchronize();
  EXPECT_EQ(none.get_future().get(), Code::kNotFound);
  // A download whose command never comes ends with the session.
  std::promise<Code> ended;
  client.session->downloads().begin(1000,
                                    [&](auto result) { ended.set_value(result.status().code()); });
  client.session.reset();
  EXPECT_EQ(ended.get_future().get(), Code::kCancelled);
}

TEST(Session, OnlyTheWaitThatIsNamedIsStopped) {
  Daemon daemon;
  Client client(daemon);
  engine::Downloads& downloads = client.session->downloads();
  std::vector<Code> ends;
  const auto ready = [&](auto result) { ends.push_back(result.status().code()); };
  const std::uint64_t first = downloads.begin(2, ready), second = downloads.begin(2, ready);
  EXPECT_THAT(ends, ElementsAre(Code::kCancelled));  // The second wait has replaced the first one.
  downloads.stop_waiting(2, first, core::Status(Code::kDeadlineExceeded, "late"));
  EXPECT_EQ(ends.size(), 1u);
  downloads.stop_waiting(2, second, core::Status(Code::kDeadlineExceeded, "late"));
  downloads.stop_waiting(2, second, core::Status(Code::kDeadlineExceeded, "late"));
  EXPECT_THAT(ends, ElementsAre(Code::kCancelled, Code::kDeadlineExceeded));
  // Stopped waits take no room, and the value is kept for a later download.
  for (int i = 0; i < 2000; ++i) {
    const std::uint64_t wait = downloads.begin(1000 + i, [](auto) {});
    ASSERT_NE(wait, 0u);
    downloads.stop_waiting(1000 + i, wait, core::Status(Code::kDeadlineExceeded, "late"));
  }
  const HandleId x = client.constant({2}, {1, 2});
  client.add(program::Fetch{x, true});  // command 2
  client.synchronize();
  EXPECT_EQ(downloads.begin(2, ready), 0u);
  EXPECT_EQ(ends.back(), Code::kOk);
}

TEST(Session, AValueThatIsGivenUpWhileADownloadWaitsIsNotKept) {
  Daemon daemon;
  Client client(daemon);
  const HandleId x = client.constant({200000}, std::vector<float>(200000, 1));
  client.synchronize();
  const std::uint64_t used = client.used();
  for (int i = 0; i < 500; ++i) client.inplace("add", {h(x), number(1)});
  client.add(program::Fetch{x, true});
  const std::uint64_t fetch = client.last_seq();
  std::promise<Code> early;
  client.session->downloads().begin(fetch,
                                    [&](auto result) { early.set_value(result.status().code()); });
  client.add(program::Taken{fetch});
  client.inplace("add", {h(x), number(1)});  // writes to other memory, because the value is kept
  client.synchronize();
  early.get_future().get();  // cancelled, or with the value if that was faster
  EXPECT_EQ(client.used(), used);
  // A late download is refused at once.
  std::promise<Code> late;
  client.session->downloads().begin(fetch,
                                    [&](auto result) { late.set_value(result.status().code()); });
  EXPECT_EQ(late.get_future().get(), Code::kNotFound);
}

TEST(Session, FramesOutOfOrderChangeNothing) {
  Daemon daemon;
  Client client(daemon);
  const HandleId x = client.constant({1}, {1});
  client.synchronize();
  auto submit = [&](std::uint64_t seq, std::uint64_t id) {
    std::promise<core::Status> consumed;
    std::vector<program::Command> commands;
    commands.push_back(program::Release{{x}});
    client.session->submit(seq, id, std::move(commands),
                           [&](core::Status status) { consumed.set_value(std::move(status)); });
    return consumed.get_future().get();
  };
  EXPECT_EQ(submit(1, 2).code(), Code::kFailedPrecondition);
  EXPECT_EQ(submit(3, 2).code(), Code::kFailedPrecondition);
  EXPECT_EQ(submit(2, 1).code(), Code::kFailedPrecondition);
  EXPECT_THAT(client.read(x), ElementsAre(1));
  client.release({x + 10});
  EXPECT_EQ(client.send().code(), Code::kNotFound);
  EXPECT_EQ(client.send().code(), Code::kNotFound);  // the session is broken
}

TEST(Session, TwoDevices) {
  Daemon daemon;
  Client client(daemon);
  const HandleId x = client.constant({2}, {1, 2});
  const HandleId y = client.apply("to_device", {h(x)}, device_of(kHostDevice));
  const HandleId z =
      client.apply("to_device", {h(client.apply("add", {h(y), number(1)}))}, device_of(kSimDevice));
  EXPECT_THAT(client.read(z), ElementsAre(2, 3));
  EXPECT_EQ(daemon.used(kHostDevice), 512u);
  const std::vector<engine::MemoryUse> uses = daemon.host->memory();
  ASSERT_EQ(uses.size(), 2u);
  for (const engine::MemoryUse& use : uses) {
    // No storage was moved, and a device has no files.
    const engine::Moved& moved = use.moved;
    EXPECT_EQ(moved.out + moved.in + moved.written + moved.failures, 0u);
    EXPECT_EQ(moved.out_ns + moved.in_ns + use.away + use.disk_used, 0u);
  }
  client.session.reset();
  EXPECT_EQ(daemon.used(kHostDevice), 0u);
  EXPECT_EQ(daemon.used(kSimDevice), 0u);
}

TEST(Session, AnotherSessionsReadsGoOnDuringAFlood) {
  Daemon daemon(512u << 20, 1);
  Client flood(daemon), victim(daemon);
  const HandleId big = flood.constant({200000}, std::vector<float>(200000, 1));
  for (int i = 0; i < 40000; ++i) flood.inplace("add", {h(big), number(1)});
  std::future<core::Status> consumed = flood.send_later();
  const HandleId x = victim.constant({1}, {0});
  for (int i = 1; i <= 100; ++i) {
    victim.inplace("add", {h(x), number(1)});
    EXPECT_THAT(victim.read(x), ElementsAre(i));
  }
  EXPECT_GT(flood.session->load().queued, 1000u);
  // Closing a session in the middle of its work frees everything at once; the other session
  // continues.
  flood.session.reset();
  EXPECT_THAT(victim.read(x), ElementsAre(100));
  EXPECT_EQ(daemon.used(kSimDevice), 256u);
}

TEST(Session, InterruptDropsWhatIsQueuedAndTheSessionGoesOn) {
  Daemon daemon(256u << 20, 1);
  Client client(daemon);
  const HandleId x = client.constant({200000}, std::vector<float>(200000, 1));
  client.synchronize();
  for (int i = 0; i < 40000; ++i) client.inplace("add", {h(x), number(1)});
  const std::uint64_t last = client.last_seq();
  std::future<core::Status> consumed = client.send_later();
  client.session->interrupt();
  client.listener.completed(last);
  EXPECT_TRUE(consumed.get().ok());
  const std::vector<engine::LateError> errors = client.listener.take_errors();
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].status.code(), Code::kCancelled);
  const engine::Raised raised = client.raise(errors[0].root);
  ASSERT_FALSE(raised.rebinds.empty());
  EXPECT_EQ(raised.rebinds.back(), last);
  // Everything before the first dropped command took effect.
  const float done = static_cast<float>(raised.rebinds.front() - 2);
  EXPECT_THAT(client.read(x), Each(1 + done));
}

TEST(Session, ClosingWhileManyWorkReturnsEveryByte) {
  Daemon daemon;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&daemon, t] {
      for (int round = 0; round < 5; ++round) {
        Client client(daemon, t % 2 == 0 ? kSimDevice : kHostDevice);
        const HandleId x = client.constant({1000}, std::vector<float>(1000, 1));
        client.requires_grad(x);
        HandleId y = x;
        for (int i = 0; i < 500; ++i) y = client.apply("mul", {h(y), h(x)}, {}, true);
        if (round % 2 == 0) {
          EXPECT_EQ(client.read(y).size(), 1000u);
        } else {
          std::future<core::Status> consumed = client.send_later();
          client.session.reset();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(daemon.used(kSimDevice), 0u);
  EXPECT_EQ(daemon.used(kHostDevice), 0u);
}

}  // namespace
}  // namespace teletensor::session
