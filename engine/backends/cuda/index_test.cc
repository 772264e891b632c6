// Picks by index tensors, emulated, against the CPU's kernels; what is out of range sets the flag.
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

TEST(Index, PicksTheSameElements) {
  std::mt19937 random(41);
  DeviceCases cases;
  for (const DType dtype : {DType::kF32, DType::kU8, DType::kC128, DType::kF16}) {
    const TestTensor x = sample(dtype, Geometry({6, 20, 4}), random);
    const TestTensor t = sample(dtype, Geometry({6, 20, 4}, {1, 24, 6}), random);
    for (const TestTensor& from : {x, t}) {
      cases.need("gather", {from, sample_places(DType::kI64, Geometry({3, 9, 4}), 0, 19, random)},
                 {Attribute::of(1)});
      cases.need("index_select",
                 {from, sample_places(DType::kI32, Geometry({7}, {2}, 1), 0, 3, random)},
                 {Attribute::of(-1)});
      cases.need("index", {from, sample_places(DType::kI64, Geometry({5, 2}), -6, 5, random)},
                 {Attribute::of(Dims{0})}, {1});
      cases.need("index",
                 {from, sample_places(DType::kI64, Geometry({5, 1}), -6, 5, random),
                  sample_places(DType::kI64, Geometry({3}), 0, 19, random)},
                 {Attribute::of(Dims{0, 1})}, {2});
    }
    cases.need("embedding",
               {sample(dtype, Geometry({11, 8}), random),
                sample_places(DType::kI64, Geometry({3, 5}), 0, 10, random)},
               {});
  }
  cases.run(0);
}

TEST(Index, OutOfRangeAndZeroDivisorsAreFlagged) {
  std::mt19937 random(42);
  DeviceCases cases;
  const TestTensor x = sample(DType::kF32, Geometry({6, 4}), random);
  const TestTensor bad(DType::kI64, {3}, {0, 6, 1}), low(DType::kI64, {3}, {0, -1, 1});
  EXPECT_TRUE(cases.add_refused("index_select", {x, bad}, {Attribute::of(0)}));
  EXPECT_TRUE(cases.add_refused("index_select", {x, low}, {Attribute::of(0)}));
  EXPECT_TRUE(cases.add_refused("embedding", {x, bad}));
  const TestTensor n(DType::kI32, {3}, {7, -8, 9}), zero(DType::kI32, {3}, {2, 0, 3});
  const TestTensor two(DType::kI32, {3}, {2, -3, -1});
  for (const char* op : {"floor_divide", "remainder", "fmod"}) {
    EXPECT_TRUE(cases.add_refused(op, {n, zero}));
    EXPECT_TRUE(cases.add(op, {n, two}));
    EXPECT_TRUE(cases.add(op, {n, 3}));
  }
  cases.run(0);
}

}  // namespace
}  // namespace teletensor::backends::cuda
