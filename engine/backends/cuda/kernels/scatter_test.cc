// Runs writes by index in the emulator and compares them with the CPU's kernels: equal indices are
// applied in their order.
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

TestTensor places(Dims shape, std::int64_t least, std::int64_t most, std::mt19937& random) {
  return sample_places(DType::kI64, Geometry(shape), least, most, random);
}

TEST(Scatter, HasTheBitsOfTheCpu) {
  std::mt19937 random(81);
  DeviceCases cases;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kI32, DType::kC64, DType::kBool}) {
    const auto x = [&](const Geometry& g) { return sample(dtype, g, random, false); };
    const auto dim = Attribute::of(1);
    const Geometry whole({6, 20, 4});
    const TestTensor few = places({30}, 0, 19, random), signs = places({30}, -20, 19, random);
    for (const double alpha : {1.0, 2.0}) {
      cases.need("index_add", {x(whole), few, x(Geometry({6, 30, 4}))},
                 {dim, Attribute::of(alpha)});
    }
    cases.need("index_copy", {x(whole), few, x(Geometry({6, 30, 4}, {1, 24, 6}))}, {dim});
    cases.need("index_fill", {x(whole), signs, 3}, {dim});
    for (const bool adds : {false, true}) {
      const auto accumulate = Attribute::of(adds);
      cases.need("index_put",
                 {x(whole), x(Geometry({6, 5, 6, 4})), places({5, 6}, -20, 19, random)},
                 {Attribute::of(Dims{1}), accumulate}, {1});
      cases.need("index_put", {x(whole), 2, places({9}, -6, 5, random)},
                 {Attribute::of(Dims{0}), accumulate}, {1});
    }
    for (const bool adds : {false, true}) {
      const core::Attributes both = {Attribute::of(Dims{1, 2}), Attribute::of(adds)};
      cases.need("index_put",
                 {x(whole), x(Geometry({6, 5, 6})), places({5, 6}, -20, 19, random),
                  places({6}, -4, 3, random)},
                 both, {2});
      cases.need("index_put",
                 {x(whole), 2, places({7}, -20, 19, random), places({1}, -4, 3, random)}, both,
                 {2});
      EXPECT_TRUE(cases.add_refused(
          "index_put", {x(whole), 2, places({7}, 0, 19, random), places({7}, 4, 5, random)}, both,
          {2}));
    }
    const TestTensor index = places({5, 12, 3}, 0, 19, random);
    cases.need("scatter", {x(whole), index, x(Geometry({6, 14, 3}))}, {dim});
    cases.need("scatter", {x(whole), index, 2}, {dim});
    cases.need("scatter_add", {x(whole), index, x(Geometry({6, 14, 3}))}, {dim});
    cases.need("scatter_add", {x(Geometry({50})), places({200}, 0, 49, random), x(Geometry({210}))},
               {Attribute::of(0)});
  }
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    for (const std::int64_t padding : {-1, 3}) {
      cases.need("embedding_backward",
                 {sample(dtype, Geometry({4, 9, 7}), random, false), places({4, 9}, 0, 10, random)},
                 {Attribute::of(11), Attribute::of(padding)});
    }
  }
  const TestTensor bad = places({3}, 20, 22, random), low = places({3}, -3, -1, random);
  const TestTensor y = sample(DType::kF32, Geometry({4, 20}), random, false);
  const TestTensor from = sample(DType::kF32, Geometry({4, 3}), random, false);
  for (const TestTensor& index : {bad, low}) {
    EXPECT_TRUE(cases.add_refused("index_add", {y, index, from}, {Attribute::of(1)}));
    EXPECT_TRUE(cases.add_refused("embedding_backward",
                                  {sample(DType::kF32, Geometry({3, 7}), random, false), index},
                                  {Attribute::of(11)}));
  }
  EXPECT_TRUE(cases.add_refused("index_fill", {y, bad, 1}, {Attribute::of(1)}));
  cases.run(0);
}

TEST(Scatter, Reduces) {
  std::mt19937 random(82);
  DeviceCases cases;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI32, DType::kU8, DType::kBool}) {
    for (const char* how : {"sum", "prod", "mean", "amax", "amin"}) {
      for (const bool self : {false, true}) {
        const core::Attributes whole = {Attribute::of(1), Attribute::of(how), Attribute::of(self)};
        cases.need("scatter_reduce",
                   {sample(dtype, Geometry({6, 20, 4}), random), places({5, 12, 3}, 0, 19, random),
                    sample(dtype, Geometry({6, 14, 3}), random)},
                   whole);
        const core::Attributes line = {Attribute::of(0), Attribute::of(how), Attribute::of(self)};
        cases.need("scatter_reduce",
                   {sample(dtype, Geometry({50}), random), places({5000}, 0, 48, random),
                    sample(dtype, Geometry({5010}), random)},
                   line);
      }
    }
  }
  for (const char* how : {"sum", "prod", "mean"}) {
    cases.need("scatter_reduce",
               {sample(DType::kC64, Geometry({4, 9}), random, false), places({4, 20}, 0, 8, random),
                sample(DType::kC64, Geometry({4, 20}), random, false)},
               {Attribute::of(1), Attribute::of(how), Attribute::of(true)});
  }
  EXPECT_TRUE(cases.add_refused(
      "scatter_reduce",
      {sample(DType::kF32, Geometry({4, 9}), random), places({4, 20}, 9, 12, random),
       sample(DType::kF32, Geometry({4, 20}), random)},
      {Attribute::of(1), Attribute::of("amax"), Attribute::of(true)}));
  cases.run(0);
}

}  // namespace
}  // namespace teletensor::backends::cuda
