// Runs the loop skeleton in the emulator, compares it with the CPU's kernels, and tests the launch
// geometry.
#include <gtest/gtest.h>

#include <random>

#include "engine/backends/cuda/codegen/shapes.h"
#include "engine/backends/cuda/device_test.h"
#include "engine/backends/cuda/samples_test.h"

namespace teletensor::backends::cuda {
namespace {

using core::DType;
using core::Geometry;

TestTensor tensor(DType dtype, const Geometry& geometry, std::mt19937& random) {
  return sample(dtype, geometry, random);
}

// Operand layouts for a result of shape [6, 40] that lead to each kind of Access.
const std::vector<std::vector<Geometry>>& layouts() {
  static const std::vector<std::vector<Geometry>> all = {
      {Geometry({6, 40}), Geometry({6, 40}), Geometry({6, 40})},
      {Geometry({6, 40}), Geometry({40}), Geometry({6, 1})},
      {Geometry({6, 40}, {1, 6}), Geometry({6, 40}), Geometry({1})},
      {Geometry({6, 40}, {80, 2}, 3), Geometry({6, 40}, {48, 1}, 8), Geometry({6, 40}, {41, 1}, 1)},
      {Geometry({241}, {1}, 1), Geometry({241}), Geometry({1})},
  };
  return all;
}

TEST(Loop, EveryElementwiseOpComputesTheBitsOfTheCpu) {
  std::mt19937 random(7);
  DeviceCases cases;
  const DeviceTable table = make_device_table(ops::catalog());
  std::size_t ops = 0;
  for (ops::OpId id = 0; id < ops::catalog().size(); ++id) {
    const ops::OpDef& op = ops::catalog().at(id);
    if (table.find(id).skeleton != Skeleton::kLoop) continue;
    bool any = false;
    std::size_t turn = id;
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64, DType::kI32,
                              DType::kU8, DType::kI64, DType::kBool, DType::kC64, DType::kU64}) {
      if (!DeviceCases::thorough() && ++turn % 3 != 0) continue;
      const auto& geometries = layouts()[turn / 3 % layouts().size()];
      std::vector<TestOperand> operands;
      for (int i = 0; i < op.operand_parameters; ++i) {
        const bool condition =
            (op.name == "where" && i == 0) || (op.name == "masked_fill" && i == 1);
        if (op.name == "masked_fill" && i == 2) {
          operands.emplace_back(1.5);
        } else {
          operands.emplace_back(tensor(condition ? DType::kBool : dtype,
                                       geometries[static_cast<std::size_t>(i) % 3], random));
        }
      }
      any = cases.add(std::string(op.name), operands, {}, {},
                      "(" + std::string(core::name_of(dtype)) + ")") ||
            any;
    }
    ops += any;
  }
  EXPECT_GT(ops, 60u);
  cases.run(/*ulp=*/64);
}

// Ops that the generic test above cannot call, because they have attributes or special operands.
TEST(Loop, SpecialFunctions) {
  std::mt19937 random(10);
  DeviceCases cases;
  const Geometry shape({4, 30});
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    const TestTensor x = tensor(dtype, shape, random);
    const TestTensor positive = sample_places(dtype, shape, 1, 30, random);
    for (const int order : {0, 1, 3}) {
      cases.need("polygamma", {positive}, {core::Attribute::of(order)});
    }
    for (const char* op :
         {"igamma", "igammac", "special_zeta", "nextafter", "xlogy", "logaddexp"}) {
      cases.need(op, {positive, tensor(dtype, shape, random)});
    }
    cases.need("special_legendre_polynomial_p", {x, sample_places(dtype, shape, 0, 9, random)});
    cases.need("lgamma", {positive});
    cases.need("nan_to_num", {x}, {core::Attribute::of(1.5), core::Attribute(), core::Attribute()});
    cases.need("logit", {x}, {core::Attribute::of(0.25)});
    cases.need("outer",
               {sample(dtype, Geometry({7}), random), sample(dtype, Geometry({9}), random)});
  }
  const TestTensor a = sample_places(DType::kI64, shape, -90, 90, random);
  for (const char* op : {"gcd", "lcm"}) {
    cases.need(op, {a, sample_places(DType::kI64, shape, -90, 90, random)});
  }
  cases.run(/*ulp=*/64);
}

TEST(Loop, NumbersAndMixedDTypes) {
  std::mt19937 random(8);
  DeviceCases cases;
  const Geometry shape({5, 24});
  for (const DType a : {DType::kF32, DType::kBF16, DType::kI32, DType::kU8, DType::kI64}) {
    const TestTensor x = tensor(a, shape, random);
    for (const DType b : {DType::kF16, DType::kF64, DType::kI8, DType::kBool, DType::kC64}) {
      cases.add("add", {x, tensor(b, shape, random)});
      cases.add("mul", {x, tensor(b, Geometry({1, 24}), random)});
      cases.add("lt", {x, tensor(b, shape, random)});
      cases.add("cast", {x}, {core::Attribute::of(b)});
      for (const char* op : {"mul", "div", "sub", "eq"}) {
        cases.add(op, {x, tensor(b, Geometry(core::Dims()), random)});
      }
    }
    cases.add("add", {x, 3});
    cases.add("add", {x, 0.1});
    cases.add("pow", {x, 2});
    cases.add("pow", {x, 3.0});
    cases.add("clamp", {x, -1, 2});
    cases.add("hardtanh", {x});
  }
  EXPECT_GT(cases.size(), 80u);
  cases.run(8);
}

TEST(Shapes, ThreadsForManyElements) {
  LaunchShape shape;
  ASSERT_TRUE(threads_for(1, 4, shape));
  EXPECT_EQ(shape.grid[0], 1u);
  ASSERT_TRUE(threads_for(1025, 4, shape));
  EXPECT_EQ(shape.grid[0], 2u);
  ASSERT_TRUE(threads_for(std::int64_t{5} << 31, 1, shape));
  EXPECT_EQ(shape.grid[0], (std::int64_t{5} << 31) / kBlockThreads);
  EXPECT_TRUE(threads_for(kMaxBlocks * kBlockThreads, 1, shape));
  EXPECT_FALSE(threads_for(kMaxBlocks * kBlockThreads + 1, 1, shape));
  EXPECT_TRUE(threads_for(INT64_MAX >> 20, 64, shape));
}

TEST(Shapes, DivisionByMultiplication) {
  std::mt19937 random(9);
  const auto divide = [](std::uint32_t n, const Divisor& d) {
    const auto high = static_cast<std::uint32_t>((std::uint64_t{n} * d.magic) >> 32);
    return (high + n) >> d.shift;
  };
  for (std::int64_t size :
       {1ll, 2ll, 3ll, 7ll, 10ll, 641ll, 65535ll, 65536ll, 65537ll, 0x7ffffffell, 0x7fffffffll}) {
    const Divisor d = divisor_of(size);
    for (const std::uint32_t n : {0u, 1u, 2u, 6u, 7u, 640u, 641u, 0x7ffffffeu, 0x7fffffffu}) {
      EXPECT_EQ(divide(n, d), n / size) << n << " / " << size;
    }
    for (int i = 0; i < 2000; ++i) {
      const std::uint32_t n = random() >> 1;
      ASSERT_EQ(divide(n, d), n / size) << n << " / " << size;
    }
  }
}

TEST(Shapes, Widths) {
  EXPECT_EQ(width_for(4, 4), 4);
  EXPECT_EQ(width_for(2, 2), 8);
  EXPECT_EQ(width_for(8, 8), 2);
  EXPECT_EQ(width_for(16, 16), 1);
  EXPECT_EQ(width_for(1, 4), 8);
  EXPECT_EQ(width_for(1, 16), 2);
}

}  // namespace
}  // namespace teletensor::backends::cuda
