// Runs random numbers in the emulator and compares them with the CPU's: the same key and ordinal
// give the same bits.
#include <gtest/gtest.h>

#include <random>

#include "engine/backends/cuda/device_test.h"
#include "engine/backends/cuda/samples_test.h"

namespace teletensor::backends::cuda {
namespace {

using core::Attribute;
using core::Attributes;
using core::Dims;
using core::DType;
using core::Geometry;

TEST(Random, TheBitsOfTheCpu) {
  std::mt19937 random(51);
  DeviceCases cases;
  const Attribute seed = Attribute::of(std::int64_t{0x123456789abcdef}), ordinal = Attribute::of(7);
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
    const TestTensor x = sample(dtype, Geometry({3, 701}), random);
    cases.need("uniform", {x}, {Attribute::of(-2.0), Attribute::of(3.0), seed, ordinal});
    cases.need("normal", {x}, {Attribute::of(1.0), Attribute::of(0.5), seed, ordinal});
    cases.need("bernoulli_p", {x}, {Attribute::of(0.3), seed, ordinal});
    for (const double p : {0.0, 0.1, 1.0})
      cases.need("dropout", {x}, {Attribute::of(p), seed, ordinal});
  }
  const TestTensor n = sample(DType::kI32, Geometry({501}), random);
  cases.need("random_from", {n}, {Attribute::of(-5), Attribute::of(1000), seed, ordinal});
  cases.run(0);
}

}  // namespace
}  // namespace teletensor::backends::cuda
