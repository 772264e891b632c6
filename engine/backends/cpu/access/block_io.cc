#include "engine/backends/cpu/access/block_io.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "engine/core/half.h"
#include "engine/ops/scalar/convert.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/backends/cpu/access/block_io.cc"
#include "engine/backends/cpu/access/targets.h"
#include "hwy/foreach_target.h"  // compiles the part below once per instruction set
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace teletensor::backends::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

void load_half(const std::uint16_t* from, std::int64_t n, float* to) {
  const hn::ScalableTag<float> df;
  const hn::Rebind<hwy::float16_t, decltype(df)> dh;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(df));
  std::int64_t i = 0;
#if HWY_TARGET <= HWY_AVX2
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::PromoteTo(df, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(from + i))),
               df, to + i);
  }
#else
  (void)dh, (void)lanes;
#endif
  for (; i < n; ++i) {
    core::Half half;
    half.bits = from[i];
    to[i] = static_cast<float>(half);
  }
}

void store_half(const float* from, std::int64_t n, std::uint16_t* to) {
  const hn::ScalableTag<float> df;
  const hn::Rebind<hwy::float16_t, decltype(df)> dh;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(df));
  std::int64_t i = 0;
#if HWY_TARGET <= HWY_AVX2
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::DemoteTo(dh, hn::LoadU(df, from + i)), dh,
               reinterpret_cast<hwy::float16_t*>(to + i));
  }
#else
  (void)dh, (void)lanes;
#endif
  for (; i < n; ++i) to[i] = core::Half::from_float(from[i]);
}

void load_bfloat(const std::uint16_t* from, std::int64_t n, float* to) {
  std::uint32_t* bits = reinterpret_cast<std::uint32_t*>(to);
  for (std::int64_t i = 0; i < n; ++i) bits[i] = static_cast<std::uint32_t>(from[i]) << 16;
}

void store_bfloat(const float* from, std::int64_t n, std::uint16_t* to) {
  for (std::int64_t i = 0; i < n; ++i) {
    std::uint32_t x;
    std::memcpy(&x, from + i, sizeof x);
    const std::uint32_t rounded = (x + 0x7fffu + ((x >> 16) & 1u)) >> 16;
    const std::uint32_t nan = (x >> 16) | 0x40u;
    to[i] = static_cast<std::uint16_t>((x & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
  }
}

void widen_i32(const std::int32_t* from, std::int64_t n, std::int64_t* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = from[i];
}
void widen_u8(const std::uint8_t* from, std::int64_t n, std::int64_t* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = from[i];
}
void widen_bool(const std::uint8_t* from, std::int64_t n, std::int64_t* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = from[i] != 0;
}
void widen_f32(const float* from, std::int64_t n, double* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = from[i];
}

void narrow_i32(const std::int64_t* from, std::int64_t n, std::int32_t* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<std::int32_t>(from[i]);
}
void narrow_bool(const std::int64_t* from, std::int64_t n, std::uint8_t* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = from[i] != 0;
}
void real_of_int(const std::int64_t* from, std::int64_t n, float* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(from[i]);
}
// Converts like to_int(), in a form that the compiler vectorises.
void truncate_f32(const float* from, std::int64_t n, std::int64_t* to) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float x = from[i];
    const bool high = x >= 0x1p63f, low = x < -0x1p63f, nan = x != x;
    const std::int64_t inside = static_cast<std::int64_t>((high | low | nan) ? 0.0f : x);
    const std::int64_t limit = high ? INT64_MAX : (low ? INT64_MIN : 0);
    to[i] = inside | limit;
  }
}

// Returns true if all values are within the range of int32; other values become 0.
bool truncate_to_i32(const float* from, std::int64_t n, std::int32_t* to) {
  std::int32_t outside = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const float x = from[i];
    const bool inside = (x >= -0x1p31f) & (x < 0x1p31f);
    to[i] = static_cast<std::int32_t>(inside ? x : 0.0f);
    outside |= inside ? 0 : 1;
  }
  return outside == 0;
}

}  // namespace HWY_NAMESPACE
}  // namespace teletensor::backends::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace teletensor::backends::cpu {
namespace {

using core::BFloat16;
using core::Complex128;
using core::Complex64;
using core::DType;
using core::Half;

HWY_EXPORT(load_half);
HWY_EXPORT(store_half);
HWY_EXPORT(load_bfloat);
HWY_EXPORT(store_bfloat);
HWY_EXPORT(widen_i32);
HWY_EXPORT(widen_u8);
HWY_EXPORT(widen_bool);
HWY_EXPORT(widen_f32);
HWY_EXPORT(narrow_i32);
HWY_EXPORT(narrow_bool);
HWY_EXPORT(real_of_int);
HWY_EXPORT(truncate_f32);
HWY_EXPORT(truncate_to_i32);

using ops::scalar::Bool;
using ops::scalar::from_compute;
using ops::scalar::to_compute;

template <class A, class T>
void load(const void* from, std::int64_t stride, std::int64_t n, A* to) {
  const T* x = static_cast<const T*>(from);
  if (stride == 1) {
    if constexpr (std::is_same_v<A, T>) {
      std::memcpy(to, x, static_cast<std::size_t>(n) * sizeof(A));
      return;
    } else if constexpr (std::is_same_v<A, float> && std::is_same_v<T, Half>) {
      HWY_DYNAMIC_DISPATCH(load_half)(&x->bits, n, to);
      return;
    } else if constexpr (std::is_same_v<A, float> && std::is_same_v<T, BFloat16>) {
      HWY_DYNAMIC_DISPATCH(load_bfloat)(&x->bits, n, to);
      return;
    } else if constexpr (std::is_same_v<A, std::int64_t> && std::is_same_v<T, std::int32_t>) {
      HWY_DYNAMIC_DISPATCH(widen_i32)(x, n, to);
      return;
    } else if constexpr (std::is_same_v<A, std::int64_t> && std::is_same_v<T, std::uint8_t>) {
      HWY_DYNAMIC_DISPATCH(widen_u8)(x, n, to);
      return;
    } else if constexpr (std::is_same_v<A, std::int64_t> && std::is_same_v<T, Bool>) {
      HWY_DYNAMIC_DISPATCH(widen_bool)(&x->byte, n, to);
      return;
    } else if constexpr (std::is_same_v<A, double> && std::is_same_v<T, float>) {
      HWY_DYNAMIC_DISPATCH(widen_f32)(x, n, to);
      return;
    } else if constexpr (std::is_same_v<A, std::int64_t> && std::is_same_v<T, float>) {
      HWY_DYNAMIC_DISPATCH(truncate_f32)(x, n, to);
      return;
    }
  }
  for (std::int64_t i = 0; i < n; ++i) to[i] = to_compute<A>(x[i * stride]);
}

template <class A, class T>
void nonzero(const void* from, std::int64_t stride, std::int64_t n, A* to) {
  const T* x = static_cast<const T*>(from);
  for (std::int64_t i = 0; i < n; ++i) {
    if constexpr (std::is_same_v<T, Bool>) {
      to[i] = static_cast<A>(x[i * stride].byte != 0);
    } else if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
      to[i] = static_cast<A>((x[i * stride].bits & 0x7fffu) != 0);
    } else {
      to[i] = static_cast<A>(x[i * stride] != T(0));
    }
  }
}

template <class A, class T>
void store(const A* from, std::int64_t n, void* to, std::int64_t stride) {
  T* y = static_cast<T*>(to);
  if (stride == 1) {
    if constexpr (std::is_same_v<A, T>) {
      std::memcpy(y, from, static_cast<std::size_t>(n) * sizeof(A));
      return;
    } else if constexpr (std::is_same_v<A, float> && std::is_same_v<T, Half>) {
      HWY_DYNAMIC_DISPATCH(store_half)(from, n, &y->bits);
      return;
    } else if constexpr (std::is_same_v<A, float> && std::is_same_v<T, BFloat16>) {
      HWY_DYNAMIC_DISPATCH(store_bfloat)(from, n, &y->bits);
      return;
    } else if constexpr (std::is_same_v<A, std::int64_t> && std::is_same_v<T, std::int32_t>) {
      HWY_DYNAMIC_DISPATCH(narrow_i32)(from, n, y);
      return;
    } else if constexpr (std::is_same_v<A, std::int64_t> && std::is_same_v<T, Bool>) {
      HWY_DYNAMIC_DISPATCH(narrow_bool)(from, n, &y->byte);
      return;
    } else if constexpr (std::is_same_v<A, std::int64_t> && std::is_same_v<T, float>) {
      HWY_DYNAMIC_DISPATCH(real_of_int)(from, n, y);
      return;
    } else if constexpr (std::is_same_v<A, float> && std::is_same_v<T, std::int64_t>) {
      HWY_DYNAMIC_DISPATCH(truncate_f32)(from, n, y);
      return;
    } else if constexpr (std::is_same_v<A, float> && std::is_same_v<T, std::int32_t>) {
      if (HWY_DYNAMIC_DISPATCH(truncate_to_i32)(from, n, y)) return;
    }
  }
  for (std::int64_t i = 0; i < n; ++i) y[i * stride] = from_compute<T>(from[i]);
}

// One case per dtype; `pick` is called with a value of the element type.
template <class F>
auto by_dtype(DType dtype, F&& pick) {
  switch (dtype) {
    case DType::kBool:
      return pick(Bool{});
    case DType::kU8:
      return pick(std::uint8_t{});
    case DType::kI32:
      return pick(std::int32_t{});
    case DType::kI64:
      return pick(std::int64_t{});
    case DType::kF16:
      return pick(Half{});
    case DType::kBF16:
      return pick(BFloat16{});
    case DType::kF32:
      return pick(float{});
    case DType::kI8:
      return pick(std::int8_t{});
    case DType::kI16:
      return pick(std::int16_t{});
    case DType::kU16:
      return pick(std::uint16_t{});
    case DType::kU32:
      return pick(std::uint32_t{});
    case DType::kU64:
      return pick(std::uint64_t{});
    case DType::kC64:
      return pick(Complex64{});
    case DType::kC128:
      return pick(Complex128{});
    case DType::kF64:
      break;
  }
  return pick(double{});
}

}  // namespace

template <class A>
LoadBlock<A> load_block(DType dtype) {
  return by_dtype(dtype, [](auto t) -> LoadBlock<A> { return &load<A, decltype(t)>; });
}
template <class A>
LoadBlock<A> load_nonzero(DType dtype) {
  return by_dtype(dtype, [](auto t) -> LoadBlock<A> { return &nonzero<A, decltype(t)>; });
}
template <class A>
StoreBlock<A> store_block(DType dtype) {
  return by_dtype(dtype, [](auto t) -> StoreBlock<A> { return &store<A, decltype(t)>; });
}

template LoadBlock<float> load_block(DType);
template LoadBlock<double> load_block(DType);
template LoadBlock<std::int32_t> load_block(DType);
template LoadBlock<std::int64_t> load_block(DType);
template LoadBlock<std::uint64_t> load_block(DType);
template LoadBlock<Complex64> load_block(DType);
template LoadBlock<Complex128> load_block(DType);
template LoadBlock<float> load_nonzero(DType);
template LoadBlock<double> load_nonzero(DType);
template LoadBlock<std::int64_t> load_nonzero(DType);
template LoadBlock<std::uint64_t> load_nonzero(DType);
template LoadBlock<Complex64> load_nonzero(DType);
template LoadBlock<Complex128> load_nonzero(DType);
template StoreBlock<float> store_block(DType);
template StoreBlock<double> store_block(DType);
template StoreBlock<std::int32_t> store_block(DType);
template StoreBlock<std::int64_t> store_block(DType);
template StoreBlock<std::uint64_t> store_block(DType);
template StoreBlock<Complex64> store_block(DType);
template StoreBlock<Complex128> store_block(DType);

}  // namespace teletensor::backends::cpu
#endif  // HWY_ONCE
