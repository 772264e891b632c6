#include "engine/backends/cpu/reduction/reduce_simd.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "engine/core/complex.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/backends/cpu/reduction/reduce_simd.cc"
#include "engine/backends/cpu/access/targets.h"
// The order of these headers matters.
// clang-format off
#include "hwy/foreach_target.h"  // compiles the part below once per instruction set
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace teletensor::backends::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Integers wrap, so their arithmetic is unsigned.
template <class A>
HWY_INLINE A wrapping_add(A a, A b) {
  if constexpr (std::is_integral_v<A>) {
    return static_cast<A>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  } else {
    return a + b;
  }
}
template <class A>
HWY_INLINE A wrapping_mul(A a, A b) {
  if constexpr (std::is_integral_v<A>) {
    return static_cast<A>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  } else {
    return a * b;
  }
}

struct Sum {
  template <class A>
  static constexpr A identity() {
    return A(0);
  }
  template <class A>
  static HWY_INLINE A one(A a, A b) {
    return wrapping_add(a, b);
  }
  template <class V>
  static HWY_INLINE V vec(V a, V b) {
    return hn::Add(a, b);
  }
};
struct NanSum : Sum {};
struct Prod {
  template <class A>
  static constexpr A identity() {
    return A(1);
  }
  template <class A>
  static HWY_INLINE A one(A a, A b) {
    return wrapping_mul(a, b);
  }
  template <class V>
  static HWY_INLINE V vec(V a, V b) {
    return hn::Mul(a, b);
  }
};
// b != b: a NaN in b wins; once a is NaN, every comparison is false and it stays.
struct Max {
  template <class A>
  static constexpr A identity() {
    return std::is_integral_v<A> ? std::numeric_limits<A>::lowest()
                                 : -std::numeric_limits<A>::infinity();
  }
  template <class A>
  static HWY_INLINE A one(A a, A b) {
    return b > a || b != b ? b : a;
  }
  template <class V>
  static HWY_INLINE V vec(V a, V b) {
    return hn::IfThenElse(hn::Or(hn::Gt(b, a), hn::IsNaN(b)), b, a);
  }
  // Returns what vec() returns if neither operand is NaN. If both operands are zeros, it returns a.
  template <class V>
  static HWY_INLINE V ordered(V a, V b) {
    return hn::Max(b, a);
  }
};
struct Min {
  template <class A>
  static constexpr A identity() {
    return std::is_integral_v<A> ? std::numeric_limits<A>::max()
                                 : std::numeric_limits<A>::infinity();
  }
  template <class A>
  static HWY_INLINE A one(A a, A b) {
    return b < a || b != b ? b : a;
  }
  template <class V>
  static HWY_INLINE V vec(V a, V b) {
    return hn::IfThenElse(hn::Or(hn::Lt(b, a), hn::IsNaN(b)), b, a);
  }
  template <class V>
  static HWY_INLINE V ordered(V a, V b) {
    return hn::Min(b, a);
  }
};

// An element in the form in which Op reduces it.
template <class Op, class A>
HWY_INLINE A element(A x) {
  if constexpr (std::is_same_v<Op, NanSum> && std::is_floating_point_v<A>) {
    return x == x ? x : A(0);
  } else {
    return x;
  }
}
template <class Op, class V>
HWY_INLINE V elements(V v) {
  if constexpr (std::is_same_v<Op, NanSum>) {
    return hn::IfThenZeroElse(hn::IsNaN(v), v);
  } else {
    return v;
  }
}

template <class A, class Op>
A pair(A a, A b) {
  return Op::one(a, b);
}

// Reduces the lanes of a vector in a tree: lane j is combined with lane j + w, where w is halved in
// each step.
template <class Op, class D, class V>
HWY_INLINE hn::TFromD<D> tree_of_lanes([[maybe_unused]] D d, V v) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (hn::MaxLanes(D()) > 1) {
    const hn::Half<D> half;
    return tree_of_lanes<Op>(half, Op::vec(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
#endif
  return hn::GetLane(v);
}

template <class Op>
concept HasOrdered = requires {
  &Op::template ordered<float>;
};

// leaf() for n >= kWidth: kVectors accumulators; the remaining elements go to the first lanes.
// first(k, v) and step(k, acc, v) are v and Op::vec, or functions that give the same results for
// these elements; k is the number of the accumulator.
template <class A, class Op, class First, class Step>
HWY_INLINE A wide_leaf(const A* x, std::int64_t n, const First& first, const Step& step) {
  constexpr std::int64_t kWidth = 256 / sizeof(A);
  const hn::ScalableTag<A> d;
  constexpr std::int64_t kLanes = hn::MaxLanes(decltype(d)());
  constexpr int kVectors = static_cast<int>(kWidth / kLanes);
  hn::Vec<decltype(d)> v[kVectors];
#pragma GCC unroll 16
  for (int k = 0; k < kVectors; ++k) v[k] = first(k, hn::LoadU(d, x + k * kLanes));
  std::int64_t i = kWidth;
  for (; i + kWidth <= n; i += kWidth) {
#pragma GCC unroll 16
    for (int k = 0; k < kVectors; ++k) v[k] = step(k, v[k], hn::LoadU(d, x + i + k * kLanes));
  }
  if (i < n) {
    A rest[kWidth] = {};
    std::memcpy(rest, x + i, static_cast<std::size_t>(n - i) * sizeof(A));
#pragma GCC unroll 16
    for (int k = 0; k < kVectors; ++k) {
      const std::int64_t left = n - i - k * kLanes;
      const auto mask = hn::FirstN(d, static_cast<std::size_t>(left > 0 ? left : 0));
      v[k] = hn::IfThenElse(mask, step(k, v[k], hn::LoadU(d, rest + k * kLanes)), v[k]);
    }
  }
#pragma GCC unroll 16
  for (int w = kVectors / 2; w >= 1; w /= 2) {
#pragma GCC unroll 16
    for (int k = 0; k < w; ++k) v[k] = Op::vec(v[k], v[k + w]);
  }
  return tree_of_lanes<Op>(d, v[0]);
}

template <class A, class Op>
A leaf(const A* x, std::int64_t n) {
  constexpr std::int64_t kWidth = 256 / sizeof(A);
  A acc[kWidth];
  std::int64_t live = n < kWidth ? n : kWidth;
  if (n < kWidth) {
    if (n == 1) return Op::one(Op::template identity<A>(), element<Op>(x[0]));
    for (std::int64_t j = 0; j < n; ++j) acc[j] = element<Op>(x[j]);
  } else if constexpr (std::is_floating_point_v<A>) {
    if constexpr (HasOrdered<Op>) {
      // The sums are only used to detect a NaN at the end; infinities of both signs look like a
      // NaN.
      const hn::ScalableTag<A> d;
      using V = hn::Vec<decltype(d)>;
      V sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
      const auto seen = [&](int k, V v) HWY_ATTR {
        sums[k & 3] = hn::Add(sums[k & 3], v);
        return v;
      };
      const A found = wide_leaf<A, Op>(
          x, n, seen, [&](int k, V a, V b) HWY_ATTR { return Op::ordered(a, seen(k, b)); });
      const V sum = hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]));
      if (hn::AllFalse(d, hn::IsNaN(sum))) return found;
    }
    return wide_leaf<A, Op>(
        x, n, [](int, auto v) HWY_ATTR { return elements<Op>(v); },
        [](int, auto a, auto b) HWY_ATTR { return Op::vec(a, elements<Op>(b)); });
  } else {  // Highway has no 64-bit integer product on AVX2
    std::int64_t i = kWidth;
    for (std::int64_t j = 0; j < kWidth; ++j) acc[j] = x[j];
    for (; i + kWidth <= n; i += kWidth) {
      for (std::int64_t j = 0; j < kWidth; ++j) acc[j] = Op::one(acc[j], x[i + j]);
    }
    for (std::int64_t j = 0; i < n; ++i, ++j) acc[j] = Op::one(acc[j], x[i]);
  }
  for (std::int64_t w = kWidth / 2; w >= 1; w /= 2) {
    if (live <= w) continue;
    for (std::int64_t j = 0; j < live - w; ++j) acc[j] = Op::one(acc[j], acc[j + w]);
    live = w;
  }
  return acc[0];
}

template <class A, class Op>
void rows(A* HWY_RESTRICT acc, const A* HWY_RESTRICT x, std::int64_t row_stride, std::int64_t count,
          std::int64_t columns) {
  std::int64_t r = 0;
  for (; r + 4 <= count; r += 4) {
    const A* HWY_RESTRICT a = x + r * row_stride;
    const A* HWY_RESTRICT b = a + row_stride;
    const A* HWY_RESTRICT c = b + row_stride;
    const A* HWY_RESTRICT e = c + row_stride;
    std::int64_t j = 0;
    if constexpr (std::is_floating_point_v<A>) {
      const hn::ScalableTag<A> d;
      constexpr std::int64_t kLanes = hn::MaxLanes(decltype(d)());
      const auto load = [&](const A* from) HWY_ATTR { return elements<Op>(hn::LoadU(d, from)); };
      for (; j + kLanes <= columns; j += kLanes) {
        const auto low = Op::vec(load(a + j), load(b + j));
        const auto high = Op::vec(load(c + j), load(e + j));
        hn::StoreU(Op::vec(hn::LoadU(d, acc + j), Op::vec(low, high)), d, acc + j);
      }
    }
    for (; j < columns; ++j) {
      const A low = Op::one(element<Op>(a[j]), element<Op>(b[j]));
      const A high = Op::one(element<Op>(c[j]), element<Op>(e[j]));
      acc[j] = Op::one(acc[j], Op::one(low, high));
    }
  }
  for (; r < count; ++r) {
    const A* HWY_RESTRICT a = x + r * row_stride;
    for (std::int64_t j = 0; j < columns; ++j) acc[j] = Op::one(acc[j], element<Op>(a[j]));
  }
}

template <class A, class Op>
void merge(A* HWY_RESTRICT acc, const A* HWY_RESTRICT other, std::int64_t columns) {
  for (std::int64_t j = 0; j < columns; ++j) acc[j] = Op::one(acc[j], other[j]);
}

template <class A, class Op>
const Fold<A>& instance() {
  static constexpr Fold<A> kFold{Op::template identity<A>(), &pair<A, Op>, &leaf<A, Op>,
                                 &rows<A, Op>, &merge<A, Op>};
  return kFold;
}

template <class A>
const Fold<A>& choose(FoldKind kind) {
  switch (kind) {
    case FoldKind::kSum:
      break;
    case FoldKind::kNanSum:
      if constexpr (std::is_floating_point_v<A>) return instance<A, NanSum>();
      break;
    case FoldKind::kProd:
      return instance<A, Prod>();
    case FoldKind::kMax:
      if constexpr (!core::kIsComplex<A>) return instance<A, Max>();
      break;
    case FoldKind::kMin:
      if constexpr (!core::kIsComplex<A>) return instance<A, Min>();
      break;
  }
  return instance<A, Sum>();
}
const Fold<float>& fold_f32(FoldKind kind) { return choose<float>(kind); }
const Fold<double>& fold_f64(FoldKind kind) { return choose<double>(kind); }
const Fold<std::int64_t>& fold_i64(FoldKind kind) { return choose<std::int64_t>(kind); }
const Fold<std::uint64_t>& fold_u64(FoldKind kind) { return choose<std::uint64_t>(kind); }
const Fold<core::Complex64>& fold_c64(FoldKind kind) { return choose<core::Complex64>(kind); }
const Fold<core::Complex128>& fold_c128(FoldKind kind) { return choose<core::Complex128>(kind); }

// Highway's Exp is 0 below its range; above it, and for NaN, its result is unspecified.
template <class D, class V>
HWY_INLINE V exp_total(D d, V x) {
  using T = hn::TFromD<D>;
  const V high = hn::Set(d, static_cast<T>(sizeof(T) == 4 ? 88.8 : 709.8));
  const V infinity = hn::Set(d, std::numeric_limits<T>::infinity());
  const V y = hn::IfThenElse(hn::Gt(x, high), infinity, hn::Exp(d, x));
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

template <class A>
void exp_difference(const A* x, std::int64_t n, const A* center, std::int64_t step, A* y) {
  const hn::ScalableTag<A> d;
  constexpr std::int64_t kLanes = hn::MaxLanes(decltype(d)());
  std::int64_t i = 0;
  auto c = hn::Set(d, center[0]);
  for (; i + kLanes <= n; i += kLanes) {
    if (step) c = hn::LoadU(d, center + i);
    hn::StoreU(exp_total(d, hn::Sub(hn::LoadU(d, x + i), c)), d, y + i);
  }
  // The remaining elements use the same vector code, so that an element's bits do not depend on its
  // position.
  if (i < n) {
    A in[kLanes], out[kLanes];
    for (std::int64_t j = 0; j < kLanes; ++j) {
      in[j] = i + j < n ? x[i + j] - center[(i + j) * step] : A(0);
    }
    hn::StoreU(exp_total(d, hn::LoadU(d, in)), d, out);
    for (std::int64_t j = 0; i + j < n; ++j) y[i + j] = out[j];
  }
}

template <class A>
void squared_difference(const A* x, std::int64_t n, const A* center, std::int64_t step, A* y) {
  if (step) {
    for (std::int64_t i = 0; i < n; ++i) y[i] = (x[i] - center[i]) * (x[i] - center[i]);
  } else {
    const A c = center[0];
    for (std::int64_t i = 0; i < n; ++i) y[i] = (x[i] - c) * (x[i] - c);
  }
}

template <class A>
void plain_map(Map map, const A* x, std::int64_t n, const A* center, std::int64_t step, double p,
               A* y) {
  switch (map) {
    case Map::kNone:
      for (std::int64_t i = 0; i < n; ++i) y[i] = x[i];
      return;
    case Map::kSquaredDifference:
      return squared_difference(x, n, center, step, y);
    case Map::kExpDifference:
      return exp_difference(x, n, center, step, y);
    case Map::kAbs:
      for (std::int64_t i = 0; i < n; ++i) y[i] = std::abs(x[i]);
      return;
    case Map::kSquare:
      for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] * x[i];
      return;
    case Map::kAbsPower:
      for (std::int64_t i = 0; i < n; ++i) y[i] = std::pow(std::abs(x[i]), static_cast<A>(p));
      return;
    case Map::kNonZero:
      for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] != A(0);
      return;
  }
}
void map_f32(Map map, const float* x, std::int64_t n, const float* center, std::int64_t step,
             double p, float* y) {
  plain_map(map, x, n, center, step, p, y);
}
void map_f64(Map map, const double* x, std::int64_t n, const double* center, std::int64_t step,
             double p, double* y) {
  plain_map(map, x, n, center, step, p, y);
}

}  // namespace HWY_NAMESPACE
}  // namespace teletensor::backends::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace teletensor::backends::cpu {

HWY_EXPORT(fold_f32);
HWY_EXPORT(fold_f64);
HWY_EXPORT(fold_i64);
HWY_EXPORT(fold_u64);
HWY_EXPORT(fold_c64);
HWY_EXPORT(fold_c128);
HWY_EXPORT(map_f32);
HWY_EXPORT(map_f64);

template <>
const Fold<float>& fold_of(FoldKind kind) {
  return HWY_DYNAMIC_DISPATCH(fold_f32)(kind);
}
template <>
const Fold<double>& fold_of(FoldKind kind) {
  return HWY_DYNAMIC_DISPATCH(fold_f64)(kind);
}
template <>
const Fold<std::int64_t>& fold_of(FoldKind kind) {
  return HWY_DYNAMIC_DISPATCH(fold_i64)(kind);
}
template <>
const Fold<std::uint64_t>& fold_of(FoldKind kind) {
  return HWY_DYNAMIC_DISPATCH(fold_u64)(kind);
}
template <>
const Fold<core::Complex64>& fold_of(FoldKind kind) {
  return HWY_DYNAMIC_DISPATCH(fold_c64)(kind);
}
template <>
const Fold<core::Complex128>& fold_of(FoldKind kind) {
  return HWY_DYNAMIC_DISPATCH(fold_c128)(kind);
}

template <>
void apply_map(Map map, const float* x, std::int64_t n, const float* center,
               std::int64_t center_step, double p, float* y) {
  HWY_DYNAMIC_DISPATCH(map_f32)(map, x, n, center, center_step, p, y);
}
template <>
void apply_map(Map map, const double* x, std::int64_t n, const double* center,
               std::int64_t center_step, double p, double* y) {
  HWY_DYNAMIC_DISPATCH(map_f64)(map, x, n, center, center_step, p, y);
}
template <class A>
void apply_map(Map, const A* x, std::int64_t n, const A*, std::int64_t, double, A* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i];
}
template void apply_map(Map, const std::int64_t*, std::int64_t, const std::int64_t*, std::int64_t,
                        double, std::int64_t*);
template void apply_map(Map, const std::uint64_t*, std::int64_t, const std::uint64_t*, std::int64_t,
                        double, std::uint64_t*);
template void apply_map(Map, const core::Complex64*, std::int64_t, const core::Complex64*,
                        std::int64_t, double, core::Complex64*);
template void apply_map(Map, const core::Complex128*, std::int64_t, const core::Complex128*,
                        std::int64_t, double, core::Complex128*);

}  // namespace teletensor::backends::cpu
#endif  // HWY_ONCE
