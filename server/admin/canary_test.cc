#include "server/admin/canary.h"

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "server/testing.h"

namespace teletensor::server {
namespace {

TEST(Canary, AnEngineThatComputesIsReady) {
  engine::EngineOptions options;
  options.lanes = 1;
  options.host_memory = 64 << 20;
  const auto engine = engine::Engine::create(options);
  std::atomic<int> ticks{0};
  {
    Canary canary(*engine, [&](bool) { ++ticks; });
    canary.wait_for_first(testing::kHang);
    EXPECT_TRUE(canary.ready()) << canary.trouble();
    EXPECT_EQ(canary.trouble(), "");
    EXPECT_GT(canary.last_seconds(), 0);
    EXPECT_TRUE(testing::eventually([&] { return ticks > 0; }));
  }
  EXPECT_EQ(engine->memory()[0].used, 0u);  // The probe's session has released its memory.
}

TEST(Canary, AfterStopItIsNotReadyWhateverItComputed) {
  engine::EngineOptions options;
  options.lanes = 1;
  options.host_memory = 64 << 20;
  const auto engine = engine::Engine::create(options);
  Canary canary(*engine, [](bool) {});
  canary.wait_for_first(std::chrono::seconds(20));
  ASSERT_TRUE(canary.ready()) << canary.trouble();
  canary.stop();
  EXPECT_FALSE(canary.ready());
  EXPECT_EQ(canary.trouble(), "the daemon shuts down");
}

TEST(Canary, WithoutARightAnswerItIsNot) {
  testing::Books books;
  testing::FakeEngine engine(books);  // The fake engine has no matmul.
  Canary canary(engine, [](bool) {});
  canary.wait_for_first(testing::kHang);
  EXPECT_FALSE(canary.ready());
  EXPECT_EQ(canary.trouble(), "the engine has no matmul");
}

}  // namespace
}  // namespace teletensor::server
