// Runs scans in the emulator and compares them with the CPU's kernels.
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
  cases.run(0);
}

// Integers, whose sums are exact in any order.
TEST(Scan, CutsLongLines) {
  std::mt19937 random(96);
  DeviceCases cases;
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kI32, DType::kI64, DType::kBool}) {
    for (const Geometry& g : {Geometry({5000}), Geometry({2, 4999}), Geometry({4097, 3})}) {
      const auto d = Attribute::of(g.shape[0] > 2 ? 0 : 1);
      const TestTensor x = sample_places(dtype, g, dtype == DType::kBool ? 0 : -3,
                                         dtype == DType::kBool ? 1 : 3, random);
      cases.need("cumsum", {x}, {d});
      cases.need("cumprod", {sample_places(dtype, g, -1, 1, random)}, {d});
      cases.need("cummax", {x}, {d});
      cases.need("cummin", {x}, {d});
      if (core::is_floating(dtype)) cases.need("reverse_cumsum", {x}, {d});
    }
  }
  TestTensor holes = sample_places(DType::kF32, Geometry({6000}), -9, 9, random);
  std::vector<double> values = holes.values();
  values[4500] = std::nan("");
  holes.fill(values);
  cases.need("cummax", {holes}, {Attribute::of(0)});
  cases.need("cummin", {holes}, {Attribute::of(0)});
  cases.run(0);
}

TEST(Scan, SumsOfExponents) {
  std::mt19937 random(97);
  DeviceCases cases;
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    cases.need("logcumsumexp", {sample(dtype, Geometry({3, 40, 5}), random)}, {Attribute::of(1)});
    cases.need("logcumsumexp", {sample(dtype, Geometry({5000}), random, false)},
               {Attribute::of(0)});
  }
  cases.run(64);
}

}  // namespace
}  // namespace teletensor::backends::cuda
