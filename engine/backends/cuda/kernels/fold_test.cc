// Runs the fold skeleton in the emulator and compares it with the CPU's reductions: the same trees
// give the same bits.
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

TEST(Fold, EveryReductionHasTheTreeOfTheCpu) {
  std::mt19937 random(11);
  DeviceCases cases;
  struct Shape {
    Geometry geometry;
    Dims dims;
  };
  const Shape shapes[] = {
      {Geometry({3, 70}), {1}},       {Geometry({3, 5000}), {1}},
      {Geometry({2, 20, 3}), {1}},    {Geometry({300, 7}), {0}},
      {Geometry({6, 4, 50}), {0, 2}}, {Geometry({5, 40}, {1, 5}), {1}},
      {Geometry({2, 1}), {1}},        {Geometry({9, 33}, {80, 2}, 3), {0, 1}},
  };
  std::size_t turn = 0;
  for (const char* op : {"sum", "mean", "prod", "amax", "amin", "any", "all", "count_nonzero",
                         "var", "std", "logsumexp"}) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kF64, DType::kI32, DType::kBool,
                              DType::kC64, DType::kU64}) {
      for (int i = 0; i < 3; ++i) {
        const Shape& shape = shapes[turn++ % std::size(shapes)];
        const TestTensor x = sample(dtype, shape.geometry, random, turn % 2 == 0);
        cases.add(
            op, {x}, {Attribute::of(shape.dims)}, {},
            "(" + std::string(core::name_of(dtype)) + core::to_string(x.geometry.shape) + ")");
      }
    }
  }
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64, DType::kI64}) {
    for (const Shape& shape : shapes) {
      cases.add("nan_sum", {sample(dtype, shape.geometry, random, true)},
                {Attribute::of(shape.dims)});
    }
  }
  for (const double p : {0.0, 1.0, 2.0, 3.0, HUGE_VAL, -HUGE_VAL}) {
    cases.add("norm", {sample(DType::kF32, Geometry({4, 300}), random, false)},
              {Attribute::of(p), Attribute::of(Dims{1})});
    cases.add("norm", {sample(DType::kF64, Geometry({300, 4}), random, false)},
              {Attribute::of(p), Attribute::of(Dims{0})});
  }
  EXPECT_GT(cases.size(), 150u);
  cases.run(64);
}

TEST(Fold, ManyLeaves) {
  std::mt19937 random(12);
  DeviceCases cases;
  const auto none = Attribute::of(Dims{});
  cases.add("sum", {sample(DType::kF32, Geometry({1'100'003}), random, false)}, {none});
  cases.add("sum", {sample(DType::kF32, Geometry({40000, 4}), random, false)},
            {Attribute::of(Dims{0})});
  cases.add("sum", {sample(DType::kF32, Geometry({130, 4100}), random, false)},
            {Attribute::of(Dims{0})});
  cases.add("max", {sample(DType::kF16, Geometry({70, 70}), random, false)});
  EXPECT_EQ(cases.size(), 4u);
  cases.run(0);
}

// Leaves of every type, with lengths around the number of elements that a thread loads at once,
// with signed zeros, infinities and NaN, and with so many leaves that several blocks merge them.
TEST(Fold, LeavesOfEveryLength) {
  std::mt19937 random(14);
  DeviceCases cases;
  const auto last = Attribute::of(Dims{1});
  for (const DType dtype :
       {DType::kF32, DType::kBF16, DType::kF64, DType::kI64, DType::kC64, DType::kC128}) {
    for (const std::int64_t length : {1, 2, 33, 64, 65, 1023, 1024, 1025, 2047, 2048, 2049, 6200}) {
      const TestTensor x = sample(dtype, Geometry({3, length}), random, length % 2 == 0);
      cases.need("sum", {x}, {last});
      if (!core::is_complex(dtype)) cases.need("amax", {x}, {last});
      if (!core::is_complex(dtype)) cases.need("argmin", {x}, {Attribute::of(1)});
    }
    TestTensor zeros(dtype, Geometry({1, 3000}));
    zeros.fill(std::vector<double>(3000, -0.0));
    cases.need("sum", {zeros}, {last});
  }
  const Attribute first = Attribute::of(Dims{0});
  for (const std::int64_t rows : {130'000, 530'000, 1'050'000}) {  // leaves have 64 rows
    cases.need("sum", {sample(DType::kF32, Geometry({rows, 5}), random, false)}, {first});
    cases.need("argmax", {sample(DType::kF32, Geometry({rows, 5}), random, false)},
               {Attribute::of(0)});
  }
  cases.run(0);
}

TEST(Fold, TheFirstOfEqualElements) {
  std::mt19937 random(13);
  DeviceCases cases;
  for (const char* op : {"argmax", "argmin", "max_dim", "min_dim"}) {
    for (const DType dtype : {DType::kF32, DType::kI32, DType::kBF16, DType::kU64}) {
      for (const int dim : {0, 1}) {
        cases.add(op, {sample(dtype, Geometry({90, 50}), random, dim == 0)}, {Attribute::of(dim)},
                  {}, "(" + std::string(core::name_of(dtype)) + ", " + std::to_string(dim) + ")");
        cases.add(
            op, {sample(dtype, Geometry({3, 3000}, {1, 3}), random, true)}, {Attribute::of(dim)},
            {},
            "(transposed " + std::string(core::name_of(dtype)) + ", " + std::to_string(dim) + ")");
      }
    }
  }
  EXPECT_EQ(cases.size(), 64u);
  cases.run(0);
}

}  // namespace
}  // namespace teletensor::backends::cuda
