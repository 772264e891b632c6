// A session that goes to another client: what the one before had under way.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <future>

#include "engine/backends/cpu/cpu.h"
#include "engine/memory/disk.h"
#include "engine/session/client_test.h"

namespace teletensor::session {
namespace {

constexpr std::uint64_t kMemory = 16u << 20;

class TakeOver : public ::testing::Test {
 protected:
  TakeOver() {
    char name[] = "/tmp/tt-test-XXXXXX";
    folder_ = mkdtemp(name);
    std::vector<std::unique_ptr<runtime::Device>> devices;
    devices.push_back(std::make_unique<runtime::Device>(
        std::make_unique<backends::cpu::CpuBackend>(backends::cpu::make_kernels(ops::catalog())),
        kMemory, ops::catalog()));
    auto disk = memory::Disk::open(folder_, 4 * kMemory);
    engine = std::make_unique<Host>(ops::catalog(), std::move(devices), 1, std::move(*disk));
  }
  ~TakeOver() override {
    engine.reset();
    std::filesystem::remove_all(folder_);
  }
  std::unique_ptr<engine::Session> open() { return std::move(*engine->open({}, &listener)); }
  static void take_over(engine::Session& session) {
    std::promise<void> done;
    session.take_over([&](const core::Result<engine::TakenOver>& taken) {
      EXPECT_TRUE(taken.ok()) << taken.status().message();
      done.set_value();
    });
    done.get_future().wait();
  }
  std::uint64_t used() const { return engine->memory()[0].used; }

  std::unique_ptr<Host> engine;
  testing::Listener listener;

 private:
  std::string folder_;
};

TEST_F(TakeOver, AnUploadThatWaitsForMemoryIsNotTheNextClients) {
  const auto other = open(), session = open();
  const std::uint64_t pinned = *other->begin_upload({}, kMemory * 3 / 4);
  std::promise<core::Status> admitted;
  session->admit_upload({}, kMemory / 2, [&](const core::Result<std::uint64_t>& upload) {
    admitted.set_value(upload.status());
  });
  take_over(*session);
  other->abort_upload(pinned);  // there is memory for it now
  EXPECT_EQ(admitted.get_future().get().code(), core::Code::kAborted);
  EXPECT_EQ(used(), 0u);
  EXPECT_TRUE(session->begin_upload({}, 8).ok());  // and its client's bytes are not counted
}

TEST_F(TakeOver, MemoryThatTheClientBeforeWritesToIsGivenBack) {
  const auto session = open();
  const core::Result<engine::Shared> shared = session->share_new(4u << 20);
  ASSERT_TRUE(shared.ok()) << shared.status().message();
  EXPECT_GE(used(), 4u << 20);
  take_over(*session);
  EXPECT_EQ(used(), 0u);
}

}  // namespace
}  // namespace teletensor::session
