#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "engine/backends/cpu/access/targets.h"
#include "engine/backends/cpu/kernel_test.h"
#include "engine/backends/cpu/random/random_simd.h"
#include "hwy/highway.h"

namespace teletensor::backends::cpu {
namespace {

using core::Attribute;
using core::Dims;
using core::DType;
using core::Geometry;
using Values = std::vector<double>;

Attribute n(std::int64_t value) { return Attribute::of(value); }

double mean_of(const Values& x) {
  return std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
}
double variance_of(const Values& x) {
  const double m = mean_of(x);
  double sum = 0;
  for (double v : x) sum += (v - m) * (v - m);
  return sum / static_cast<double>(x.size());
}

// Known answers of the reference implementation (Random123, kat_vectors).
TEST(Philox, KnownAnswers) {
  std::uint32_t words[4];
  random_words({0, 0}, 0, 1, words);
  EXPECT_EQ(words[0], 0x6627e8d5u);
  EXPECT_EQ(words[1], 0xe169c58du);
  EXPECT_EQ(words[2], 0xbc57ac4cu);
  EXPECT_EQ(words[3], 0x9b00dbd8u);
  random_words({~0ull, ~0ull}, ~0ull, 1, words);
  EXPECT_EQ(words[0], 0x408f276du);
  EXPECT_EQ(words[1], 0x41c83b0eu);
  EXPECT_EQ(words[2], 0xa20bc7c6u);
  EXPECT_EQ(words[3], 0x6d5451fdu);
}

// Every instruction set of this machine, including plain scalar code, has to give the same bits.
TEST(Random, EveryInstructionSetGivesTheSameBits) {
  constexpr std::int64_t kCount = 1000;
  std::uint32_t words[4 * kCount], first_words[4 * kCount];
  float narrow[4 * kCount], first_narrow[4 * kCount];
  double wide[2 * kCount], first_wide[2 * kCount];
  bool first = true;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    random_words({1234567890123ull, 42}, (1ull << 32) - 500, kCount, words);
    normal_from_words(words, 4 * kCount, narrow);
    normal_from_words(words, 2 * kCount, wide);
    if (first) {
      std::copy(std::begin(words), std::end(words), first_words);
      std::copy(std::begin(narrow), std::end(narrow), first_narrow);
      std::copy(std::begin(wide), std::end(wide), first_wide);
    }
    first = false;
    EXPECT_TRUE(std::equal(std::begin(words), std::end(words), first_words));
    EXPECT_TRUE(std::equal(std::begin(narrow), std::end(narrow), first_narrow));
    EXPECT_TRUE(std::equal(std::begin(wide), std::end(wide), first_wide));
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  EXPECT_FALSE(first);
}

TEST(Random, AnElementDependsOnItsNumberAlone) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const char* op : {"rand", "randn"}) {
      const auto draw = [&](std::int64_t count) {
        return call_op(op, {},
                       {Attribute::of(Dims{count}), Attribute::of(dtype), Attribute::none(), n(5),
                        n(7)})[0]
            .values();
      };
      const Values all = draw(300'001), few = draw(777);
      EXPECT_TRUE(std::equal(few.begin(), few.end(), all.begin())) << op;
    }
  }
  // The position in the shape determines the number, not the position in memory.
  TestTensor x(DType::kF32, Geometry({3, 5}));
  const auto like = [&](const TestTensor& self) {
    return call_op("uniform", {self}, {Attribute::of(0.0), Attribute::of(1.0), n(1), n(2)})[0]
        .values();
  };
  EXPECT_EQ(like(x), like(x.laid_out(Geometry({3, 5}, {1, 3}))));
}

TEST(Random, SeedsAndOrdinalsDiffer) {
  std::set<Values> seen;
  for (int seed = 0; seed < 4; ++seed) {
    for (int ordinal = 0; ordinal < 4; ++ordinal) {
      seen.insert(call_op("rand", {},
                          {Attribute::of(Dims{8}), Attribute::none(), Attribute::none(), n(seed),
                           n(ordinal)})[0]
                      .values());
    }
  }
  EXPECT_EQ(seen.size(), 16u);
}

TEST(Random, Moments) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
    const auto size = Attribute::of(Dims{100'000});
    const auto type = Attribute::of(dtype);
    const Values u = call_op("rand", {}, {size, type})[0].values();
    EXPECT_NEAR(mean_of(u), 0.5, 0.005);
    EXPECT_NEAR(variance_of(u), 1.0 / 12, 0.002);
    EXPECT_GE(*std::min_element(u.begin(), u.end()), 0.0);
    EXPECT_LT(*std::max_element(u.begin(), u.end()), 1.0);
    const Values z = call_op("randn", {}, {size, type})[0].values();
    EXPECT_NEAR(mean_of(z), 0, 0.015);
    EXPECT_NEAR(variance_of(z), 1, 0.02);
    double fourth = 0;
    std::int64_t beyond = 0;
    for (double v : z) {
      fourth += v * v * v * v;
      beyond += std::abs(v) > 1.959964;
    }
    EXPECT_NEAR(fourth / 1e5, 3, 0.15);
    EXPECT_NEAR(static_cast<double>(beyond) / 1e5, 0.05, 0.004);
  }
  const TestTensor like(DType::kF32, Geometry({100'000}));
  const Values shifted =
      call_op("normal", {like}, {Attribute::of(3.0), Attribute::of(2.0)})[0].values();
  EXPECT_NEAR(mean_of(shifted), 3, 0.03);
  EXPECT_NEAR(variance_of(shifted), 4, 0.1);
}

// Compares Box-Muller with the library's functions on the same words.
TEST(Random, NormalIsBoxMuller) {
  std::uint32_t words[4096];
  random_words({3, 4}, 0, 1024, words);
  float narrow[4096];
  normal_from_words(words, 4096, narrow);
  double wide[2048];
  normal_from_words(words, 2048, wide);
  for (int i = 0; i < 4096; i += 2) {
    const double u = ((words[i] >> 8) + 1.0) * 0x1p-24, t = (words[i + 1] >> 8) * 0x1p-24;
    const double r = std::sqrt(-2 * std::log(u));
    ASSERT_NEAR(narrow[i], r * std::cos(2 * M_PI * t), 2e-6);
    ASSERT_NEAR(narrow[i + 1], r * std::sin(2 * M_PI * t), 2e-6);
  }
  for (int i = 0; i < 2048; i += 2) {
    const auto bits = [&](int w) {
      return static_cast<double>((static_cast<std::uint64_t>(words[w + 1]) << 32 | words[w]) >> 11);
    };
    const double u = (bits(2 * i) + 1) * 0x1p-53, t = bits(2 * i + 2) * 0x1p-53;
    const double r = std::sqrt(-2 * std::log(u));
    ASSERT_NEAR(wide[i], r * std::cos(2 * M_PI * t), 1e-14);
    ASSERT_NEAR(wide[i + 1], r * std::sin(2 * M_PI * t), 1e-14);
  }
}

TEST(Random, UniformStaysBelowItsEnd) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const TestTensor like(dtype, Geometry({20'000}));
    // The bounds are so close that rounding would reach the upper one.
    const Values x =
        call_op("uniform", {like}, {Attribute::of(1.0), Attribute::of(1.03125)})[0].values();
    EXPECT_LT(*std::max_element(x.begin(), x.end()), 1.03125);
    EXPECT_GE(*std::min_element(x.begin(), x.end()), 1.0);
  }
}

TEST(Random, Integers) {
  const Values x = call_op("randint", {}, {n(-3), n(4), Attribute::of(Dims{70'000})})[0].values();
  for (int v = -3; v < 4; ++v) EXPECT_NEAR(std::count(x.begin(), x.end(), v), 10'000, 500);
  EXPECT_EQ(std::count_if(x.begin(), x.end(), [](double v) { return v < -3 || v > 3; }), 0);
  EXPECT_FALSE(call_op("randint", {}, {n(3), n(3), Attribute::of(Dims{1})}).status.ok());
  EXPECT_FALSE(
      call_op("randint", {}, {n(0), n(300), Attribute::of(Dims{1}), Attribute::of(DType::kU8)})
          .status.ok());
  EXPECT_TRUE(
      call_op("randint", {}, {n(INT64_MIN), n(INT64_MAX), Attribute::of(Dims{9})}).status.ok());
  EXPECT_FALSE(
      call_op("randint", {}, {n(0), n(2), Attribute::of(Dims{1ll << 40, 1ll << 40})}).status.ok());
}

TEST(Random, Permutation) {
  Values x = call_op("randperm", {}, {n(1001)})[0].values();
  EXPECT_FALSE(std::is_sorted(x.begin(), x.end()));
  std::sort(x.begin(), x.end());
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(x[i], static_cast<double>(i));
}

TEST(Random, Bernoulli) {
  TestTensor p(DType::kF64, Geometry({3, 20'000}));
  Values chances(60'000, 0.25);
  std::fill_n(chances.begin(), 20'000, 0.0);
  std::fill_n(chances.begin() + 20'000, 20'000, 1.0);
  p.fill(chances);
  const Values x = call_op("bernoulli", {p})[0].values();
  EXPECT_EQ(std::count(x.begin(), x.begin() + 20'000, 0.0), 20'000);
  EXPECT_EQ(std::count(x.begin() + 20'000, x.begin() + 40'000, 1.0), 20'000);
  EXPECT_NEAR(mean_of({x.begin() + 40'000, x.end()}), 0.25, 0.02);
  EXPECT_FALSE(call_op("bernoulli", {TestTensor(DType::kF32, {1}, {1.5})}).status.ok());
  EXPECT_FALSE(call_op("bernoulli", {TestTensor(DType::kF32, {1}, {NAN})}).status.ok());
}

TEST(Random, DropoutKeepsScalesAndTellsWhich) {
  TestTensor x(DType::kF32, Geometry({100, 200}));
  x.fill(Values(20'000, 3));
  const TestResult out = call_op("dropout", {x}, {Attribute::of(0.25)});
  const Values y = out[0].values(), mask = out[1].values();
  for (std::size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i], mask[i] != 0 ? 4 : 0);
  EXPECT_NEAR(mean_of(mask), 0.75, 0.02);
  EXPECT_EQ(mean_of(call_op("dropout", {x}, {Attribute::of(0.0)})[0].values()), 3);
  EXPECT_EQ(mean_of(call_op("dropout", {x}, {Attribute::of(1.0)})[0].values()), 0);
  EXPECT_FALSE(call_op("dropout", {x}, {Attribute::of(1.5)}).status.ok());
  EXPECT_FALSE(call_op("dropout", {x}, {Attribute::of(NAN)}).status.ok());
}

TEST(Random, Multinomial) {
  const TestTensor w(DType::kF32, {2, 3}, {1, 0, 3, 0, 2, 0});
  const Values x = call_op("multinomial", {w}, {n(10'000), Attribute::of(true)})[0].values();
  EXPECT_NEAR(std::count(x.begin(), x.begin() + 10'000, 0.0), 2500, 200);
  EXPECT_EQ(std::count(x.begin(), x.begin() + 10'000, 1.0), 0);
  EXPECT_EQ(std::count(x.begin() + 10'000, x.end(), 1.0), 10'000);
  const TestTensor v(DType::kF32, {3}, {1, 5, 1});
  Values all = call_op("multinomial", {v}, {n(3)})[0].values();
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, (Values{0, 1, 2}));
  EXPECT_FALSE(call_op("multinomial", {w}, {n(2)}).status.ok());  // each row has only one category
  EXPECT_FALSE(call_op("multinomial", {TestTensor(DType::kF32, {2}, {-1, 2})}, {n(1)}).status.ok());
}

}  // namespace
}  // namespace teletensor::backends::cpu
