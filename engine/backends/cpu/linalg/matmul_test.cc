#include <gtest/gtest.h>

#include <cmath>

#include "engine/backends/cpu/kernel_test.h"
#include "engine/core/half.h"

namespace teletensor::backends::cpu {
namespace {

using core::Attribute;
using core::Dims;
using core::DType;
using core::Geometry;

// The product of the last two dimensions, one element at a time, for operands of rank 2 and higher
// with equal batch dimensions or none.
std::vector<double> reference(const TestTensor& a, const TestTensor& b, std::int64_t m,
                              std::int64_t n, std::int64_t k, std::int64_t batches, bool a_repeats,
                              bool b_repeats) {
  const auto x = a.values(), y = b.values();
  std::vector<double> out;
  for (std::int64_t q = 0; q < batches; ++q) {
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (std::int64_t p = 0; p < k; ++p) {
          sum += x[static_cast<std::size_t>((a_repeats ? 0 : q) * m * k + i * k + p)] *
                 y[static_cast<std::size_t>((b_repeats ? 0 : q) * k * n + p * n + j)];
        }
        out.push_back(sum);
      }
    }
  }
  return out;
}

TestTensor turned(const TestTensor& x) {  // the same matrix in column-major order
  return x.laid_out(Geometry(x.geometry.shape, {1, x.geometry.shape[0]}));
}

TEST(Matmul, MatricesOfEverySizeDtypeAndLayout) {
  const std::int64_t sizes[][3] = {{1, 1, 1},     {1, 10, 1},   {10, 1, 10},  {3, 4, 5},
                                   {7, 33, 16},   {31, 31, 31}, {17, 50, 40}, {64, 65, 66},
                                   {130, 3, 257}, {1, 300, 70}};
  for (const DType dtype :
       {DType::kF32, DType::kF64, DType::kI32, DType::kI64, DType::kF16, DType::kBF16}) {
    for (const auto& [m, n, k] : sizes) {
      const TestTensor a = small_integers(dtype, {m, k}, 1), b = small_integers(dtype, {k, n}, 2);
      auto expected = reference(a, b, m, n, k, 1, false, false);
      if (dtype == DType::kBF16 || dtype == DType::kF16) {
        for (double& v : expected) {
          v = dtype == DType::kF16 ? static_cast<double>(core::Half(v))
                                   : static_cast<double>(core::BFloat16(v));
        }
      }
      for (const TestTensor& x : {a, turned(a), a.laid_out(Geometry({m, k}, {2 * k + 1, 2}, 3))}) {
        for (const TestTensor& y : {b, turned(b), b.laid_out(Geometry({k, n}, {3 * n, 3}, 1))}) {
          const TestResult out = call_op("matmul", {x, y});
          ASSERT_TRUE(out.status.ok()) << out.status.message();
          ASSERT_EQ(out[0].values(), expected) << core::name_of(dtype) << m << " " << n << " " << k;
        }
      }
    }
  }
}

TEST(Matmul, RanksAndBroadcastBatches) {
  const TestTensor a = small_integers(DType::kF32, {2, 3, 4, 5}, 1),
                   b = small_integers(DType::kF32, {2, 3, 5, 6}, 2);
  EXPECT_EQ(call_op("matmul", {a, b})[0].values(), reference(a, b, 4, 6, 5, 6, false, false));
  const TestTensor matrix = small_integers(DType::kF32, {5, 6}, 3);
  const TestResult folded = call_op("matmul", {a, matrix});
  EXPECT_EQ(folded[0].geometry.shape, (Dims{2, 3, 4, 6}));
  EXPECT_EQ(folded[0].values(), reference(a, matrix, 4, 6, 5, 6, false, true));
  const TestTensor left = small_integers(DType::kF32, {4, 5}, 4);
  EXPECT_EQ(call_op("matmul", {left, b})[0].values(), reference(left, b, 4, 6, 5, 6, true, false));
  const TestTensor vector = small_integers(DType::kF32, {5}, 5);
  const TestResult column = call_op("matmul", {a, vector});
  EXPECT_EQ(column[0].geometry.shape, (Dims{2, 3, 4}));
  EXPECT_EQ(column[0].values(), reference(a, vector, 4, 1, 5, 6, false, true));
  const TestResult row = call_op("matmul", {vector, b});
  EXPECT_EQ(row[0].geometry.shape, (Dims{2, 3, 6}));
  EXPECT_EQ(row[0].values(), reference(vector, b, 1, 6, 5, 6, true, false));
  const TestResult inner = call_op("matmul", {vector, vector});
  EXPECT_EQ(inner[0].geometry.rank(), 0);
  EXPECT_EQ(inner[0].values(), reference(vector, vector, 1, 1, 5, 1, false, false));
  // Expanded operands: stride 0 in a batch dimension, in rows and in columns.
  const TestTensor rows(DType::kF32, Geometry({3, 4, 5}, {0, 0, 1}));
  const TestTensor one = small_integers(DType::kF32, {5, 6}, 6);
  for (double v : call_op("matmul", {rows, one})[0].values()) EXPECT_EQ(v, 0);
}

TEST(Matmul, NothingToAddIsZero) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kI64, DType::kF16}) {
    const TestResult out =
        call_op("matmul", {small_integers(dtype, {2, 0}, 1), small_integers(dtype, {0, 3}, 1)});
    EXPECT_EQ(out[0].values(), std::vector<double>(6, 0.0));
    EXPECT_EQ(
        call_op("matmul", {small_integers(dtype, {0, 2}, 1), small_integers(dtype, {2, 3}, 1)})[0]
            .values()
            .size(),
        0u);
  }
}

TEST(Matmul, SplitsAgreeWithTheWhole) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{700, 90, 300}, {90, 700, 300}}) {
      const TestTensor a = small_integers(dtype, {m, k}, 1), b = small_integers(dtype, {k, n}, 2);
      EXPECT_EQ(call_op("matmul", {a, b})[0].values(), reference(a, b, m, n, k, 1, false, false));
    }
  }
}

// Lines a multiple of 2 KiB apart are copied before the product.
TEST(Matmul, LinesThatCollideInTheCache) {
  const std::int64_t m = 512, n = 512, k = 96;
  const TestTensor a = small_integers(DType::kF32, {m, k}, 1),
                   b = small_integers(DType::kF32, {k, n}, 2);
  const auto expected = reference(a, b, m, n, k, 1, false, false);
  const TestTensor wide = b.laid_out(Geometry({k, n}, {2 * n, 1}, 7));
  for (const TestTensor& x : {a, turned(a)}) {
    for (const TestTensor& y : {b, turned(b), wide}) {
      EXPECT_EQ(call_op("matmul", {x, y})[0].values(), expected);
    }
  }
}

TEST(Matmul, IntegersWrap) {
  const TestTensor big(DType::kI32, {1, 2}, {2147483647, 2147483647});
  const TestTensor ones(DType::kI32, {2, 1}, {2, 2});
  EXPECT_EQ(call_op("matmul", {big, ones})[0].values(), std::vector<double>{-4});
}

TEST(Matmul, LinearAddsTheBiasAndTakesTheWeightTransposed) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kI64}) {
    const TestTensor x(dtype, {2, 3}, {1, 2, 3, 4, 5, 6}),
        weight(dtype, {2, 3}, {1, 0, -1, 2, 1, 0});
    const TestTensor bias(dtype, {2}, {10, 20});
    EXPECT_EQ(call_op("linear", {x, weight, bias})[0].values(),
              (std::vector<double>{8, 24, 8, 33}));
    EXPECT_EQ(call_op("linear", {x, weight, nullptr})[0].values(),
              (std::vector<double>{-2, 4, -2, 13}));
    const TestTensor row(dtype, {3}, {1, 2, 3});
    EXPECT_EQ(call_op("linear", {row, weight, bias})[0].values(), (std::vector<double>{8, 24}));
  }
  // Large enough to be split into panels: the bias must be added to each piece exactly once.
  const TestTensor x = small_integers(DType::kF32, {512, 200}, 1),
                   w = small_integers(DType::kF32, {300, 200}, 2);
  const TestTensor bias = small_integers(DType::kF32, {300}, 3);
  const auto plain = call_op("linear", {x, w, nullptr})[0].values();
  const auto with = call_op("linear", {x, w, bias})[0].values();
  for (std::size_t i = 0; i < with.size(); ++i) {
    ASSERT_EQ(with[i], plain[i] + bias.values()[i % 300]) << i;
  }
}

TEST(Matmul, Addmm) {
  const TestTensor a(DType::kF32, {2, 2}, {1, 2, 3, 4}), x(DType::kF32, {2}, {1, -1});
  const TestTensor nan(DType::kF32, {2}, {NAN, NAN});
  EXPECT_EQ(call_op("addmm", {x, a, a}, {Attribute::of(2.0), Attribute::of(0.5)})[0].values(),
            (std::vector<double>{5.5, 3, 9.5, 9}));
  EXPECT_EQ(call_op("addmm", {nan, a, a}, {Attribute::of(0.0), Attribute::of(1.0)})[0].values(),
            (std::vector<double>{7, 10, 15, 22}));
}

TEST(Matmul, Outer) {
  const TestTensor x(DType::kI64, {2}, {1, 2}), y(DType::kI64, {3}, {3, 4, 5});
  EXPECT_EQ(call_op("outer", {x, y})[0].values(), (std::vector<double>{3, 4, 5, 6, 8, 10}));
}

TEST(Matmul, RefusalsNameTheShapes) {
  const TestTensor a = small_integers(DType::kF32, {2, 3}, 1),
                   b = small_integers(DType::kF32, {4, 5}, 1);
  EXPECT_EQ(call_op("matmul", {a, b}).status.message(),
            "matmul: inner sizes differ: [2, 3] x [4, 5]");
  EXPECT_FALSE(call_op("matmul", {a, small_integers(DType::kF64, {3, 2}, 1)}).status.ok());
  EXPECT_FALSE(call_op("matmul", {a, TestTensor(DType::kF32, Geometry(Dims()))}).status.ok());
  EXPECT_FALSE(call_op("matmul", {small_integers(DType::kBool, {2, 2}, 1),
                                  small_integers(DType::kBool, {2, 2}, 1)})
                   .status.ok());
  EXPECT_FALSE(call_op("bmm", {small_integers(DType::kF32, {2, 2, 2}, 1),
                               small_integers(DType::kF32, {1, 2, 2}, 1)})
                   .status.ok());
}

}  // namespace
}  // namespace teletensor::backends::cpu
