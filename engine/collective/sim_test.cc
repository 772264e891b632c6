// Tests with the simulator. `make sim HISTORIES=100000 SEED=1` runs many more histories than the
// unit tests.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "engine/collective/sim_history_test.h"

namespace teletensor::collective::sim {
namespace {

std::uint64_t setting(const char* name, std::uint64_t fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 10);
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += "\n  " + line;
  return text;
}

Plan plan_of(Rank ranks, Rank each, Place radix) {
  Plan plan;
  plan.ranks = ranks;
  plan.ranks_of = in_order(ranks, each);
  plan.radix = radix;
  return plan;
}

Call all_reduce(std::int64_t count) {
  Call call;
  call.op = Op::kAllReduce;
  call.count = count;
  call.shape = core::Dims{count};
  return call;
}

TEST(Simulator, Histories) {
  const std::uint64_t first = setting("SEED", 1), histories = setting("HISTORIES", 1000);
  std::int64_t events = 0, messages = 0, cuts = 0, restarts = 0, lowered = 0, interrupts = 0;
  std::int64_t healed = 0;
  std::uint64_t failures = 0;
  for (std::uint64_t seed = first; seed < first + histories; ++seed) {
    History history(seed);
    const std::vector<std::string> wrong = history.run();
    EXPECT_TRUE(wrong.empty()) << "SEED=" << seed << " HISTORIES=1" << joined(wrong);
    failures += wrong.empty() ? 0 : 1;
    const World& world = history.world();
    events += world.events;
    messages += world.traffic.messages;
    cuts += world.cuts;
    restarts += world.restarts;
    lowered += world.lowered;
    interrupts += world.interrupts;
    for (const auto& [rank, number] : world.lost) healed += number ? 1 : 0;
    if (failures == 5) break;
  }
  std::printf(
      "%llu histories: %lld events, %lld messages, %lld cuts, %lld restarts (%lld with operations "
      "open), %lld interrupts, %lld ranks lost and healed\n",
      static_cast<unsigned long long>(histories), static_cast<long long>(events),
      static_cast<long long>(messages), static_cast<long long>(cuts),
      static_cast<long long>(restarts), static_cast<long long>(lowered),
      static_cast<long long>(interrupts), static_cast<long long>(healed));
  if (histories < 1000) return;
  EXPECT_GT(cuts, 0);
  EXPECT_GT(restarts, 0);
  EXPECT_GT(lowered, 0);
  EXPECT_GT(interrupts, 0);
  EXPECT_GT(healed, 0);
}

// Measures the cost of one all_reduce and checks its result, with one rank on each daemon.
TEST(Simulator, Scale) {
  std::vector<Rank> sizes = {2, 8, 64};
  if (const std::uint64_t more = setting("RANKS", 0)) sizes = {static_cast<Rank>(more)};
  for (const Rank ranks : sizes) {
    for (const std::int64_t count : {std::int64_t{1}, std::int64_t{1} << 13}) {
      Plan plan = plan_of(ranks, 1, 0);
      Dice dice(1);
      add_collective(plan, 1, all_reduce(count), dice);
      World world(plan, 1);
      ASSERT_TRUE(world.run());
      EXPECT_EQ(joined(check(world, {})), "") << ranks;
      const Traffic& t = world.traffic;
      const double places = static_cast<double>(ranks), bytes = 4 * static_cast<double>(count);
      std::printf(
          "%u ranks, %lld elements: messages a daemon %.1f (with data %.1f), headers %.0f B, "
          "payload %.3f x operand (ring %.3f)\n",
          ranks, static_cast<long long>(count), static_cast<double>(t.messages) / places,
          static_cast<double>(t.with_data) / places, static_cast<double>(t.headers) / places,
          static_cast<double>(t.payload) / places / bytes, 2 * (1 - 1 / places));
      EXPECT_LT(static_cast<double>(t.messages) / places, 8 * 64 + 40);
      // A small operand is sent whole to all places.
      const double tolerance = count > 1 ? 1e-9 : 1e9;
      EXPECT_NEAR(static_cast<double>(t.payload) / places / bytes, 2 * (1 - 1 / places), tolerance);
    }
  }
}

TEST(Simulator, StagingAndBytesInFlightAreBounded) {
  for (const Rank each : {1u, 2u}) {
    Plan plan = plan_of(8 * each, each, 0);
    plan.limits = small_limits();
    plan.outstanding = 6;
    plan.cut_every = 500;
    Dice dice(2);
    for (Number number = 1; number <= 12; ++number)
      add_collective(plan, number, all_reduce(6000), dice);
    add_collective(plan, 13, Call(), dice);
    World world(plan, 3);
    ASSERT_TRUE(world.run());
    EXPECT_EQ(joined(check(world, {})), "");
    // If a daemon has several ranks, their sums need staging as well: one operand for each active
    // collective.
    const std::int64_t sums =
        each > 1 ? static_cast<std::int64_t>(plan.limits.active) * 4 * 6000 : 0;
    EXPECT_LE(world.staging_peak, plan.limits.staging + sums);
    EXPECT_GT(world.staging_peak, 0);
    EXPECT_LE(world.flight_peak, plan.limits.window);
  }
}

// If a rank is missing, every rank is told its number and state, over two levels of places.
TEST(Simulator, TheLateRankIsNamed) {
  Plan plan = plan_of(12, 1, 3);
  plan.limits = small_limits();
  plan.stops = {{7, 1}};
  Dice dice(3);
  for (Number number = 1; number <= 3; ++number) add_collective(plan, number, all_reduce(5), dice);
  World world(plan, 4);
  ASSERT_TRUE(world.run());
  EXPECT_EQ(joined(check(world, {7})), "");
  for (Place place = 0; place < 12; ++place) {
    ASSERT_TRUE(world.ended(place));
    EXPECT_EQ(world.ended(place)->code(), core::Code::kDeadlineExceeded);
    EXPECT_NE(world.ended(place)->message().find("rank 7 (sits in a debugger)"), std::string::npos)
        << world.ended(place)->message();
  }
}

}  // namespace
}  // namespace teletensor::collective::sim
