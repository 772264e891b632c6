// Convolutions in f32, which oneDNN and matrix products compute in parts, equal those in f64, which
// our own code computes. The operands are small integers, so that all sums are exact.
#include <gtest/gtest.h>

#include "engine/backends/cpu/kernel_test.h"
#include "engine/backends/cpu/windows/conv_slices.h"

namespace teletensor::backends::cpu {
namespace {

using core::Attribute;
using core::Dims;
using core::DType;
using core::Geometry;
using Ints = std::vector<std::int64_t>;

struct Case {
  const char* name;
  Dims x, weight;
  Ints stride, padding, dilation;
  std::int64_t groups = 1;
};

// Each has work for several parts of about a fifth of a millisecond.
const Case kCases[] = {
    {"rows", {1, 64, 56, 56}, {64, 64, 3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"rows_with_stride", {1, 32, 97, 95}, {64, 32, 3, 3}, {2, 2}, {1, 0}, {1, 1}},
    {"rows_with_dilation", {1, 32, 70, 70}, {48, 32, 3, 3}, {1, 1}, {4, 4}, {4, 4}},
    {"channels", {1, 256, 14, 14}, {200, 256, 3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"channels_of_two_images", {2, 256, 14, 14}, {256, 256, 3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"groups", {1, 96, 56, 56}, {96, 32, 3, 3}, {1, 1}, {1, 1}, {1, 1}, 3},
    {"depthwise", {1, 144, 112, 112}, {144, 1, 3, 3}, {1, 1}, {1, 1}, {1, 1}, 144},
    {"pointwise", {1, 64, 56, 56}, {256, 64, 1, 1}, {1, 1}, {0, 0}, {1, 1}},
    {"pointwise_in_ranges", {13, 96, 20, 20}, {200, 96, 1, 1}, {1, 1}, {0, 0}, {1, 1}},
    {"pointwise_large_weight", {3, 600, 7, 7}, {520, 600, 1, 1}, {1, 1}, {0, 0}, {1, 1}},
    {"pointwise_of_one_dimension", {5, 64, 900}, {70, 64, 1}, {1}, {0}, {1}},
    {"large_weight", {4, 320, 7, 7}, {320, 320, 3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"one_dimension", {1, 64, 4000}, {64, 64, 5}, {1}, {2}, {1}},
    {"three_dimensions", {1, 32, 12, 28, 28}, {32, 32, 3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}},
};

class Convolutions : public testing::TestWithParam<Case> {};

TEST_P(Convolutions, InPartsEqualTheWhole) {
  const Case& c = GetParam();
  const auto ints = [](const Ints& list) { return Attribute::of(std::span(list)); };
  const Ints none(c.stride.size(), 0);
  const auto attributes = [&](bool transposed) {
    return core::Attributes{ints(c.stride),   ints(c.padding),
                            ints(c.dilation), Attribute::of(transposed),
                            ints(none),       Attribute::of(c.groups)};
  };
  std::vector<std::vector<double>> results[2];
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    auto& here = results[dtype == DType::kF64];
    const TestTensor x = small_integers(dtype, c.x, 1), weight = small_integers(dtype, c.weight, 2),
                     bias = small_integers(dtype, {c.weight[0]}, 3);
    const TestResult y = call_op("convolution", {x, weight, bias}, attributes(false));
    ASSERT_TRUE(y.status.ok()) << y.status.message();
    const TestTensor g = small_integers(dtype, y[0].geometry.shape, 4);
    const TestResult dx = call_op("convolution", {g, weight, nullptr}, attributes(true));
    ASSERT_TRUE(dx.status.ok()) << dx.status.message();
    const Ints kernel(c.weight.begin() + 2, c.weight.end());
    const TestResult dw = call_op(
        "convolution_weight", {x, g},
        {ints(kernel), ints(c.stride), ints(c.padding), ints(c.dilation), Attribute::of(c.groups)});
    ASSERT_TRUE(dw.status.ok()) << dw.status.message();
    for (const TestResult* result : {&y, &dx, &dw}) here.push_back((*result)[0].values());
  }
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(results[0][i], results[1][i]) << "pass " << i;
}

INSTANTIATE_TEST_SUITE_P(Cases, Convolutions, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

// The slices of a pass cover each element of its result once.
TEST(ConvSlices, CoverTheResult) {
  Conv conv;
  conv.batch = 1, conv.spatial = 2, conv.in_channels = 70, conv.out_channels = 90;
  for (int d : {1, 2}) conv.kernel[d] = 3, conv.padding[d] = 1, conv.in[d] = conv.out[d] = 31;
  for (const std::int64_t in : {3, 31, 90}) {
    conv.in[1] = conv.out[1] = in;
    for (const ConvPass pass : {ConvPass::kOutput, ConvPass::kInput, ConvPass::kWeight}) {
      for (const std::int64_t most : {1, 2, 3, 7, 64}) {
        const auto slices = slices_of(conv, pass, most);
        EXPECT_GE(slices.size(), 1u);
        EXPECT_LE(slices.size(), static_cast<std::size_t>(most));
        std::int64_t covered = 0, whole = 0;
        for (const ConvSlice& s : slices) {
          const Conv& c = s.conv;
          covered += pass == ConvPass::kOutput  ? c.out_channels * c.out_area()
                     : pass == ConvPass::kInput ? c.in_channels * c.in_area()
                                                : c.out_channels * c.in_channels * c.taps();
        }
        whole = pass == ConvPass::kOutput  ? conv.out_channels * conv.out_area()
                : pass == ConvPass::kInput ? conv.in_channels * conv.in_area()
                                           : conv.out_channels * conv.in_channels * conv.taps();
        EXPECT_EQ(covered, whole);
      }
    }
  }
}

}  // namespace
}  // namespace teletensor::backends::cpu
