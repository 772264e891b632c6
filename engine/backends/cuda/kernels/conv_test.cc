// Runs convolutions and attention in the emulator and compares them with the CPU's kernels. Sums
// are added in another order than on the CPU, so where bits are compared the samples are small
// integers.
#include <gtest/gtest.h>

#include <random>

#include "engine/backends/cuda/device_test.h"
#include "engine/backends/cuda/library/conv_slices.h"
#include "engine/backends/cuda/samples_test.h"

namespace teletensor::backends::cuda {
namespace {

using core::Attribute;
using core::Dims;
using core::DType;
using core::Geometry;

TEST(Conv, ThreePassesOfAnyWindow) {
  std::mt19937 random(91);
  DeviceCases cases;
  const auto ints = [](Dims d) { return Attribute::of(d); };
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kI32}) {
    const auto x = [&](const Geometry& g) { return sample_places(dtype, g, -2, 2, random); };
    const auto no = Attribute::of(false), yes = Attribute::of(true);
    for (const std::int64_t groups : {1, 2}) {
      const auto g = Attribute::of(groups);
      const TestTensor image = x(Geometry({2, 6, 11, 9})),
                       weight = x(Geometry({4, 6 / groups, 3, 2}));
      cases.need("convolution", {image, weight, x(Geometry({4}))},
                 {ints({2, 1}), ints({1, 1}), ints({1, 2}), no, ints({0, 0}), g});
      cases.need("convolution", {x(Geometry({2, 6, 11, 9}, {594, 1, 54, 6})), weight, nullptr},
                 {ints({1, 1}), ints({0, 0}), ints({1, 1}), no, ints({0, 0}), g});
      cases.need("convolution", {x(Geometry({2, 4, 6, 5})), weight, x(Geometry({6}))},
                 {ints({2, 3}), ints({1, 0}), ints({1, 2}), yes, ints({1, 0}), g});
      cases.need("convolution_weight", {image, x(Geometry({2, 4, 6, 9}))},
                 {ints({3, 2}), ints({2, 1}), ints({1, 1}), ints({1, 2}), g});
    }
    cases.need("convolution", {x(Geometry({2, 3, 40})), x(Geometry({70, 3, 5})), nullptr},
               {ints({1}), ints({2}), ints({1}), no, ints({0}), Attribute::of(1)});
    cases.need("convolution_weight", {x(Geometry({70, 2, 40})), x(Geometry({70, 3, 40}))},
               {ints({5}), ints({1}), ints({2}), ints({1}), Attribute::of(1)});
    cases.need(
        "convolution", {x(Geometry({1, 2, 4, 5, 6})), x(Geometry({3, 2, 2, 2, 2})), nullptr},
        {ints({1, 1, 1}), ints({1, 0, 1}), ints({1, 1, 1}), no, ints({0, 0, 0}), Attribute::of(1)});
    cases.need("im2col", {x(Geometry({2, 3, 7, 8}))},
               {ints({3, 2}), ints({1, 2}), ints({1, 0}), ints({2, 1})});
    cases.need("col2im", {x(Geometry({2, 18, 24}))},
               {ints({7, 8}), ints({3, 2}), ints({1, 2}), ints({1, 0}), ints({2, 1})});
  }
  cases.run(0);
}

TEST(Conv, SlicesFollowFromTheShape) {
  EXPECT_EQ(conv_slices(100, 1), 1);         // a short sum is not split
  EXPECT_EQ(conv_slices(100'000, 9), 56);    // few tiles need many slices
  EXPECT_EQ(conv_slices(100'000, 1000), 1);  // enough tiles, so one slice
  EXPECT_EQ(conv_slices(4096, 1), 4);
  EXPECT_EQ(conv_slices(INT64_MAX, 1), 512);
}

TEST(Attention, AndItsDerivative) {
  std::mt19937 random(92);
  DeviceCases cases;
  struct Shape {
    std::int64_t length, keys, inner, values;
  };
  for (const Shape& s :
       {Shape{5, 5, 8, 8}, Shape{130, 130, 16, 24}, Shape{70, 100, 80, 16}, Shape{3, 1, 4, 100}}) {
    const auto x = [&](std::int64_t rows, std::int64_t columns) {
      return sample(DType::kF32, Geometry({2, 3, rows, columns}), random, false);
    };
    for (const bool causal : {false, true}) {
      if (causal && s.length != s.keys) continue;
      const TestTensor q = x(s.length, s.inner), k = x(s.keys, s.inner), v = x(s.keys, s.values);
      const core::Attributes how = {Attribute::of(causal), Attribute::of(0.02)};
      std::vector<TestOperand> masks = {nullptr};
      if (s.length == 5 || s.length == 3) {
        for (const Dims& shape : {Dims{2, 3, s.length, s.keys}, Dims{1, 1, s.length, s.keys},
                                  Dims{2, 1, 1, s.keys}, Dims{1, 3, s.length, 1}}) {
          masks.emplace_back(sample(DType::kF32, Geometry(shape), random, false));
        }
      }
      for (const TestOperand& m : masks) {
        cases.need("attention", {q, k, v, m}, how);
        const TestResult y = call_op("attention", {q, k, v, m}, how);
        ASSERT_TRUE(y.status.ok());
        cases.need("attention_backward", {x(s.length, s.values), q, k, v, y[0], y[1], m}, how);
      }
    }
  }
  cases.run(1000, /*scale=*/32);
}

// Scores and sums are float32, as on the CPU, but weights are rounded to the dtype of the heads.
TEST(Attention, OfSixteenBits) {
  std::mt19937 random(93);
  DeviceCases cases;
  struct Shape {
    DType dtype;
    std::int64_t length, keys, inner, values;
    bool causal, masked;
  };
  // One case for the width of each kernel, for rows with and without 16-byte alignment, and for
  // several blocks and tiles.
  for (const Shape& s : {Shape{DType::kF16, 150, 150, 16, 16, true, false},
                         Shape{DType::kBF16, 70, 90, 64, 40, false, false},
                         Shape{DType::kF16, 40, 70, 70, 9, false, true},
                         Shape{DType::kBF16, 130, 130, 100, 128, true, true}}) {
    const auto x = [&](std::int64_t rows, std::int64_t columns) {
      return sample(s.dtype, Geometry({2, 2, rows, columns}), random, false);
    };
    const TestTensor q = x(s.length, s.inner), k = x(s.keys, s.inner), v = x(s.keys, s.values);
    const core::Attributes how = {Attribute::of(s.causal), Attribute::of(0.02)};
    TestOperand mask = nullptr;
    if (s.masked) {
      mask = sample(DType::kF32, Geometry({2, 1, s.length, s.keys}), random, false);
    }
    const TestResult y = call_op("attention", {q, k, v, mask}, how);
    ASSERT_TRUE(y.status.ok()) << y.status.message();
    EXPECT_EQ(y[0].dtype, s.dtype);
    EXPECT_EQ(y[1].dtype, DType::kF32);
    cases.need("attention", {q, k, v, mask}, how);
    cases.need("attention_backward", {x(s.length, s.values), q, k, v, y[0], y[1], mask}, how);
  }
  cases.run(/*ulp=*/8, /*scale=*/2);
}

}  // namespace
}  // namespace teletensor::backends::cuda
