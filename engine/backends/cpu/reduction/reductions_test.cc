#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "engine/backends/cpu/kernel_test.h"
#include "engine/backends/cpu/reduction/reduce_simd.h"
#include "engine/ops/reduction/reduce_dims.h"

namespace teletensor::backends::cpu {
namespace {

using core::Attribute;
using core::Attributes;
using core::Dims;
using core::DType;
using core::Geometry;
using Values = std::vector<double>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Attribute dims(std::initializer_list<std::int64_t> d) { return Attribute::of(Dims(d)); }

// Small integers, so that sums are exact in every dtype and order.
TestTensor pattern(DType dtype, const Dims& shape, int modulus = 5) {
  TestTensor x(dtype, Geometry(shape));
  Values values(static_cast<std::size_t>(x.geometry.numel()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<double>((i * 7 + i / 3) % static_cast<std::size_t>(modulus));
  }
  x.fill(values);
  return x;
}

// The reference: a plain loop over all elements.
Values folded(const TestTensor& x, std::uint32_t mask, double start, double (*f)(double, double)) {
  const Dims& shape = x.geometry.shape;
  const Geometry kept(ops::reduced_shape(shape, mask, true));
  Values out(static_cast<std::size_t>(kept.numel()), start);
  const Values values = x.values();
  for (std::int64_t i = 0; i < x.geometry.numel(); ++i) {
    std::int64_t rest = i, at = 0;
    for (int d = shape.size() - 1; d >= 0; --d) {
      if (!(mask >> d & 1u)) at += rest % shape[d] * kept.strides[d];
      rest /= shape[d];
    }
    double& slot = out[static_cast<std::size_t>(at)];
    slot = f(slot, values[static_cast<std::size_t>(i)]);
  }
  return out;
}
double plus(double a, double b) { return a + b; }
double larger(double a, double b) { return std::max(a, b); }

// Highway's Ne is an ordered comparison: it does not report that a NaN differs from itself.
TEST(Reductions, ANaNWinsWhereverItStands) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const std::int64_t n : {1, 5, 64, 100, 2048, 2100}) {
      for (std::int64_t at = 0; at<n; at += n> 100 ? 37 : 1) {
        std::vector<double> values(static_cast<std::size_t>(n));
        for (std::int64_t i = 0; i < n; ++i) {
          values[static_cast<std::size_t>(i)] = static_cast<double>(i * 7 % n);
        }
        values[static_cast<std::size_t>(at)] = std::nan("");
        const TestTensor x(dtype, {n}, values);
        for (const char* op : {"max", "min"}) {
          ASSERT_TRUE(std::isnan(call_op(op, {x})[0].values()[0])) << op << n << " at " << at;
        }
        ASSERT_EQ(call_op("argmax", {x})[0].values()[0], at);
        const auto all = core::Attribute::of(core::Dims{0});
        ASSERT_TRUE(std::isnan(call_op("logsumexp", {x}, {all})[0].values()[0])) << n << " " << at;
      }
    }
  }
}

// The tree that the CUDA kernels compute as well: 64 partial results (32 for 8-byte types), then a
// binary tree.
template <class A>
A tree_of(const std::vector<A>& x, A (*pair)(A, A)) {
  const std::size_t width = 256 / sizeof(A);
  std::vector<A> acc(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(std::min(width, x.size())));
  for (std::size_t i = width; i < x.size(); ++i) acc[i % width] = pair(acc[i % width], x[i]);
  for (std::size_t w = width / 2; w >= 1; w /= 2) {
    for (std::size_t j = w; j < acc.size(); ++j) acc[j - w] = pair(acc[j - w], acc[j]);
    acc.resize(std::min(acc.size(), w));
  }
  return acc[0];
}

template <class A>
void expect_trees() {
  for (const FoldKind kind : {FoldKind::kSum, FoldKind::kProd, FoldKind::kMax, FoldKind::kMin}) {
    const Fold<A>& fold = fold_of<A>(kind);
    for (std::size_t n = 2; n <= 300; ++n) {
      std::vector<A> x(n);
      for (std::size_t i = 0; i < n; ++i) {
        x[i] = static_cast<A>(0.75 + 0.001 * static_cast<double>(i * 37 % 101));
        if (i % 7 == 3) x[i] = -x[i];
        if (i % 11 == 5 && kind != FoldKind::kProd) x[i] = i % 2 ? A(0) : A(-0.0);
      }
      for (const char* what : {"numbers", "infinities", "a NaN"}) {
        if (*what == 'i') {  // infinities of both signs, whose sum is NaN
          if (kind == FoldKind::kSum || kind == FoldKind::kProd) continue;
          x[n / 2] = std::numeric_limits<A>::infinity();
          x[n / 3] = -std::numeric_limits<A>::infinity();
        }
        if (*what == 'a') x[n * 2 / 3] = std::numeric_limits<A>::quiet_NaN();
        const A got = fold.leaf(x.data(), static_cast<std::int64_t>(n)),
                want = tree_of(x, fold.pair);
        ASSERT_TRUE(std::memcmp(&got, &want, sizeof(A)) == 0 || (got != got && want != want))
            << "kind " << static_cast<int>(kind) << ", " << what << ", n " << n << ": " << got
            << ", not " << want;
      }
    }
    for (const A first : {A(0), A(-0.0)}) {  // of equal zeros the first stays
      std::vector<A> zeros(130, -first);
      zeros[0] = first;
      const A got = fold.leaf(zeros.data(), 130), want = tree_of(zeros, fold.pair);
      EXPECT_EQ(std::signbit(got), std::signbit(want)) << static_cast<int>(kind);
    }
  }
}

TEST(Reductions, ALeafIsTheTreeOfItsPartialResults) {
  expect_trees<float>();
  expect_trees<double>();
}

TEST(Reductions, EveryMaskLayoutAndDtype) {
  const Dims shape{6, 5, 33};
  for (const DType dtype : core::kAllDTypes) {
    if (core::is_complex(dtype)) continue;
    const TestTensor x = pattern(dtype, shape, dtype == DType::kBool ? 2 : 5);
    for (const TestTensor& y : {x, x.laid_out(Geometry(shape, {1, 6, 30})),
                                x.laid_out(Geometry(shape, {400, 70, 2}, 3))}) {
      for (std::uint32_t mask = 1; mask < 8; ++mask) {
        const Attributes a{Attribute::of(ops::dims_of(mask)), Attribute::of(true)};
        const TestResult sum = call_op("sum", {y}, a);
        const TestTensor rounded(sum[0].dtype, sum[0].geometry.shape, folded(x, mask, 0, plus));
        EXPECT_EQ(sum[0].values(), rounded.values());
        EXPECT_EQ(call_op("amax", {y}, a)[0].values(), folded(x, mask, -1, larger));
      }
    }
  }
}

TEST(Reductions, ALongFoldIsAccurateAndSplitsWithoutChange) {
  // 2^22 + 5 elements are split into parallel parts; also rows of a sum across memory.
  const std::int64_t n = (1 << 22) + 5;
  TestTensor x(DType::kF32, Geometry(Dims{n}));
  x.fill(Values(static_cast<std::size_t>(n), 0.1));
  const double exact = static_cast<double>(0.1f) * static_cast<double>(n);
  EXPECT_NEAR(call_op("sum", {x})[0].values()[0] / exact, 1, 1e-6);
  EXPECT_NEAR(call_op("mean", {x})[0].values()[0], 0.1, 1e-7);
  const Geometry tall({n / 8, 8}, {8, 1});
  const TestTensor y(DType::kF32, tall);
  std::memcpy(y.data(), x.data(), static_cast<std::size_t>(n / 8 * 8) * 4);
  for (const double column : call_op("sum", {y}, {dims({0})})[0].values()) {
    EXPECT_NEAR(column / (static_cast<double>(0.1f) * static_cast<double>(n / 8)), 1, 1e-6);
  }
}

TEST(Reductions, HalfPrecisionAddsInFloat) {
  const TestTensor x(DType::kF16, {4096}, Values(4096, 1));
  EXPECT_EQ(call_op("sum", {x})[0].values()[0], 4096);  // adding in f16 would stop at 2048
}

TEST(Reductions, NothingToReduce) {
  const TestTensor x(DType::kF32, {0, 3}, {});
  EXPECT_EQ(call_op("sum", {x}, {dims({0})})[0].values(), (Values{0, 0, 0}));
  EXPECT_EQ(call_op("prod", {x})[0].values(), (Values{1}));
  EXPECT_TRUE(std::isnan(call_op("mean", {x})[0].values()[0]));
  EXPECT_EQ(call_op("all", {x})[0].values(), (Values{1}));
  EXPECT_EQ(call_op("logsumexp", {x}, {dims({0})})[0].values()[0], -kInfinity);
  EXPECT_EQ(call_op("sum", {x}, {dims({1})})[0].geometry.shape, (Dims{0}));
  const core::Status status = call_op("max", {x}).status;
  EXPECT_EQ(status.message(), "max: cannot reduce an empty tensor, shape [0, 3]");
  EXPECT_FALSE(call_op("argmax", {x}, {Attribute::of(0)}).status.ok());
}

TEST(Reductions, NanIsTheExtremum) {
  Values values(100, 1);
  values[70] = kNan;
  const TestTensor x(DType::kF32, {100}, values);
  EXPECT_TRUE(std::isnan(call_op("max", {x})[0].values()[0]));
  EXPECT_TRUE(std::isnan(call_op("amin", {x})[0].values()[0]));
  EXPECT_EQ(call_op("argmax", {x})[0].values(), (Values{70}));
  EXPECT_EQ(call_op("argmin", {x})[0].values(), (Values{70}));
}

TEST(Reductions, IndicesAreOfTheFirst) {
  const TestTensor x(DType::kI32, {3, 4}, {1, 5, 5, 0, 7, 7, 2, 2, -3, -3, -3, -3});
  const TestResult rows = call_op("max_dim", {x}, {Attribute::of(1)});
  EXPECT_EQ(rows[0].values(), (Values{5, 7, -3}));
  EXPECT_EQ(rows[1].values(), (Values{1, 0, 0}));
  EXPECT_EQ(call_op("min_dim", {x}, {Attribute::of(0)})[1].values(), (Values{2, 2, 2, 2}));
  // Flattened in logical order, whatever the order in memory.
  const TestTensor y = x.laid_out(Geometry({3, 4}, {1, 3}));
  EXPECT_EQ(call_op("argmax", {y})[0].values(), (Values{4}));
}

TEST(Reductions, IndicesOfLongLines) {
  TestTensor x(DType::kF64, Geometry(Dims{10'000}));
  Values values(10'000, 0);
  values[2047] = values[2048] = values[9'999] = 3;
  x.fill(values);
  EXPECT_EQ(call_op("argmax", {x})[0].values(), (Values{2047}));
}

TEST(Reductions, IntegersWrapAndMeansAreRefused) {
  const double largest = std::ldexp(1, 62);
  const TestTensor x(DType::kI64, {4}, {largest, largest, largest, largest});
  EXPECT_EQ(call_op("sum", {x})[0].values()[0], 0);  // 4 * 2^62 mod 2^64
  EXPECT_EQ(call_op("mean", {x}).status.message(),
            "mean: could not infer output dtype: input dtype must be floating point, got int64");
  EXPECT_EQ(
      call_op("mean", {x}, {Attribute::none(), Attribute::of(false), Attribute::of(DType::kF64)})[0]
          .values()[0],
      largest);
}

TEST(Reductions, SpreadAndNorms) {
  const TestTensor x(DType::kF64, {4}, {1, 2, 3, 6});
  EXPECT_DOUBLE_EQ(call_op("var", {x})[0].values()[0], 14.0 / 3);
  EXPECT_DOUBLE_EQ(call_op("std", {x}, {Attribute::none(), Attribute::of(0.0)})[0].values()[0],
                   std::sqrt(3.5));
  const auto norm = [&](double p) {
    return call_op("norm", {x}, {Attribute::of(p)})[0].values()[0];
  };
  EXPECT_DOUBLE_EQ(norm(2), std::sqrt(50.0));
  EXPECT_DOUBLE_EQ(norm(1), 12);
  EXPECT_DOUBLE_EQ(norm(3), std::cbrt(252.0));
  EXPECT_EQ(norm(kInfinity), 6);
  EXPECT_EQ(norm(-kInfinity), 1);
  EXPECT_EQ(norm(0), 4);
  const TestTensor far(DType::kF32, {3}, {1000, 1000, -kInfinity});
  EXPECT_NEAR(call_op("logsumexp", {far}, {dims({0})})[0].values()[0], 1000 + std::log(2), 1e-4);
}

TEST(Reductions, TruthOfAnyByte) {
  TestTensor x(DType::kBool, Geometry(Dims{3}));
  x.data()[0] = x.data()[1] = x.data()[2] = 2;  // such bytes may come from a client's upload
  EXPECT_EQ(call_op("sum", {x})[0].values(), (Values{3}));
  EXPECT_EQ(call_op("all", {x})[0].values(), (Values{1}));
  EXPECT_EQ(call_op("any", {TestTensor(DType::kU8, {2}, {0, 7})})[0].dtype, DType::kU8);
}

TEST(Reductions, HostileDims) {
  const TestTensor x(DType::kF32, {2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_FALSE(call_op("sum", {x}, {dims({2})}).status.ok());
  EXPECT_FALSE(call_op("sum", {x}, {dims({-3})}).status.ok());
  EXPECT_FALSE(call_op("sum", {x}, {dims({0, -2})}).status.ok());
  EXPECT_FALSE(
      call_op("amax", {x}, {dims({std::numeric_limits<std::int64_t>::min()})}).status.ok());
  EXPECT_FALSE(call_op("norm", {x}, {Attribute::of(kNan)}).status.ok());
}

TEST(Scans, AlongAndAcross) {
  const TestTensor x(DType::kF32, {2, 4}, {1, 2, 3, 4, 5, 6, 7, 8});
  const auto scan = [&](const char* op, int dim) {
    return call_op(op, {x}, {Attribute::of(dim)})[0].values();
  };
  EXPECT_EQ(scan("cumsum", 1), (Values{1, 3, 6, 10, 5, 11, 18, 26}));
  EXPECT_EQ(scan("cumsum", 0), (Values{1, 2, 3, 4, 6, 8, 10, 12}));
  EXPECT_EQ(scan("reverse_cumsum", -1), (Values{10, 9, 7, 4, 26, 21, 15, 8}));
  EXPECT_EQ(scan("cumprod", 0), (Values{1, 2, 3, 4, 5, 12, 21, 32}));
}

TEST(Scans, EmptyTensorsOfHugeSizes) {
  const std::int64_t huge = std::int64_t{1} << 40;
  TestTensor x(DType::kF32, {0}, {});
  x.geometry = Geometry({huge, 0, huge}, {0, 0, 0});
  const core::Dims shape = x.geometry.shape;
  EXPECT_EQ(call_op("cumsum", {x}, {Attribute::of(1)})[0].geometry.shape, shape);
  EXPECT_EQ(call_op("softmax", {x}, {Attribute::of(1)})[0].geometry.shape, shape);
  EXPECT_EQ(call_op("sort", {x}, {Attribute::of(2)})[0].geometry.shape, shape);
  EXPECT_EQ(call_op("sum", {x}, {dims({0, 2})})[0].geometry.shape, (Dims{0}));
}

TEST(Scans, ProductsWithZeros) {
  const TestTensor one(DType::kF64, {3}, {2, 0, 5}), two(DType::kF64, {3}, {0, 0, 5});
  EXPECT_EQ(call_op("product_of_others", {one}, {Attribute::of(0)})[0].values(),
            (Values{0, 10, 0}));
  EXPECT_EQ(call_op("product_of_others", {two}, {Attribute::of(0)})[0].values(), (Values{0, 0, 0}));
  // d(sum of cumprod) / dx at (2, 0, 5): 1 + 0 + 0, 2 + 2 * 5, 0.
  const TestTensor g(DType::kF64, {3}, {1, 1, 1});
  EXPECT_EQ(call_op("cumprod_backward", {g, one}, {Attribute::of(0)})[0].values(),
            (Values{1, 12, 0}));
}

}  // namespace
}  // namespace teletensor::backends::cpu
