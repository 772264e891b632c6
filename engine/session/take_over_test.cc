// Tests of take-over: what happens to the old client's pending operations.
#include <gtest/gtest.h>

#include <chrono>
#include <future>

#include "engine/backends/cpu/cpu.h"
#include "engine/core/folder_test.h"
#include "engine/memory/disk.h"
#include "engine/session/client_test.h"

namespace teletensor::session {
namespace {

constexpr std::uint64_t kMemory = 16u << 20;

// Blocks the lane in on_fetched() until it is released.
struct Holding : testing::Listener {
  void on_fetched(engine::Fetched value) override {
    told.set_value();
    go_on.get_future().wait();
    Listener::on_fetched(std::move(value));
  }
  std::promise<void> told, go_on;
};

class TakeOver : public ::testing::Test {
 protected:
  TakeOver() {
    std::vector<std::unique_ptr<runtime::Device>> devices;
    devices.push_back(std::make_unique<runtime::Device>(
        std::make_unique<backends::cpu::CpuBackend>(backends::cpu::make_kernels(ops::catalog())),
        kMemory, ops::catalog()));
    auto disk = memory::Disk::open(folder.path, 4 * kMemory);
    engine = std::make_unique<Host>(ops::catalog(), std::move(devices), 1, std::move(*disk));
  }
  std::unique_ptr<engine::Session> open() { return open(listener); }
  std::unique_ptr<engine::Session> open(testing::Listener& told) {
    return std::move(*engine->open({}, &told));
  }
  static void take_over(engine::Session& session) {
    std::promise<void> done;
    session.take_over([&](const core::Result<engine::TakenOver>& taken) {
      EXPECT_TRUE(taken.ok()) << taken.status().message();
      done.set_value();
    });
    done.get_future().wait();
  }
  std::uint64_t used() const { return engine->memory()[0].used; }

  const core::TestFolder folder;
  testing::Listener listener;
  std::unique_ptr<Host> engine;
};

TEST_F(TakeOver, AnUploadThatWaitsForMemoryIsNotTheNextClients) {
  const auto other = open(), session = open();
  const std::uint64_t pinned = *other->uploads().begin({}, kMemory * 3 / 4);
  std::promise<core::Status> admitted;
  session->uploads().admit({}, kMemory / 2, [&](const core::Result<std::uint64_t>& upload) {
    admitted.set_value(upload.status());
  });
  take_over(*session);
  other->uploads().abort(pinned);  // frees memory for the waiting upload
  EXPECT_EQ(admitted.get_future().get().code(), core::Code::kAborted);
  EXPECT_EQ(used(), 0u);
  EXPECT_TRUE(session->uploads().begin({}, 8).ok());  // the old client's bytes are not counted
}

TEST_F(TakeOver, MemoryThatTheClientBeforeWritesToIsGivenBack) {
  const auto session = open();
  const core::Result<engine::Shared> shared = session->uploads().share_new(4u << 20);
  ASSERT_TRUE(shared.ok()) << shared.status().message();
  EXPECT_GE(used(), 4u << 20);
  take_over(*session);
  EXPECT_EQ(used(), 0u);
}

// When the snapshot could be taken, the state already belongs to the new client.
TEST_F(TakeOver, ASnapshotThatTheClientBeforeWaitsForIsCancelled) {
  Holding held;
  const auto session = open(held);
  std::vector<program::Command> commands;
  commands.emplace_back(program::Constant{core::DType::kF32, {}, core::Dims{1}, std::string(4, 0)});
  commands.emplace_back(program::Fetch{1, false});
  commands.emplace_back(program::Raise{1});  // consumed when all earlier commands have run
  std::promise<core::Status> consumed;
  session->submit(1, 1, std::move(commands), [&](core::Status s) { consumed.set_value(s); });
  held.told.get_future().wait();
  std::promise<core::Status> pictured;
  session->snapshot(false, [&](const auto& image) { pictured.set_value(image.status()); });
  std::promise<core::Status> taken;
  session->take_over([&](const auto& start) { taken.set_value(start.status()); });
  held.go_on.set_value();
  EXPECT_EQ(pictured.get_future().get().code(), core::Code::kCancelled);
  EXPECT_TRUE(taken.get_future().get().ok());
  EXPECT_TRUE(consumed.get_future().get().ok());
  std::promise<core::Status> next;
  session->snapshot(false, [&](const auto& image) { next.set_value(image.status()); });
  EXPECT_TRUE(next.get_future().get().ok());
}

std::vector<program::Command> one_constant() {
  std::vector<program::Command> commands;
  commands.emplace_back(program::Constant{core::DType::kF32, {}, core::Dims{1}, std::string(4, 0)});
  return commands;
}

TEST_F(TakeOver, ASessionAtRestConsumesNothingUntilItIsResumed) {
  const auto session = open();
  std::promise<core::Status> rested, consumed;
  session->rest([&](const auto& image) { rested.set_value(image.status()); });
  ASSERT_TRUE(rested.get_future().get().ok());
  std::future<core::Status> done = consumed.get_future();
  session->submit(1, 1, one_constant(), [&](core::Status s) { consumed.set_value(s); });
  EXPECT_EQ(done.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  std::promise<core::Status> other;
  session->snapshot(false, [&](const auto& image) { other.set_value(image.status()); });
  EXPECT_EQ(other.get_future().get().code(), core::Code::kAborted);
  session->resume();
  EXPECT_TRUE(done.get().ok());
  session->resume();  // a second call does nothing
  std::promise<core::Status> next;
  session->snapshot(false, [&](const auto& image) { next.set_value(image.status()); });
  EXPECT_TRUE(next.get_future().get().ok());
}

// Such an upload would be contained in no image.
TEST_F(TakeOver, NoUploadCompletesInASessionAtRest) {
  const auto session = open();
  const std::uint64_t upload = *session->uploads().begin({}, 4);
  EXPECT_TRUE(session->uploads().write(upload, 0, "abcd").ok());
  std::promise<std::size_t> pictured, rested;
  session->snapshot(false, [&](const auto& image) { pictured.set_value(image->uploads.size()); });
  EXPECT_EQ(pictured.get_future().get(), 0u);
  session->rest([&](const auto& image) { rested.set_value(image->uploads.size()); });
  EXPECT_EQ(rested.get_future().get(), 0u);
  EXPECT_EQ(session->uploads().finish(upload).code(), core::Code::kUnavailable);
  session->resume();
  EXPECT_TRUE(session->uploads().finish(upload).ok());
  std::promise<std::size_t> again;
  session->rest([&](const auto& image) { again.set_value(image->uploads.size()); });
  EXPECT_EQ(again.get_future().get(), 1u);
}

TEST_F(TakeOver, TheNextClientEndsTheRest) {
  const auto session = open();
  std::promise<core::Status> rested;
  session->rest([&](const auto& image) { rested.set_value(image.status()); });
  ASSERT_TRUE(rested.get_future().get().ok());
  take_over(*session);
  std::promise<core::Status> consumed;
  session->submit(1, 1, one_constant(), [&](core::Status s) { consumed.set_value(s); });
  EXPECT_TRUE(consumed.get_future().get().ok());
}

}  // namespace
}  // namespace teletensor::session
