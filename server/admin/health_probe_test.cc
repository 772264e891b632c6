#include "server/admin/health_probe.h"

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "server/testing.h"

namespace teletensor::server {
namespace {

// Another engine, whose lanes are all busy when the test says so.
class BusyEngine final : public engine::Engine {
 public:
  explicit BusyEngine(engine::Engine& engine) : engine_(engine) {}
  const ops::Catalog& catalog() const override { return engine_.catalog(); }
  std::vector<core::Device> devices() const override { return engine_.devices(); }
  std::vector<engine::MemoryUse> memory() const override { return engine_.memory(); }
  core::Result<std::unique_ptr<engine::Session>> open(const engine::SessionOptions& options,
                                                      engine::SessionListener* listener) override {
    return engine_.open(options, listener);
  }
  bool busy() const override { return busy_lanes; }
  std::atomic<bool> busy_lanes{false};

 private:
  engine::Engine& engine_;
};

TEST(HealthProbe, ALateAnswerIsNoFaultWhileAllLanesAreBusy) {
  engine::EngineOptions options;
  options.lanes = 1;
  options.host_memory = 64 << 20;
  const auto real = engine::Engine::create(options);
  BusyEngine engine(*real);
  HealthProbe probe(
      engine, [](bool) {}, std::chrono::seconds(0));  // every answer is too old
  probe.wait_for_first(testing::kHang);
  EXPECT_FALSE(probe.ready());
  EXPECT_EQ(probe.trouble().substr(0, 24), "no computation has ended");
  engine.busy_lanes = true;
  EXPECT_TRUE(probe.ready());
  EXPECT_TRUE(probe.is_late());
  EXPECT_EQ(probe.trouble(), "");
}

TEST(HealthProbe, AWrongAnswerIsAFaultAlsoWhileAllLanesAreBusy) {
  testing::Books books;
  testing::FakeEngine fake(books);
  BusyEngine engine(fake);
  engine.busy_lanes = true;
  HealthProbe probe(engine, [](bool) {});
  probe.wait_for_first(testing::kHang);
  EXPECT_FALSE(probe.ready());
}

TEST(HealthProbe, AnEngineThatComputesIsReady) {
  engine::EngineOptions options;
  options.lanes = 1;
  options.host_memory = 64 << 20;
  const auto engine = engine::Engine::create(options);
  std::atomic<int> ticks{0};
  {
    HealthProbe probe(*engine, [&](bool) { ++ticks; });
    probe.wait_for_first(testing::kHang);
    EXPECT_TRUE(probe.ready()) << probe.trouble();
    EXPECT_EQ(probe.trouble(), "");
    EXPECT_GT(probe.last_seconds(), 0);
    EXPECT_TRUE(testing::eventually([&] { return ticks > 0; }));
  }
  EXPECT_EQ(engine->memory()[0].used, 0u);  // The probe's session has released its memory.
}

TEST(HealthProbe, AfterStopItIsNotReadyWhateverItComputed) {
  engine::EngineOptions options;
  options.lanes = 1;
  options.host_memory = 64 << 20;
  const auto engine = engine::Engine::create(options);
  HealthProbe probe(*engine, [](bool) {});
  probe.wait_for_first(std::chrono::seconds(20));
  ASSERT_TRUE(probe.ready()) << probe.trouble();
  probe.stop();
  EXPECT_FALSE(probe.ready());
  EXPECT_EQ(probe.trouble(), "the daemon shuts down");
}

TEST(HealthProbe, WithoutARightAnswerItIsNot) {
  testing::Books books;
  testing::FakeEngine engine(books);  // The fake engine has no matmul.
  HealthProbe probe(engine, [](bool) {});
  probe.wait_for_first(testing::kHang);
  EXPECT_FALSE(probe.ready());
  EXPECT_EQ(probe.trouble(), "the engine has no matmul");
}

}  // namespace
}  // namespace teletensor::server
