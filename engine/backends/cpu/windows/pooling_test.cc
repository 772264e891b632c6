// max_pool equals a search of each window, element by element: the first maximum wins, and a NaN is
// larger than any number.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "engine/backends/cpu/kernel_test.h"

namespace teletensor::backends::cpu {
namespace {

using core::Attribute;
using core::Dims;
using core::DType;
using core::Geometry;
using Ints = std::vector<std::int64_t>;

// The facts of a pool of an image of [height, width].
struct Pool {
  Ints size, kernel, stride, padding, dilation;
};

struct Maximum {
  double value;
  std::int64_t place;
};

// Searches the window of the output element (i, j).
Maximum search(const Pool& p, const std::vector<double>& x, std::int64_t i, std::int64_t j) {
  Maximum best{-std::numeric_limits<double>::infinity(), -1};
  for (std::int64_t a = 0; a < p.kernel[0]; ++a) {
    for (std::int64_t b = 0; b < p.kernel[1]; ++b) {
      const std::int64_t row = i * p.stride[0] - p.padding[0] + a * p.dilation[0];
      const std::int64_t column = j * p.stride[1] - p.padding[1] + b * p.dilation[1];
      if (row < 0 || row >= p.size[0] || column < 0 || column >= p.size[1]) continue;
      const std::int64_t place = row * p.size[1] + column;
      const double value = x[static_cast<std::size_t>(place)];
      if (best.place < 0 || value > best.value || std::isnan(value)) best = {value, place};
    }
  }
  return best;
}

TEST(MaxPool, EqualsASearchOfEachWindow) {
  std::mt19937 random(7);
  const auto draw = [&](std::int64_t from, std::int64_t to) {
    return std::uniform_int_distribution<std::int64_t>(from, to)(random);
  };
  const auto ints = [](const Ints& list) { return Attribute::of(std::span(list)); };
  for (int round = 0; round < 300; ++round) {
    Pool p;
    for (int d = 0; d < 2; ++d) {
      p.kernel.push_back(draw(1, 4));
      p.stride.push_back(draw(1, 4));
      p.padding.push_back(draw(0, p.kernel.back() / 2));
      p.dilation.push_back(draw(1, 3));
      const std::int64_t span = (p.kernel.back() - 1) * p.dilation.back() + 1;
      p.size.push_back(draw(span, span + (d == 1 && round % 10 == 0 ? 1500 : 20)));
    }
    const DType dtype = round % 3 == 0 ? DType::kF64 : DType::kF32;
    std::vector<double> x(static_cast<std::size_t>(p.size[0] * p.size[1]));
    for (double& value : x) {
      value = static_cast<double>(draw(-3, 3));  // with many equal values
      if (round % 4 == 1 && draw(0, 20) == 0) value = std::numeric_limits<double>::quiet_NaN();
    }
    const TestTensor image(dtype, Dims{1, 1, p.size[0], p.size[1]}, x);
    const TestResult result = call_op("max_pool", {image},
                                      {ints(p.kernel), ints(p.stride), ints(p.padding),
                                       ints(p.dilation), Attribute::of(round % 2 == 0)});
    ASSERT_TRUE(result.status.ok()) << result.status.message();
    const std::vector<double> values = result[0].values(), places = result[1].values();
    const Dims& shape = result[0].geometry.shape;
    for (std::int64_t i = 0; i < shape[2]; ++i) {
      for (std::int64_t j = 0; j < shape[3]; ++j) {
        const auto at = static_cast<std::size_t>(i * shape[3] + j);
        const Maximum wanted = search(p, x, i, j);
        if (std::isnan(wanted.value)) {
          ASSERT_TRUE(std::isnan(values[at])) << "round " << round;
        } else {
          ASSERT_EQ(values[at], wanted.value) << "round " << round;
        }
        ASSERT_EQ(places[at], static_cast<double>(wanted.place)) << "round " << round;
      }
    }
  }
}

}  // namespace
}  // namespace teletensor::backends::cpu
