// Runs the index kernels in the emulator and compares them with the CPU's kernels; an index out of
// range sets the flag.
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

TEST(Index, TakesFromAllElements) {
  std::mt19937 random(44);
  DeviceCases cases;
  for (const Geometry& g : {Geometry({6, 7}), Geometry({6, 7}, {1, 6}), Geometry(Dims())}) {
    const std::int64_t n = g.numel();
    const TestTensor x = sample(DType::kF32, g, random);
    const TestTensor places = sample_places(DType::kI64, Geometry({4, 9}), -n, n - 1, random);
    cases.need("take", {x, places});
    EXPECT_TRUE(cases.add_refused(
        "take", {x, sample_places(DType::kI64, Geometry({3}), n, n + 1, random)}));
  }
  cases.run(0);
}

// Indices that are known to be in range are not checked, so no call has to wait for a check.
TEST(Index, WhatIsKnownIsNotChecked) {
  static const DeviceTable table = make_device_table(ops::catalog());
  std::mt19937 random(43);
  TestScratch scratch;
  const TestTensor x = sample(DType::kF32, Geometry({6, 4}), random);
  TestOperand places(sample_places(DType::kI64, Geometry({9}), 0, 5, random));
  const auto describe = [&](const char* op, const std::vector<TestOperand>& operands,
                            const core::Attributes& attributes = {},
                            const std::vector<std::uint32_t>& counts = {}) {
    Work work;
    const TestResult result =
        call_op(op, operands, attributes, counts, [&](KernelCall& call) -> core::Status {
          KernelCall lasting{call.op,         call.in,       call.out, call.counts,
                             call.attributes, call.parallel, scratch};
          return table.find(ops::catalog().id(call.op)).describe(lasting, work);
        });
    EXPECT_TRUE(result.status.ok()) << op << ": " << result.status.message();
    return work;
  };
  const Work unknown = describe("embedding", {x, places});
  EXPECT_TRUE(unknown.checks);
  EXPECT_EQ(unknown.launches.size(), 2u);

  core::Bounds bounds;
  places.bounds = &bounds;
  const Work first = describe("embedding", {x, places});
  EXPECT_TRUE(first.checks);
  ASSERT_EQ(first.proofs.size(), 1u);
  EXPECT_EQ(first.proofs[0].of, &bounds);
  bounds.narrow(first.proofs[0].dtype, first.proofs[0].least, first.proofs[0].most);
  EXPECT_TRUE(bounds.within(DType::kI64, 0, 5));

  for (const Work& work : {describe("embedding", {x, places}),
                           describe("index_select", {x, places}, {Attribute::of(0)}),
                           describe("index", {x, places}, {Attribute::of(Dims{0})}, {1})}) {
    EXPECT_FALSE(work.checks);
    EXPECT_EQ(work.launches.size(), 1u);
  }
  // With a smaller table an index may be out of range, so it is checked.
  EXPECT_TRUE(
      describe("embedding", {sample(DType::kF32, Geometry({5, 4}), random), places}).checks);
  const TestTensor scores = sample(DType::kF32, Geometry({9, 6}), random);
  const core::Attributes mean{Attribute::of(-100), Attribute::of("mean")};
  EXPECT_FALSE(describe("nll_loss", {scores, places, nullptr}, mean).checks);
  places.bounds = nullptr;
  EXPECT_TRUE(describe("nll_loss", {scores, places, nullptr}, mean).checks);
}

}  // namespace
}  // namespace teletensor::backends::cuda
