#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "engine/backends/cpu/kernel_test.h"

namespace teletensor::backends::cpu {
namespace {

using core::Attribute;
using core::Dims;
using core::DType;
using core::Geometry;
using Values = std::vector<double>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Values scrambled(std::size_t n, std::size_t distinct) {
  Values values(n);
  std::uint64_t state = 1;
  for (double& v : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    v = static_cast<double>((state >> 33) % distinct) - static_cast<double>(distinct / 2);
  }
  return values;
}

TEST(Sort, EveryDtypeStable) {
  for (const DType dtype : core::kAllDTypes) {
    // Negative samples wrap to numbers that doubles cannot tell apart; ExtremesOfIntegers tests
    // those.
    if (core::is_complex(dtype) || dtype == DType::kU64) continue;
    for (const std::size_t n : {1u, 2u, 100u, 300u, 5000u}) {
      TestTensor x(dtype, Geometry(Dims{static_cast<std::int64_t>(n)}));
      x.fill(scrambled(n, 50));
      const Values values = x.values();
      for (const bool descending : {false, true}) {
        const TestResult sorted =
            call_op("sort", {x}, {Attribute::of(0), Attribute::of(descending)});
        std::vector<std::size_t> order(n);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
          return descending ? values[a] > values[b] : values[a] < values[b];
        });
        const Values got = sorted[0].values(), places = sorted[1].values();
        for (std::size_t i = 0; i < n; ++i) {
          ASSERT_EQ(places[i], static_cast<double>(order[i]));
          ASSERT_EQ(got[i], values[order[i]]);
        }
      }
    }
  }
}

TEST(Sort, NanIsLargestAndZerosAreEqual) {
  const TestTensor x(DType::kF32, {5}, {kNan, 0.0, -0.0, -1, 3});
  EXPECT_EQ(call_op("argsort", {x}, {Attribute::of(0)})[0].values(), (Values{3, 1, 2, 4, 0}));
  EXPECT_EQ(call_op("argsort", {x}, {Attribute::of(0), Attribute::of(true)})[0].values(),
            (Values{0, 4, 1, 2, 3}));
}

TEST(Sort, ExtremesOfIntegers) {
  const double low = -std::ldexp(1, 63);
  const TestTensor x(DType::kI64, {3}, {0, low, 5});
  EXPECT_EQ(call_op("sort", {x}, {Attribute::of(0)})[0].values(), (Values{low, 0, 5}));
  const TestTensor y(DType::kU64, {4}, {5, -low, 0, -1.5 * low});
  EXPECT_EQ(call_op("sort", {y}, {Attribute::of(0)})[0].values(), (Values{0, 5, -low, -1.5 * low}));
  const TestTensor z(DType::kU32, {3}, {4e9, 0, 2e9});
  EXPECT_EQ(call_op("sort", {z}, {Attribute::of(0)})[0].values(), (Values{0, 2e9, 4e9}));
}

TEST(Sort, AlongAStridedDim) {
  const TestTensor x(DType::kF32, {3, 2}, {3, 1, 1, 5, 2, 4});
  const TestResult down = call_op("sort", {x}, {Attribute::of(0)});
  EXPECT_EQ(down[0].values(), (Values{1, 1, 2, 4, 3, 5}));
  EXPECT_EQ(down[1].values(), (Values{1, 0, 2, 2, 0, 1}));
}

TEST(TopK, IsTheHeadOfTheSort) {
  const std::int64_t n = 3000;
  TestTensor x(DType::kF64, Geometry(Dims{2, n}));
  x.fill(scrambled(2 * static_cast<std::size_t>(n), 500));
  for (const std::int64_t k : {0, 1, 7, 100, 2000, 3000}) {
    for (const bool largest : {true, false}) {
      const TestResult top =
          call_op("topk", {x}, {Attribute::of(k), Attribute::of(-1), Attribute::of(largest)});
      const TestResult all = call_op("sort", {x}, {Attribute::of(-1), Attribute::of(largest)});
      ASSERT_EQ(top[0].geometry.shape, (Dims{2, k}));
      const Values indices = top[1].values(), order = all[1].values();
      for (std::int64_t row = 0; row < 2; ++row) {
        for (std::int64_t i = 0; i < k; ++i) {
          ASSERT_EQ(indices[static_cast<std::size_t>(row * k + i)],
                    order[static_cast<std::size_t>(row * n + i)]);
        }
      }
    }
  }
  EXPECT_EQ(call_op("topk", {x}, {Attribute::of(3001)}).status.message(),
            "topk: k is 3001, the dimension has 3000 elements, shape [2, 3000]");
}

TEST(Median, TheLowerOneOfTwoAndNan) {
  const TestTensor x(DType::kF32, {2, 4}, {4, 1, 3, 2, 8, kNan, 6, 5});
  const TestResult rows = call_op("median_dim", {x}, {Attribute::of(1)});
  EXPECT_EQ(rows[0].values()[0], 2);
  EXPECT_TRUE(std::isnan(rows[0].values()[1]));
  EXPECT_EQ(rows[1].values(), (Values{3, 1}));
  EXPECT_TRUE(std::isnan(call_op("median", {x})[0].values()[0]));
  const TestTensor y(DType::kI32, {2, 3}, {9, 1, 5, 3, 7, 2});
  EXPECT_EQ(call_op("median", {y.laid_out(Geometry({2, 3}, {1, 2}))})[0].values(), (Values{3}));
  EXPECT_EQ(call_op("kthvalue", {y}, {Attribute::of(2), Attribute::of(1)})[0].values(),
            (Values{5, 3}));
}

}  // namespace
}  // namespace teletensor::backends::cpu
