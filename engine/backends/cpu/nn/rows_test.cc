// Compares softmax, layer_norm and losses with plain loops.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "engine/backends/cpu/kernel_test.h"

namespace teletensor::backends::cpu {
namespace {

using core::Attribute;
using core::Attributes;
using core::Code;
using core::Dims;
using core::DType;
using core::Geometry;
using Values = std::vector<double>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TestTensor waves(DType dtype, const Dims& shape, double step = 0.7) {
  TestTensor x(dtype, Geometry(shape));
  Values values(static_cast<std::size_t>(x.geometry.numel()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = 3 * std::sin(static_cast<double>(i) * step);
  }
  x.fill(values);
  return x;
}

void expect_near(const Values& a, const Values& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], tolerance) << "at " << i;
}

// Softmax along the last dimension of [rows, n].
Values softmax_rows(const Values& x, std::size_t n) {
  Values y(x.size());
  for (std::size_t r = 0; r < x.size(); r += n) {
    double total = 0;
    for (std::size_t i = 0; i < n; ++i) total += std::exp(x[r + i]);
    for (std::size_t i = 0; i < n; ++i) y[r + i] = std::exp(x[r + i]) / total;
  }
  return y;
}

TEST(Softmax, RowsOfManyLengths) {
  for (const std::int64_t n : {1, 3, 17, 64, 2048, 5000}) {
    for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
      const TestTensor x = waves(dtype, {3, n});
      const double tolerance = dtype == DType::kBF16 ? 4e-3 : dtype == DType::kF16 ? 5e-4 : 1e-6;
      const Values expected = softmax_rows(x.values(), static_cast<std::size_t>(n));
      expect_near(call_op("softmax", {x}, {Attribute::of(1)})[0].values(), expected, tolerance);
      if (dtype != DType::kF64) continue;
      Values logs = expected;
      for (double& v : logs) v = std::log(v);
      expect_near(call_op("log_softmax", {x}, {Attribute::of(-1)})[0].values(), logs, 1e-12);
    }
  }
}

TEST(Softmax, AnyDimOfAnyLayoutIsTheSame) {
  const TestTensor x = waves(DType::kF64, {40, 19});
  const Values expected = softmax_rows(x.values(), 19);
  TestTensor turned(DType::kF64, Geometry(Dims{19, 40}));  // its transpose, in row-major order
  Values values(19 * 40);
  for (std::size_t i = 0; i < 40; ++i) {
    for (std::size_t j = 0; j < 19; ++j) values[j * 40 + i] = x.values()[i * 19 + j];
  }
  turned.fill(values);
  const Values across = call_op("softmax", {turned}, {Attribute::of(0)})[0].values();
  const Values strided =
      call_op("softmax", {x.laid_out(Geometry({40, 19}, {1, 40}))}, {Attribute::of(1)})[0].values();
  for (std::size_t i = 0; i < 40; ++i) {
    for (std::size_t j = 0; j < 19; ++j) {
      EXPECT_NEAR(across[j * 40 + i], expected[i * 19 + j], 1e-14);
    }
  }
  expect_near(strided, expected, 1e-14);
}

TEST(Softmax, InfinitiesAndNan) {
  const TestTensor x(DType::kF32, {4}, {-kInfinity, 0, 1000, -1000});
  EXPECT_EQ(call_op("softmax", {x}, {Attribute::of(0)})[0].values(), (Values{0, 0, 1, 0}));
  const TestTensor nan(DType::kF32, {20}, Values(20, std::nan("")));
  EXPECT_TRUE(std::isnan(call_op("softmax", {nan}, {Attribute::of(0)})[0].values()[19]));
  EXPECT_EQ(call_op("softmax", {TestTensor(DType::kI64, {2}, {1, 2})}, {Attribute::of(0)})
                .status.message(),
            "softmax: expected a floating point tensor, got int64");
}

TEST(LayerNorm, MeanZeroVarianceOne) {
  for (const std::int64_t n : {5, 64, 3000}) {
    const TestTensor x = waves(DType::kF64, {4, n}), w(DType::kF64, {n}, Values(n, 2)),
                     b(DType::kF64, {n}, Values(n, 10));
    const Attributes a{Attribute::of(Dims{n}), Attribute::of(0.0)};
    const Values y = call_op("layer_norm", {x, w, b}, a)[0].values();
    double mean = 0, square = 0;
    for (std::int64_t i = 0; i < n; ++i)
      mean += y[static_cast<std::size_t>(i)] / static_cast<double>(n);
    for (std::int64_t i = 0; i < n; ++i) {
      square += std::pow(y[static_cast<std::size_t>(i)] - mean, 2) / static_cast<double>(n);
    }
    EXPECT_NEAR(mean, 10, 1e-9);
    EXPECT_NEAR(square, 4, 1e-9);
  }
  const TestTensor x = waves(DType::kF32, {2, 3});
  EXPECT_EQ(call_op("layer_norm", {x, nullptr, nullptr}, {Attribute::of(Dims{4})}).status.message(),
            "layer_norm: an input of shape [2, 3] does not match normalized_shape [4]");
}

TEST(LayerNorm, GradientsByFiniteDifferences) {
  const std::int64_t rows = 3, n = 6;
  const TestTensor g = waves(DType::kF64, {rows, n}, 1.1), x = waves(DType::kF64, {rows, n}),
                   w = waves(DType::kF64, {n}, 0.4);
  const Attributes a{Attribute::of(Dims{n}), Attribute::of(1e-5)};
  const auto loss = [&](const TestTensor& xs, const TestTensor& ws) {
    const Values y = call_op("layer_norm", {xs, ws, nullptr}, a)[0].values();
    double total = 0;
    for (std::size_t i = 0; i < y.size(); ++i) total += y[i] * g.values()[i];
    return total;
  };
  const TestResult y = call_op("layer_norm", {x, w, nullptr}, a);
  const TestResult d = call_op("layer_norm_backward", {g, x, w, y[1], y[2]}, a);
  const auto check = [&](const TestTensor& of, const Values& gradient, bool is_x) {
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      Values up = of.values(), down = of.values();
      up[i] += 1e-6;
      down[i] -= 1e-6;
      const TestTensor high(DType::kF64, of.geometry.shape, up),
          low(DType::kF64, of.geometry.shape, down);
      const double slope = is_x ? loss(high, w) - loss(low, w) : loss(x, high) - loss(x, low);
      EXPECT_NEAR(gradient[i], slope / 2e-6, 1e-6);
    }
  };
  check(x, d[0].values(), true);
  check(w, d[1].values(), false);
}

TEST(Losses, SquaredError) {
  const TestTensor x(DType::kF32, {2, 2}, {1, 2, 3, 4}), t(DType::kF32, {2, 2}, {1, 0, 0, 0});
  EXPECT_EQ(call_op("mse_loss", {x, t})[0].values(), (Values{29.0 / 4}));
  EXPECT_EQ(call_op("mse_loss", {x, t}, {Attribute::of("none")})[0].values(),
            (Values{0, 4, 9, 16}));
  const TestTensor turned = t.laid_out(Geometry({2, 2}, {1, 2}));
  EXPECT_EQ(call_op("mse_loss", {x, turned}, {Attribute::of("sum")})[0].values(), (Values{29}));
  const TestTensor one(DType::kF32, Dims{}, {1});
  EXPECT_EQ(call_op("mse_loss_backward", {one, x, t}, {Attribute::of("mean")})[0].values(),
            (Values{0, 1, 1.5, 2}));
  EXPECT_EQ(call_op("mse_loss", {x, TestTensor(DType::kF32, {4}, {1, 2, 3, 4})}).status.message(),
            "mse_loss: input and target must have the same shape: [2, 2] and [4]");
  EXPECT_FALSE(call_op("mse_loss", {x, t}, {Attribute::of("average")}).status.ok());
}

TEST(Losses, LargeOnesAreSplitWithoutChange) {
  const std::int64_t n = (1 << 20) + 77;
  const TestTensor x = waves(DType::kF64, {n}),
                   t(DType::kF64, {n}, Values(static_cast<std::size_t>(n), 1));
  double expected = 0;
  for (const double v : x.values()) expected += std::abs(v - 1) / static_cast<double>(n);
  EXPECT_NEAR(call_op("l1_loss", {x, t})[0].values()[0], expected, 1e-10);
}

TEST(Losses, CrossEntropyOfClassesAndDistributions) {
  const TestTensor x(DType::kF64, {2, 3}, {1, 2, 3, 0, 0, 0});
  const TestTensor t(DType::kI64, {2}, {2, -100});
  const double first = -std::log(softmax_rows({1, 2, 3}, 3)[2]);
  EXPECT_NEAR(call_op("cross_entropy", {x, t, nullptr})[0].values()[0], first, 1e-12);
  const TestTensor p(DType::kF64, {2, 3}, {0, 0, 1, 0.5, 0.5, 0});
  EXPECT_NEAR(call_op("cross_entropy", {x, p, nullptr})[0].values()[0], (first + std::log(3)) / 2,
              1e-12);
  const TestTensor none(DType::kI64, {2}, {-100, -100});
  EXPECT_TRUE(std::isnan(call_op("cross_entropy", {x, none, nullptr})[0].values()[0]));
}

TEST(Losses, ATargetOutOfRangeIsFoundFirst) {
  const TestTensor x(DType::kF32, {2, 3}, {1, 2, 3, 0, 0, 0});
  for (const double wrong : {3.0, -1.0}) {
    const TestTensor t(DType::kI64, {2}, {0, wrong});
    for (const char* op : {"cross_entropy", "nll_loss"}) {
      const core::Status status = call_op(op, {x, t, nullptr}).status;
      EXPECT_EQ(status.code(), Code::kOutOfRange);
      EXPECT_EQ(status.message(), std::string(op) + ": target " +
                                      std::to_string(static_cast<int>(wrong)) +
                                      " is out of range for 3 classes");
    }
  }
  EXPECT_FALSE(
      call_op("nll_loss", {x, TestTensor(DType::kI64, {3}, {0, 0, 0}), nullptr}).status.ok());
}

TEST(Losses, BinaryCrossEntropy) {
  const TestTensor x(DType::kF64, {2}, {0.25, 1}), t(DType::kF64, {2}, {1, 0});
  EXPECT_NEAR(call_op("binary_cross_entropy", {x, t, nullptr})[0].values()[0],
              (std::log(4.0) + 100) / 2, 1e-12);
  const TestTensor wrong(DType::kF64, {2}, {0.25, 1.5});
  EXPECT_FALSE(call_op("binary_cross_entropy", {wrong, t, nullptr}).status.ok());
  const TestTensor far(DType::kF64, {2}, {800, -800});
  EXPECT_NEAR(
      call_op("binary_cross_entropy_with_logits", {far, t, nullptr, nullptr})[0].values()[0], 0,
      1e-12);
}

// The second result of attention has elements although the first has none.
TEST(Attention, LogarithmsWithoutColumnsOfValues) {
  const TestTensor q(DType::kF32, Geometry({1, 2, 3})), v(DType::kF32, Geometry({1, 2, 0}));
  const TestResult result =
      call_op("attention", {q, q, v, nullptr}, {Attribute::of(false), Attribute::of(1.0)});
  ASSERT_TRUE(result.status.ok());
  for (const double value : result[1].values()) EXPECT_NEAR(value, std::log(2), 1e-6);
}

// Heads that lie in a projection of 1,024 columns, whose rows are 4 KiB apart, and 520 keys, of
// which a causal block sees 512 in the middle. Their layout does not change the bits.
TEST(Attention, RowsThatCollideInTheCache) {
  const Geometry dense({2, 520, 32}), apart({2, 520, 32}, {32, 1024, 1});
  std::vector<TestTensor> straight, wide;
  for (int seed = 0; seed < 4; ++seed) {
    std::vector<double> values(static_cast<std::size_t>(dense.numel()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = std::sin(static_cast<double>(i) * 0.7 + seed);
    }
    straight.emplace_back(DType::kF32, dense);
    straight.back().fill(values);
    wide.push_back(straight.back().laid_out(apart));
  }
  const core::Attributes attributes{Attribute::of(true), Attribute::of(0.2)};
  const auto forward = [&](const std::vector<TestTensor>& x) {
    return call_op("attention", {x[0], x[1], x[2], nullptr}, attributes);
  };
  const TestResult one = forward(straight), other = forward(wide);
  ASSERT_TRUE(one.status.ok() && other.status.ok());
  EXPECT_EQ(one[0].values(), other[0].values());
  const auto backward = [&](const std::vector<TestTensor>& x) {
    return call_op("attention_backward", {x[3], x[0], x[1], x[2], one[0], one[1], nullptr},
                   attributes);
  };
  const TestResult first = backward(straight), second = backward(wide);
  ASSERT_TRUE(first.status.ok()) << first.status.message();
  ASSERT_TRUE(second.status.ok()) << second.status.message();
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(first[i].values(), second[i].values());
}

}  // namespace
}  // namespace teletensor::backends::cpu
