// Runs kernels of the cell skeleton in the emulator and compares them with the CPU's kernels.
#include <gtest/gtest.h>

#include <random>

#include "engine/backends/cuda/codegen/recipes.h"
#include "engine/backends/cuda/device_test.h"
#include "engine/backends/cuda/samples_test.h"

namespace teletensor::backends::cuda {
namespace {

using core::Attribute;
using core::Attributes;
using core::Dims;
using core::DType;
using core::Geometry;

TEST(Cells, PoolingHasTheBitsOfTheCpu) {
  std::mt19937 random(61);
  DeviceCases cases;
  const auto ints = [](Dims d) { return Attribute::of(d); };
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kI32}) {
    const bool real = core::is_floating(dtype);
    const Geometry image({2, 3, 11, 9}), turned({2, 3, 11, 9}, {297, 1, 27, 3});
    for (const Geometry& g : {image, turned}) {
      const TestTensor x = sample(dtype, g, random);
      cases.need("max_pool", {x},
                 {ints({3, 2}), ints({2, 2}), ints({1, 1}), ints({2, 1}), Attribute::of(true)});
      cases.need("adaptive_max_pool", {x}, {ints({4, 5})});
      if (!real) continue;
      const TestTensor y = sample(dtype, g, random, false);
      cases.need(
          "avg_pool", {y},
          {ints({3, 2}), ints({2, 1}), ints({1, 0}), Attribute::of(true), Attribute::of(false)});
      cases.need(
          "avg_pool", {y},
          {ints({3, 3}), ints({3, 2}), ints({1, 1}), Attribute::of(false), Attribute::of(true)});
      cases.need("adaptive_avg_pool", {y}, {ints({4, 12})});
    }
    if (!real) continue;
    const TestTensor g = sample(dtype, Geometry({2, 3, 6, 8}), random, false);
    cases.need("avg_pool_backward", {g},
               {ints({3, 2}), ints({2, 1}), ints({1, 0}), Attribute::of(true), Attribute::of(false),
                Attribute::none(), ints({2, 3, 11, 9})});
    cases.need("adaptive_avg_pool_backward", {g}, {ints({11, 9})});
    cases.need("adaptive_avg_pool_backward", {g}, {ints({4, 5})});
    const TestTensor volume = sample(dtype, Geometry({1, 2, 4, 5, 6}), random, false);
    cases.need(
        "max_pool", {volume},
        {ints({2, 2, 2}), ints({2, 2, 1}), ints({0, 1, 1}), ints({1, 1, 1}), Attribute::of(false)});
  }
  TestTensor places(DType::kI64, Geometry({2, 3, 2, 2}));
  std::vector<double> at(24);
  for (double& v : at) v = static_cast<double>(random() % 5);
  places.fill(at);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI64}) {
    for (const bool adds : {false, true}) {
      cases.need("max_unpool", {sample(dtype, Geometry({2, 3, 2, 2}), random, false), places},
                 {ints({4, 4}), Attribute::of(adds)});
    }
  }
  at[7] = 16;
  TestTensor bad(DType::kI64, Geometry({2, 3, 2, 2}));
  bad.fill(at);
  EXPECT_TRUE(cases.add_refused("max_unpool",
                                {sample(DType::kF32, Geometry({2, 3, 2, 2}), random, false), bad},
                                {ints({4, 4}), Attribute::of(true)}));
  cases.run(0);
}

// Planes with more elements than a block processes at a time. Several elements go to the same
// position, to positions with the same remainder, or to distant positions.
TEST(Cells, UnpoolingKeepsTheOrderOfElements) {
  std::mt19937 random(64);
  DeviceCases cases;
  const Geometry in({2, 2, 24, 25});
  for (const std::int64_t most : {0, 2, 300, 6399}) {
    const TestTensor near = sample_places(DType::kI64, in, 0, most, random);
    TestTensor far(DType::kI64, in);
    std::vector<double> values = near.values();
    for (double& v : values) v = v == 0 ? 1 : static_cast<double>(2048 * (random() % 3) + 1);
    far.fill(values);
    for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kI32}) {
      for (const bool adds : {false, true}) {
        for (const TestTensor& places : {near, far}) {
          cases.need("max_unpool", {sample(dtype, in, random), places},
                     {Attribute::of(Dims{80, 80}), Attribute::of(adds)});
        }
      }
    }
  }
  cases.run(0);
}

// Windows with more columns than are loaded at once, with gaps between them.
TEST(Cells, MaxPoolingOfWideWindows) {
  std::mt19937 random(65);
  DeviceCases cases;
  const auto ints = [](Dims d) { return Attribute::of(d); };
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64, DType::kI64}) {
    const TestTensor x = sample(dtype, Geometry({1, 2, 7, 40}), random);
    for (const std::int64_t width : {1, 3, 4, 5, 9}) {
      for (const std::int64_t dilation : {1, 3}) {
        cases.need("max_pool", {x},
                   {ints({2, width}), ints({1, 2}), ints({0, width / 2}), ints({1, dilation}),
                    Attribute::of(false)});
      }
    }
    cases.need("adaptive_max_pool", {x}, {ints({2, 3})});
  }
  cases.run(0);
}

TEST(Cells, RangesTrianglesPadding) {
  std::mt19937 random(62);
  DeviceCases cases;
  for (const DType dtype : {DType::kF32, DType::kI64, DType::kU8, DType::kBF16}) {
    cases.need("arange", {1, 20, 3}, {Attribute::of(dtype)});
    cases.need("arange", {-1.5, 3.0, 0.25}, {Attribute::of(dtype)});
    cases.need("linspace", {-2.0, 5.0}, {Attribute::of(11), Attribute::of(dtype)});
    for (const std::int64_t k : {-2, 0, 3}) {
      const TestTensor x = sample(dtype, Geometry({2, 5, 7}, {35, 1, 5}), random);
      cases.need("tril", {x}, {Attribute::of(k)});
      cases.need("triu", {x}, {Attribute::of(k)});
    }
    cases.need("constant_pad_nd", {sample(dtype, Geometry({3, 4}, {1, 3}), random), 2},
               {Attribute::of(Dims{2, -1, 0, 3})});
  }
  const TestTensor index(DType::kI64, {4}, {0, 2, 1, 2}), bad(DType::kI64, {2}, {0, 3});
  cases.need("one_hot", {index}, {Attribute::of(3)});
  EXPECT_TRUE(cases.add_refused("one_hot", {bad}, {Attribute::of(3)}));
  cases.run(0);
}

TEST(Cells, GatesOfRecurrentCells) {
  std::mt19937 random(63);
  DeviceCases cases;
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16}) {
    const auto x = [&](Dims shape) { return sample(dtype, Geometry(shape), random, false); };
    const TestTensor h = x({3, 5}), c = sample(dtype, Geometry({3, 5}, {1, 3}), random, false);
    cases.need("lstm_gates", {x({3, 20}), x({3, 20}), c});
    cases.need("lstm_gates_backward", {h, c, x({3, 20}), x({3, 20}), x({3, 5})});
    cases.need("gru_gates", {x({3, 15}), x({3, 15}), c});
    cases.need("gru_gates_backward", {h, x({3, 15}), x({3, 15}), c});
  }
  cases.run(64);
}

// For every optimizer: its states and its hyperparameters.
struct Optimizer {
  const char* op;
  int states;  // number of lists after params and grads
  std::vector<double> hyper;
  int flags;
};

TEST(Cells, OptimizerStepsHaveTheBitsOfTheCpu) {
  std::mt19937 random(64);
  DeviceCases cases;
  const Optimizer all[] = {{"sgd_step", 1, {0.1, 0.9, 0.1, 0.01}, 3},
                           {"adam_step", 3, {0.1, 0.9, 0.99, 1e-8, 0.01, 3}, 3},
                           {"adamax_step", 2, {0.1, 0.9, 0.99, 1e-8, 0.01, 3}, 1},
                           {"nadam_step", 2, {0.1, 0.9, 0.99, 1e-8, 0.01, 0.8, 0.7, 0.6, 3}, 2},
                           {"radam_step", 2, {0.1, 0.9, 0.99, 1e-8, 0.01, 9}, 2},
                           {"adagrad_step", 1, {0.1, 0.01, 1e-8, 0.01, 3}, 1},
                           {"adadelta_step", 2, {0.1, 0.9, 1e-6, 0.01}, 1},
                           {"rmsprop_step", 3, {0.1, 0.9, 1e-8, 0.01, 0.9}, 1},
                           {"rprop_step", 2, {0.5, 1.2, 1e-6, 50}, 1},
                           {"asgd_step", 1, {0.1, 1e-4, 0.5, 0.01}, 1}};
  const Geometry shapes[] = {Geometry({1300}), Geometry({5, 7}, {1, 5}), Geometry(Dims())};
  for (const Optimizer& o : all) {
    for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
      for (int variant = 0; variant < 5; ++variant) {
        // 1: flags; 2: hyperparameters on the device; 3: skipped steps; 4: without the last state.
        if (dtype != DType::kF32 && variant > 1) continue;
        std::vector<TestOperand> operands;
        std::vector<std::uint32_t> counts;
        const bool lacks = variant == 4 && (o.states == 3 || o.op == std::string_view("sgd_step"));
        const int states = lacks ? o.states - 1 : o.states;
        for (int list = 0; list < 2 + o.states; ++list) {
          const bool present = list < 2 + states;
          counts.push_back(present ? 3 : 0);
          for (int i = 0; present && i < 3; ++i) {
            TestTensor t = sample(dtype, shapes[i], random, false);
            if (list > 2) {  // a state of squares must not be negative
              std::vector<double> values = t.values();
              for (double& v : values) v = v * v + 20;
              t.fill(values);
            }
            operands.emplace_back(t);
          }
        }
        for (const double h : o.hyper) {
          const bool there = variant == 2 && h != 3;  // the device's own powers have different bits
          if (there) {
            operands.emplace_back(TestTensor(DType::kF64, Dims(), {h}));
          } else {
            operands.emplace_back(h);
          }
        }
        const double skip = variant == 3;
        operands.emplace_back(TestTensor(DType::kF32, Dims{1}, {skip}));
        Attributes flags;
        for (int i = 0; i < o.flags; ++i) {
          flags.push_back(Attribute::of(variant == 1 && !(o.flags == 3 && i == 0)));
        }
        cases.need(o.op, operands, flags, counts);
      }
    }
  }
  cases.run(0);
}

TEST(Cells, GradientsAreUnscaled) {
  std::mt19937 random(65);
  DeviceCases cases;
  for (const bool infinite : {false, true}) {
    TestTensor a = sample(DType::kF32, Geometry({30, 50}), random, false),
               b = sample(DType::kF32, Geometry({3}), random, false);
    if (infinite) b.fill({1, INFINITY, 2});
    cases.need(
        "amp_unscale",
        {a, b, TestTensor(DType::kF32, Dims{1}, {0}), TestTensor(DType::kF32, Dims(), {0.5})}, {},
        {2, 1});
  }
  cases.run(0);
}

TEST(Cells, ManyTensorsAreFewLaunches) {
  std::mt19937 random(66);
  std::vector<TestOperand> operands;
  for (int i = 0; i < 200; ++i) {
    operands.emplace_back(sample(DType::kF32, Geometry({3}), random, false));
  }
  operands.emplace_back(0.1);
  DeviceCases cases;
  cases.need("sgd_step",
             [&] {
               for (int i = 0; i < 4; ++i) operands.emplace_back(0.0);
               return operands;
             }(),
             {}, {100, 100, 0});
  EXPECT_EQ(cases.launches(), 3u);
  cases.run(0);
}

TEST(Shapes, TasksOfRecipes) {
  LaunchShape shape;
  const RecipeGraph threads{Recipe::kMaxPool}, blocks{Recipe::kStep};
  ASSERT_TRUE(recipe_shape(threads, std::int64_t{5} << 31, shape).ok());
  EXPECT_EQ(shape.grid[0], (std::int64_t{5} << 31) / 256);
  ASSERT_TRUE(recipe_shape(blocks, kMaxBlocks, shape).ok());
  EXPECT_EQ(shape.grid[0], kMaxBlocks);
  EXPECT_FALSE(recipe_shape(blocks, kMaxBlocks + 1, shape).ok());
  EXPECT_FALSE(recipe_shape(threads, INT64_MAX, shape).ok());
}

}  // namespace
}  // namespace teletensor::backends::cuda
