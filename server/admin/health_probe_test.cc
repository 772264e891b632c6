#include "server/admin/health_probe.h"

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "server/testing.h"

namespace teletensor::server {
namespace {

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
