#include <gtest/gtest.h>

#include <cmath>

#include "engine/backends/cpu/kernel_test.h"

namespace teletensor::backends::cpu {
namespace {

using core::Attribute;
using core::Dims;
using core::DType;
using core::Geometry;
using core::Number;
using Values = std::vector<double>;

Attribute n(std::int64_t value) { return Attribute::of(value); }

TEST(Creation, FullTakesTheDtypeOfItsValue) {
  const auto size = Attribute::of(Dims{2, 2});
  EXPECT_EQ(call_op("full", {7}, {size})[0].dtype, DType::kI64);
  EXPECT_EQ(call_op("full", {0.5}, {size})[0].dtype, DType::kF32);
  EXPECT_EQ(call_op("full", {Number::of_bool(true)}, {size})[0].dtype, DType::kBool);
  for (const DType dtype : core::kAllDTypes) {
    EXPECT_EQ(call_op("full", {1}, {size, Attribute::of(dtype)})[0].values(), Values(4, 1.0));
    EXPECT_EQ(call_op("full", {0}, {size, Attribute::of(dtype)})[0].values(), Values(4, 0.0));
  }
  EXPECT_EQ(call_op("full", {TestTensor(DType::kF64, {1, 1}, {2.5})}, {size})[0].values(),
            Values(4, 2.5));
  EXPECT_FALSE(call_op("full", {TestTensor(DType::kF64, {2}, {1, 2})}, {size}).status.ok());
}

TEST(Creation, HostileSizesAreRefused) {
  for (const Dims& shape : {Dims{-1}, Dims{1ll << 40, 1ll << 40}, Dims{INT64_MIN, 2}}) {
    EXPECT_FALSE(call_op("full", {1}, {Attribute::of(shape)}).status.ok());
    EXPECT_FALSE(call_op("empty", {}, {Attribute::of(shape)}).status.ok());
    EXPECT_FALSE(call_op("rand", {}, {Attribute::of(shape)}).status.ok());
  }
  const std::vector<std::int64_t> deep(13, 1);
  EXPECT_FALSE(call_op("full", {1}, {Attribute::of(std::span(deep))}).status.ok());
  EXPECT_FALSE(call_op("eye", {}, {n(-1)}).status.ok());
  EXPECT_FALSE(call_op("diag", {TestTensor(DType::kF32, {1}, {1})}, {n(INT64_MIN)}).status.ok());
  EXPECT_FALSE(call_op("arange", {0, 1, 0}).status.ok());
  EXPECT_FALSE(call_op("arange", {0, 1, -1}).status.ok());
  EXPECT_FALSE(call_op("arange", {0.0, NAN, 1}).status.ok());
  EXPECT_FALSE(call_op("arange", {0.0, 1e300, 1e-300}).status.ok());
  EXPECT_FALSE(
      call_op("arange", {Number::of_int(INT64_MIN), Number::of_int(INT64_MAX), 1}).status.ok());
}

TEST(Creation, Ranges) {
  EXPECT_EQ(call_op("arange", {1, 8, 3})[0].values(), (Values{1, 4, 7}));
  EXPECT_EQ(call_op("arange", {5, 0, -2})[0].values(), (Values{5, 3, 1}));
  EXPECT_EQ(call_op("arange", {0, 0, 1})[0].values(), Values());
  EXPECT_EQ(call_op("arange", {0.0, 1.0, 0.25})[0].values(), (Values{0, 0.25, 0.5, 0.75}));
  const Number most = Number::of_int(INT64_MAX);
  EXPECT_EQ(call_op("arange", {Number::of_int(INT64_MAX - 2), most, 1})[0].geometry.shape, Dims{2});
  EXPECT_EQ(call_op("linspace",
                    {
                        0,
                        1,
                    },
                    {n(5)})[0]
                .values(),
            (Values{0, 0.25, 0.5, 0.75, 1}));
  EXPECT_EQ(call_op("linspace", {2, 9}, {n(1)})[0].values(), Values{2});
  EXPECT_EQ(call_op("linspace", {0, 10}, {n(4), Attribute::of(DType::kI64)})[0].values(),
            (Values{0, 3, 6, 10}));
}

TEST(Creation, EyeTrianglesDiagonals) {
  EXPECT_EQ(call_op("eye", {}, {n(2), n(3)})[0].values(), (Values{1, 0, 0, 0, 1, 0}));
  EXPECT_EQ(call_op("eye", {}, {n(0)})[0].values(), Values());
  for (const DType dtype : {DType::kU8, DType::kBF16, DType::kF32, DType::kI64}) {
    const TestTensor x(dtype, {2, 3}, {1, 2, 3, 4, 5, 6});
    for (const TestTensor& y : {x, x.laid_out(Geometry({2, 3}, {1, 2}))}) {
      EXPECT_EQ(call_op("tril", {y})[0].values(), (Values{1, 0, 0, 4, 5, 0}));
      EXPECT_EQ(call_op("tril", {y}, {n(1)})[0].values(), (Values{1, 2, 0, 4, 5, 6}));
      EXPECT_EQ(call_op("triu", {y}, {n(1)})[0].values(), (Values{0, 2, 3, 0, 0, 6}));
      EXPECT_EQ(call_op("triu", {y}, {n(INT64_MAX)})[0].values(), Values(6, 0.0));
      EXPECT_EQ(call_op("tril", {y}, {n(INT64_MAX)})[0].values(), y.values());
      EXPECT_EQ(call_op("tril", {y}, {n(INT64_MIN)})[0].values(), Values(6, 0.0));
      EXPECT_EQ(call_op("diag", {y}, {n(1)})[0].values(), (Values{2, 6}));
      EXPECT_EQ(call_op("diag", {y}, {n(-1)})[0].values(), Values{4});
      EXPECT_EQ(call_op("diag", {y}, {n(3)})[0].values(), Values());
    }
    EXPECT_EQ(call_op("diag", {TestTensor(dtype, {2}, {7, 8})}, {n(-1)})[0].values(),
              (Values{0, 0, 0, 7, 0, 0, 0, 8, 0}));
  }
}

TEST(Creation, OneHotChecksItsClasses) {
  const TestTensor x(DType::kI32, {2}, {2, 0});
  EXPECT_EQ(call_op("one_hot", {x}, {n(3)})[0].values(), (Values{0, 0, 1, 1, 0, 0}));
  EXPECT_FALSE(call_op("one_hot", {x}, {n(2)}).status.ok());
  EXPECT_FALSE(call_op("one_hot", {TestTensor(DType::kI64, {1}, {-1})}, {n(2)}).status.ok());
  EXPECT_FALSE(call_op("one_hot", {TestTensor(DType::kF32, {1}, {1})}, {n(2)}).status.ok());
}

// One step, compared with the formulas element by element.
TEST(Optimizers, SgdFollowsItsFormula) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const bool nesterov : {false, true}) {
      for (const bool strided : {false, true}) {
        TestTensor p(dtype, Geometry({3, 7})), g(dtype, Geometry({3, 7})),
            b(dtype, Geometry({3, 7}));
        Values pv(21), gv(21), bv(21);
        for (std::size_t i = 0; i < 21; ++i) {
          pv[i] = static_cast<double>(i) * 0.5 - 3, gv[i] = 1.5 - static_cast<double>(i) * 0.25;
          bv[i] = static_cast<double>(i) * 0.125;
        }
        p.fill(pv), g.fill(gv), b.fill(bv);
        if (strided) p = p.laid_out(Geometry({3, 7}, {2, 9}, 1));
        const TestResult out = call_op(
            "sgd_step", {p, g, b, 0.5, 0.75, 0.25, 0.125, 0},
            {Attribute::of(nesterov), Attribute::of(true), Attribute::of(false)}, {1, 1, 1});
        ASSERT_TRUE(out.status.ok()) << out.status.message();
        Values expected_p(21), expected_b(21);
        for (std::size_t i = 0; i < 21; ++i) {
          const double grad = -gv[i] + 0.125 * pv[i];
          expected_b[i] = 0.75 * bv[i] + 0.75 * grad;
          expected_p[i] = pv[i] - 0.5 * (nesterov ? grad + 0.75 * expected_b[i] : expected_b[i]);
        }
        for (std::size_t i = 0; i < 21; ++i) {
          ASSERT_NEAR(out[0].values()[i], expected_p[i], 1e-6);
          ASSERT_NEAR(out[1].values()[i], expected_b[i], 1e-6);
        }
      }
    }
  }
}

TEST(Optimizers, SgdFirstStepTakesTheGradientAsBuffer) {
  const TestTensor p(DType::kF32, {2}, {1, 2}), g(DType::kF32, {2}, {4, 8}),
      b(DType::kF32, {2}, {NAN, 9});
  const TestResult out =
      call_op("sgd_step", {p, g, b, 0.5, 0.9, 0.5, 0.0, 0},
              {Attribute::of(false), Attribute::of(false), Attribute::of(true)}, {1, 1, 1});
  EXPECT_EQ(out[0].values(), (Values{-1, -2}));
  EXPECT_EQ(out[1].values(), (Values{4, 8}));
  // Without momentum buffers, with hyperparameters as tensors, and with two parameters.
  const TestTensor q(DType::kF32, {2}, {1, 2}), lr(DType::kF64, Dims(), {0.25});
  const TestResult plain =
      call_op("sgd_step", {q, q.laid_out(q.geometry), g, g, lr, 0.0, 0.0, 0.0, 0}, {}, {2, 2, 0});
  ASSERT_EQ(plain.tensors.size(), 2u);
  EXPECT_EQ(plain[0].values(), (Values{0, 0}));
  EXPECT_EQ(plain[1].values(), (Values{0, 0}));
}

TEST(Optimizers, AdamFollowsItsFormula) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const bool amsgrad : {false, true}) {
      for (const bool decoupled : {false, true}) {
        Values pv(19), gv(19), mv(19), vv(19), lv(19);
        for (std::size_t i = 0; i < 19; ++i) {
          pv[i] = static_cast<double>(i) * 0.5 - 3, gv[i] = 1.5 - static_cast<double>(i) * 0.25;
          mv[i] = static_cast<double>(i) * 0.125, vv[i] = static_cast<double>(i) * 0.25;
          lv[i] = i % 2 ? 0.125 : 9;
        }
        const TestTensor p(dtype, {19}, pv), g(dtype, {19}, gv), m(dtype, {19}, mv),
            v(dtype, {19}, vv);
        const TestTensor l(dtype, {19}, lv);
        std::vector<TestOperand> operands{p, g, m, v};
        if (amsgrad) operands.emplace_back(l);
        for (double h : {0.01, 0.9, 0.99, 1e-8, 0.1, 3.0, 0.0}) operands.emplace_back(h);
        const TestResult out =
            call_op("adam_step", operands,
                    {Attribute::of(amsgrad), Attribute::of(decoupled), Attribute::of(false)},
                    {1, 1, 1, 1, amsgrad ? 1u : 0u});
        ASSERT_TRUE(out.status.ok()) << out.status.message();
        for (std::size_t i = 0; i < 19; ++i) {
          const double grad = decoupled ? gv[i] : gv[i] + 0.1 * pv[i];
          const double start = decoupled ? pv[i] * (1 - 0.01 * 0.1) : pv[i];
          const double m1 = mv[i] + 0.1 * (grad - mv[i]), v1 = 0.99 * vv[i] + 0.01 * grad * grad;
          const double top = amsgrad ? std::max(v1, lv[i]) : v1;
          const double step = 0.01 / (1 - std::pow(0.9, 3));
          const double denominator = std::sqrt(top) / std::sqrt(1 - std::pow(0.99, 3)) + 1e-8;
          ASSERT_NEAR(out[0].values()[i], start - step * m1 / denominator, 1e-6);
          ASSERT_NEAR(out[1].values()[i], m1, 1e-6);
          ASSERT_NEAR(out[2].values()[i], v1, 1e-6);
          if (amsgrad) {
            ASSERT_NEAR(out[3].values()[i], top, 1e-6);
          }
        }
      }
    }
  }
}

TEST(Optimizers, ListsThatDoNotMatchAreRefused) {
  const TestTensor p(DType::kF32, {2}, {1, 2}), q(DType::kF32, {3}, {1, 2, 3}),
      i(DType::kI64, {2}, {1, 2});
  EXPECT_FALSE(call_op("sgd_step", {p, p, p, 0.1, 0, 0, 0, 0}, {}, {2, 1, 0}).status.ok());
  EXPECT_FALSE(call_op("sgd_step", {p, q, 0.1, 0, 0, 0, 0}, {}, {1, 1, 0}).status.ok());
  EXPECT_FALSE(call_op("sgd_step", {i, i, 0.1, 0, 0, 0, 0}, {}, {1, 1, 0}).status.ok());
  EXPECT_FALSE(call_op("sgd_step", {p, p, q, 0, 0, 0, 0}, {}, {1, 1, 0}).status.ok());
  EXPECT_FALSE(
      call_op("adam_step", {p, p, 0.1, 0.9, 0.9, 0, 0, 1, 0}, {}, {1, 1, 0, 0, 0}).status.ok());
}

}  // namespace
}  // namespace teletensor::backends::cpu
