// Runs selections by mask in the emulator and compares them with the CPU's kernels.
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

TestTensor holes(DType dtype, const Geometry& geometry, std::mt19937& random) {
  return sample_places(dtype, geometry, 0, core::is_floating(dtype) ? 2 : 1, random);
}

std::int64_t nonzeros(const TestTensor& x) {
  std::int64_t n = 0;
  for (const double v : x.values()) n += v != 0;
  return n;
}

TEST(Select, FindsWhatIsNotZero) {
  std::mt19937 random(98);
  DeviceCases cases;
  const std::vector<Geometry> shapes = {Geometry({5000}), Geometry({3, 7, 50}, {350, 1, 7}),
                                        Geometry({2, 1}), Geometry(Dims())};
  for (const DType dtype : {DType::kBool, DType::kF32, DType::kBF16, DType::kI64, DType::kC64}) {
    for (const Geometry& g : shapes) {
      const TestTensor x = holes(dtype, g, random);
      const std::int64_t found = nonzeros(x);
      cases.need("nonzero", {x}, {Attribute::of(found)});
      for (const std::int64_t size : {found / 2, found + 5}) {
        cases.need("nonzero_static", {x}, {Attribute::of(size), Attribute::of(-7)});
      }
      const bool refuses =
          found > 0 && cases.add_refused("nonzero", {x}, {Attribute::of(found - 1)});
      EXPECT_EQ(refuses, found > 0);
    }
  }
  const TestTensor none(DType::kBool, Geometry({2000}));
  cases.need("nonzero", {none}, {Attribute::of(0)});
  EXPECT_TRUE(cases.add_refused("nonzero", {none}, {Attribute::of(3)}));
  cases.run(0);
}

TEST(Select, MovesWhatIsMasked) {
  std::mt19937 random(99);
  DeviceCases cases;
  for (const DType dtype : {DType::kU8, DType::kF16, DType::kF32, DType::kF64, DType::kC128}) {
    for (const Geometry& g : {Geometry({40, 60}), Geometry({40, 60}, {1, 40})}) {
      const TestTensor x = sample(dtype, g, random);
      for (const Geometry& m : {Geometry({40, 60}), Geometry({60}), Geometry({40, 1})}) {
        const TestTensor mask = holes(DType::kBool, m, random);
        cases.need("masked_pack", {x, mask}, {Attribute::of(Dims{2400})});
        cases.need("masked_pack", {x, mask}, {Attribute::of(Dims{3, 9})});
        if (!g.contiguous()) continue;
        const TestTensor source = sample(dtype, Geometry({2400}), random);
        cases.need("masked_scatter", {x, mask, source});
      }
    }
  }
  TestTensor all(DType::kBool, Geometry({30}));
  all.fill(std::vector<double>(30, 1));
  const TestTensor x = sample(DType::kF32, Geometry({30}), random);
  EXPECT_TRUE(
      cases.add_refused("masked_scatter", {x, all, sample(DType::kF32, Geometry({29}), random)}));
  cases.run(0);
}

}  // namespace
}  // namespace teletensor::backends::cuda
