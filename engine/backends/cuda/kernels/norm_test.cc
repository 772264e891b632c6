// Runs norms and losses in the emulator and compares them with the CPU's kernels.
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

TEST(Norms, HaveTheBitsOfTheCpu) {
  std::mt19937 random(71);
  DeviceCases cases;
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    const DType compute = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
    const auto x = [&](const Geometry& g) { return sample(dtype, g, random, false); };
    const auto statistics = [&](Dims d) { return sample(compute, Geometry(d), random, false); };
    const auto eps = Attribute::of(1e-3);
    for (const std::int64_t length : {1, 31, 300, 4500}) {
      const std::int64_t rows = length > 1000 ? 5 : 37;
      const Geometry g({rows, length}), turned({rows, length}, {1, rows});
      const Attribute shape = Attribute::of(Dims{length});
      const TestTensor w = x(Geometry({length})), b = x(Geometry({length}));
      cases.need("layer_norm", {x(g), w, b}, {shape, eps});
      cases.need("layer_norm", {x(turned), nullptr, nullptr}, {shape, eps});
      cases.need("layer_norm_backward",
                 {x(turned), x(g), w, statistics({rows, 1}), statistics({rows, 1})}, {shape, eps});
      cases.need("layer_norm_backward",
                 {x(g), x(g), nullptr, statistics({rows, 1}), statistics({rows, 1})}, {shape, eps});
    }
    for (const Geometry& g : {Geometry({3, 4, 5, 6}), Geometry({300, 3}), Geometry({2, 3, 2100}),
                              Geometry({3, 4, 5, 6}, {120, 1, 24, 4}), Geometry({40, 2, 3, 5})}) {
      const std::int64_t channels = g.shape[1];
      const TestTensor w = x(Geometry({channels})), b = x(Geometry({channels}));
      cases.need("batch_norm", {x(g), w, b}, {eps});
      cases.need("batch_norm", {x(g), nullptr, nullptr}, {eps});
      cases.need("batch_norm_backward",
                 {x(Geometry(g.shape)), x(g), w, statistics({channels}), statistics({channels})},
                 {eps});
    }
  }
  cases.run(0);
}

TEST(Losses, OfElements) {
  std::mt19937 random(72);
  DeviceCases cases, exact;
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16}) {
    for (const char* reduction : {"mean", "sum", "none"}) {
      const auto how = Attribute::of(reduction);
      for (const Geometry& g : {Geometry({7, 700}), Geometry({7, 7}, {1, 7}), Geometry(Dims())}) {
        const TestTensor x = sample(dtype, g, random, false), y = sample(dtype, g, random, false);
        exact.need("mse_loss", {x, y}, {how});
        exact.need("l1_loss", {x, y}, {how});
        exact.need("smooth_l1_loss", {x, y}, {how, Attribute::of(0.7)});
        exact.need("huber_loss", {x, y}, {how, Attribute::of(0.7)});
        const bool none = reduction == std::string_view("none");
        exact.need(
            "mse_loss_backward",
            {sample(dtype, none ? Geometry(g.shape) : Geometry(Dims()), random, false), x, y},
            {how});
        TestTensor p = x, q = y;
        p = TestTensor(dtype, g);
        q = TestTensor(dtype, g);
        std::vector<double> a = x.values(), b = y.values();
        for (double& v : a) v = std::abs(v) / 5;
        for (double& v : b) v = std::abs(v) / 5;
        p.fill(a);
        q.fill(b);
        cases.need("binary_cross_entropy", {p, q, nullptr}, {how});
        cases.need("binary_cross_entropy", {p, q, sample(dtype, Geometry(Dims()), random, false)},
                   {how});
        cases.need("binary_cross_entropy_with_logits", {x, q, nullptr, nullptr}, {how});
        cases.need("kl_div", {x, q}, {how, Attribute::of(false)});
        cases.need("kl_div", {x, y}, {how, Attribute::of(false)});  // negative targets give NaN
        cases.need("kl_div", {x, y}, {how, Attribute::of(true)});
      }
    }
  }
  const TestTensor bad(DType::kF32, {2}, {0.5, 1.5}), t(DType::kF32, {2}, {0, 1});
  EXPECT_TRUE(
      cases.add_refused("binary_cross_entropy", {bad, t, nullptr}, {Attribute::of("mean")}));
  exact.run(0);
  cases.run(200);
}

TEST(Losses, OfClasses) {
  std::mt19937 random(73);
  DeviceCases cases;
  const auto labels = [&](Dims shape, std::int64_t classes) {
    TestTensor t(DType::kI64, Geometry(shape));
    std::vector<double> values(static_cast<std::size_t>(t.geometry.numel()));
    for (double& v : values) {
      v = random() % 5 == 0 ? 2 : static_cast<double>(random() % static_cast<unsigned>(classes));
    }
    t.fill(values);
    return t;
  };
  struct Shape {
    Dims x, target;
    std::int64_t classes;
  };
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    for (const Shape& s :
         {Shape{{9, 40}, {9}, 40}, Shape{{3, 2500}, {3}, 2500}, Shape{{2, 10500}, {2}, 10500},
          Shape{{2, 6, 5}, {2, 5}, 6}, Shape{{7}, {}, 7}}) {
      const TestTensor x = sample(dtype, Geometry(s.x), random, false),
                       t = labels(s.target, s.classes);
      const TestTensor w = sample(dtype, Geometry({s.classes}), random, false);
      for (const char* how : {"mean", "sum", "none"}) {
        const auto ignore = Attribute::of(2), reduction = Attribute::of(how);
        const bool none = how == std::string_view("none");
        const TestTensor g = sample(dtype, Geometry(none ? s.target : Dims()), random, false);
        for (const double smoothing : {0.0, 0.2}) {
          const auto smooth = Attribute::of(smoothing);
          cases.need("cross_entropy", {x, t, nullptr}, {ignore, reduction, smooth});
          cases.need("cross_entropy_backward", {g, x, t, nullptr}, {ignore, reduction, smooth});
        }
        cases.need("cross_entropy", {x, t, w}, {ignore, reduction, Attribute::of(0.1)});
        cases.need("cross_entropy_backward", {g, x, t, w}, {ignore, reduction, Attribute::of(0.1)});
        cases.need("nll_loss", {x, t, w}, {ignore, reduction});
        cases.need("nll_loss_backward", {g, t, nullptr}, {Attribute::of(s.x), ignore, reduction});
      }
    }
  }
  const TestTensor x = sample(DType::kF32, Geometry({2, 4}), random, false);
  for (const double bad : {4.0, -1.0}) {
    const TestTensor t(DType::kI64, {2}, {1, bad});
    EXPECT_TRUE(
        cases.add_refused("cross_entropy", {x, t, nullptr},
                          {Attribute::of(-100), Attribute::of("mean"), Attribute::of(0.0)}));
    EXPECT_TRUE(cases.add_refused("nll_loss", {x, t, nullptr},
                                  {Attribute::of(-100), Attribute::of("none")}));
  }
  cases.run(2000);  // differences of large numbers lose digits
}

}  // namespace
}  // namespace teletensor::backends::cuda
