// Runs copies, joins and regions in the emulator and compares them with the CPU's kernels.
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

TEST(Copies, MoveTheSameElements) {
  std::mt19937 random(21);
  DeviceCases cases;
  for (const DType dtype : {DType::kF32, DType::kU8, DType::kC128, DType::kBF16}) {
    const TestTensor x = sample(dtype, Geometry({6, 20}), random);
    const TestTensor y = sample(dtype, Geometry({6, 20}, {1, 6}), random);
    const TestTensor z = sample(dtype, Geometry({6, 3}), random);
    cases.need("reshape", {y}, {Attribute::of(Dims{10, 12})});
    cases.need("cat", {x, y, z}, {Attribute::of(1)}, {3});
    cases.need("stack", {x, y}, {Attribute::of(-1)}, {2});
    cases.need("full", {2}, {Attribute::of(Dims{5, 7}), Attribute::of(dtype)});
    cases.need("eye", {}, {Attribute::of(4), Attribute::of(6), Attribute::of(dtype)});
    cases.need("diag", {x}, {Attribute::of(2)});
    cases.need("diag", {sample(dtype, Geometry({5}), random)}, {Attribute::of(-1)});
    const core::Attributes region = {Attribute::of(Dims{6, 20}), Attribute::of(Dims{20, 1}),
                                     Attribute::of(Dims{3, 5}), Attribute::of(Dims{40, 3}),
                                     Attribute::of(21)};
    cases.need("index_region", {x}, region);
    cases.need("update_region", {x, sample(dtype, Geometry({3, 5}), random)}, region);
    cases.need("add_region", {x, sample(dtype, Geometry({3, 5}), random)}, region);
    cases.need("scatter_region", {sample(dtype, Geometry({3, 5}), random)}, region);
    cases.need("conj", {x}, {});
    const TestTensor holds(DType::kBool, Dims{2}, {1, 1});
    cases.need("require", {y, holds}, {Attribute::of("never said")});
  }
  const TestTensor c = sample(DType::kC64, Geometry({4, 10}, {1, 4}), random);
  cases.need("view_as_real", {c}, {});
  cases.need("view_as_complex", {sample(DType::kF64, Geometry({3, 4, 2}), random)}, {});
  cases.run(0);
}

}  // namespace
}  // namespace teletensor::backends::cuda
