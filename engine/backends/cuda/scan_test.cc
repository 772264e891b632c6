// Scans, emulated, against the CPU's kernels.
#include <gtest/gtest.h>

#include <random>

#include "engine/backends/cuda/device_test.h"
#include "engine/backends/cuda/samples_test.h"

namespace teletensor::backends::cuda {
namespace {

using core::Attribute;
using core::Dims;
using core::DType;
using core::Geometry;

TEST(Scan, HasTheBitsOfTheCpu) {
  std::mt19937 random(95);
  DeviceCases cases;
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kI32, DType::kBool}) {
    for (const Geometry& g : {Geometry({3, 40, 5}), Geometry({3, 40, 5}, {200, 1, 40}),
                              Geometry({7}), Geometry(Dims())}) {
      for (const int dim : {0, -1}) {
        const TestTensor x = sample(dtype, g, random), y = sample(dtype, g, random, false);
        const auto d = Attribute::of(dim);
        cases.need("cumsum", {y}, {d});
        cases.need("cumprod", {y}, {d});
        if (core::is_floating(dtype)) cases.need("reverse_cumsum", {y}, {d});
        cases.need("cummax", {x}, {d});
        cases.need("cummin", {x}, {d});
      }
    }
  }
  for (const DType dtype : {DType::kC64, DType::kC128}) {
    cases.need("cumsum", {sample(dtype, Geometry({4, 9}), random, false)}, {Attribute::of(1)});
    cases.need("cumprod", {sample(dtype, Geometry({4, 9}), random, false)}, {Attribute::of(1)});
  }
  EXPECT_FALSE(
      cases.add("cumsum", {sample(DType::kF32, Geometry({5000}), random)}, {Attribute::of(0)}));
  cases.run(0);
}

}  // namespace
}  // namespace teletensor::backends::cuda
