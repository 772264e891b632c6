// Runs the sorting of lines in the emulator and compares it with the CPU's kernels: values,
// positions, ties and NaN agree.
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

// Few different numbers, so that there are many ties; floats include NaN, infinities and both
// zeros.
TestTensor with_ties(DType dtype, const Geometry& geometry, std::mt19937& random) {
  std::vector<double> values = sample_numbers(geometry.numel(), random, dtype);
  for (double& v : values) {
    if (random() % 3 != 0) v = std::round(v);
  }
  TestTensor t(dtype, geometry);
  t.fill(values);
  return t;
}

constexpr DType kSorted[] = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16, DType::kBool,
                             DType::kU8,  DType::kI8,  DType::kI16, DType::kI32,  DType::kI64,
                             DType::kU16, DType::kU32, DType::kU64};

TEST(Sort, PutsLinesInTheCpusOrder) {
  std::mt19937 random(96);
  DeviceCases cases;
  for (const DType dtype : kSorted) {
    const Geometry shape({2, 9, 2});
    for (const bool down : {false, true}) {
      const TestTensor x = with_ties(dtype, shape, random);
      cases.need("sort", {x}, {Attribute::of(1), Attribute::of(down)});
      cases.need("topk", {x}, {Attribute::of(3), Attribute::of(1), Attribute::of(down)});
    }
    if (dtype == DType::kBool) continue;
    const TestTensor x = with_ties(dtype, shape, random);
    cases.need("kthvalue", {x}, {Attribute::of(4), Attribute::of(1)});
    cases.need("median_dim", {x}, {Attribute::of(1)});
    cases.need("median", {x});
  }
  for (const Geometry& g : {Geometry({3, 5}, {1, 3}), Geometry({1}), Geometry(Dims())}) {
    for (const int dim : {0, -1}) {
      const TestTensor x = with_ties(DType::kF32, g, random);
      cases.need("sort", {x}, {Attribute::of(dim), Attribute::of(true)});
      cases.need("argsort", {x}, {Attribute::of(dim), Attribute::of(false)});
      cases.need("topk", {x}, {Attribute::of(1), Attribute::of(dim), Attribute::of(true)});
      cases.need("median_dim", {x}, {Attribute::of(dim)});
    }
  }
  cases.run(0);
}

// Lines that consist of several runs, which are merged, or of which only few elements are kept.
TEST(Sort, LongLines) {
  std::mt19937 random(97);
  DeviceCases cases;
  for (const DType dtype : {DType::kF32, DType::kI64}) {
    for (const std::int64_t n : {512, 513, 1537}) {
      const TestTensor x = with_ties(dtype, Geometry({n}), random);
      const Attribute zero = Attribute::of(0), down = Attribute::of(n % 2 == 0);
      cases.need("sort", {x}, {zero, down});
      for (const int k : {50, 256, 257}) cases.need("topk", {x}, {Attribute::of(k), zero, down});
      cases.need("kthvalue", {x}, {Attribute::of(n), zero});
      cases.need("median", {x});
      TestTensor numbers(dtype, Geometry({n}));  // without NaN
      numbers.fill(sample_numbers(n, random, dtype, false));
      cases.need("median", {numbers});
    }
  }
  cases.need("sort", {with_ties(DType::kF32, Geometry({600, 2}), random)},
             {Attribute::of(0), Attribute::of(false)});
  cases.run(0);
}

}  // namespace
}  // namespace teletensor::backends::cuda
