// Runs matrix products and rows in the emulator and compares them with the CPU's kernels. Sums are
// added in another order than on the CPU, so where bits are compared the samples are small
// integers.
#include <gtest/gtest.h>

#include <random>

#include "engine/backends/cuda/codegen/shapes.h"
#include "engine/backends/cuda/device_test.h"
#include "engine/backends/cuda/plans/matmul_plan.h"
#include "engine/backends/cuda/samples_test.h"

namespace teletensor::backends::cuda {
namespace {

using core::Attribute;
using core::DType;
using core::Geometry;

TEST(Matmul, ProductsOfAnyLayout) {
  std::mt19937 random(31);
  DeviceCases cases;
  for (const DType dtype :
       {DType::kF32, DType::kF16, DType::kF64, DType::kI32, DType::kC64, DType::kC128}) {
    const auto x = [&](const Geometry& g) { return sample_places(dtype, g, 0, 4, random); };
    EXPECT_TRUE(cases.add("matmul", {x(Geometry({70, 33})), x(Geometry({33, 65}))}));
    EXPECT_TRUE(cases.add("matmul", {x(Geometry({7, 33}, {1, 7})), x(Geometry({33, 5}, {1, 33}))}));
    EXPECT_TRUE(cases.add("matmul", {x(Geometry({2, 3, 4, 5})), x(Geometry({3, 5, 6}))}));
    EXPECT_TRUE(cases.add("mv", {x(Geometry({9, 20})), x(Geometry({20}, {2}, 1))}));
    EXPECT_TRUE(cases.add("dot", {x(Geometry({40})), x(Geometry({40}))}));
    EXPECT_TRUE(
        cases.add("linear", {x(Geometry({3, 4, 8})), x(Geometry({6, 8})), x(Geometry({6}))}));
    EXPECT_TRUE(cases.add("addmm", {x(Geometry({1, 6})), x(Geometry({4, 8})), x(Geometry({8, 6}))},
                          {Attribute::of(2.0), Attribute::of(3.0)}));
  }
  cases.run(0);
}

TEST(Matmul, Tiles) {
  LaunchShape shape;
  ASSERT_TRUE(tiles_for(3, 65, 64, shape));
  EXPECT_EQ(shape.grid[0], 6u);
  EXPECT_TRUE(tiles_for(1, std::int64_t{1} << 21, std::int64_t{1} << 21, shape));
  EXPECT_FALSE(tiles_for(1 << 20, std::int64_t{1} << 40, std::int64_t{1} << 40, shape));
}

TEST(Rows, SoftmaxAndItsDerivatives) {
  std::mt19937 random(32);
  DeviceCases cases;
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    for (const Geometry& g : {Geometry({5, 40}), Geometry({3, 700}), Geometry({4, 6, 9}),
                              Geometry({6, 8}, {1, 6}), Geometry({1})}) {
      for (const int dim : {0, -1}) {
        const auto d = Attribute::of(dim);
        const TestTensor x = sample(dtype, g, random, false), y = sample(dtype, g, random, false);
        EXPECT_TRUE(cases.add("softmax", {x}, {d}));
        EXPECT_TRUE(cases.add("log_softmax", {x}, {d}));
        EXPECT_TRUE(cases.add("softmax_backward", {x, y}, {d}));
        EXPECT_TRUE(cases.add("log_softmax_backward", {x, y}, {d}));
      }
    }
  }
  cases.run(2000);  // differences of large numbers lose digits
}

// A thread keeps 4 or 16 elements of a row, or reads them again.
TEST(Rows, OfEveryLength) {
  std::mt19937 random(33);
  DeviceCases cases;
  const auto d = Attribute::of(1);
  // Small values, so that long sums keep enough digits.
  const auto little = [&](DType dtype, const Geometry& g) {
    TestTensor t = sample(dtype, g, random, false);
    std::vector<double> values = t.values();
    for (double& v : values) v /= 64;
    t.fill(values);
    return t;
  };
  for (const std::int64_t length :
       {1, 31, 33, 128, 129, 511, 512, 513, 1024, 1025, 4095, 4096, 4097, 5200}) {
    for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
      const bool turned = length % 2 == 0;
      const Geometry g = turned ? Geometry({3, length}, {1, 3}) : Geometry({3, length});
      const TestTensor x = sample(dtype, g, random, false), y = little(dtype, g),
                       gradient = little(dtype, g);
      cases.need("softmax", {x}, {d});
      cases.need("log_softmax", {x}, {d});
      cases.need("softmax_backward", {gradient, y}, {d});
      cases.need("log_softmax_backward", {gradient, y}, {d});
    }
  }
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::nan("");
  for (const auto& [first, last] : {std::pair{infinity, 1.0},
                                    {-infinity, 1.0},
                                    {1.0, nan},
                                    {nan, infinity},
                                    {-infinity, -infinity}}) {
    for (const std::int64_t length : {2, 600, 5000}) {
      TestTensor x(DType::kF32, Geometry({1, length}));
      std::vector<double> values(static_cast<std::size_t>(length), -infinity);
      values.front() = first;
      values.back() = last;
      x.fill(values);
      cases.need("softmax", {x}, {d});
      cases.need("log_softmax", {x}, {d});
    }
  }
  cases.run(4000);  // differences of large numbers lose digits
}

}  // namespace
}  // namespace teletensor::backends::cuda
