// Block loads and stores: they convert elements of any dtype and stride to and from the type in
// which a kernel computes.
//
// The compute types are float (for f16, bf16, f32), double (f64), int64 (bool, int64 and smaller
// integers; int32 where that is enough), uint64 (u64), Complex64 and Complex128. A float is
// converted to an integer by truncation, saturated to 64 bits, with NaN as 0 (for u64, negative
// values wrap through int64). Integers wrap. A bool is true if the value is not zero. A complex
// number is converted to a real one by taking its real part.
#pragma once

#include <cstdint>
#include <type_traits>

#include "engine/core/complex.h"
#include "engine/core/dtype.h"

namespace teletensor::backends::cpu {

// Reads n elements from `from`, `stride` elements apart. The stride may be negative or 0.
template <class A>
using LoadBlock = void (*)(const void* from, std::int64_t stride, std::int64_t n, A* to);
template <class A>
using StoreBlock = void (*)(const A* from, std::int64_t n, void* to, std::int64_t stride);

template <class A>
LoadBlock<A> load_block(core::DType dtype);
// Loads 1 for each element that is not zero (NaN is not zero) and 0 for each zero.
template <class A>
LoadBlock<A> load_nonzero(core::DType dtype);
template <class A>
StoreBlock<A> store_block(core::DType dtype);

template <class A>
inline constexpr core::DType kDTypeOf = core::DType::kI64;
template <>
inline constexpr core::DType kDTypeOf<std::int32_t> = core::DType::kI32;
template <>
inline constexpr core::DType kDTypeOf<float> = core::DType::kF32;
template <>
inline constexpr core::DType kDTypeOf<double> = core::DType::kF64;
template <>
inline constexpr core::DType kDTypeOf<std::uint64_t> = core::DType::kU64;
template <>
inline constexpr core::DType kDTypeOf<core::Complex64> = core::DType::kC64;
template <>
inline constexpr core::DType kDTypeOf<core::Complex128> = core::DType::kC128;

// Calls f(A{}) with the compute type of `dtype`. For ops that order their elements: the type is
// never complex, because the op's infer has refused complex dtypes.
template <class F>
auto with_compute_type(core::DType dtype, F&& f) {
  if (dtype == core::DType::kF64) return f(double{});
  if (core::is_floating(dtype)) return f(float{});
  if (dtype == core::DType::kU64) return f(std::uint64_t{});
  return f(std::int64_t{});
}

// Like with_compute_type(), for ops that also support complex numbers.
template <class F>
auto with_any_compute_type(core::DType dtype, F&& f) {
  if (dtype == core::DType::kC64) return f(core::Complex64{});
  if (dtype == core::DType::kC128) return f(core::Complex128{});
  return with_compute_type(dtype, f);
}

// Like with_compute_type(), for ops that support only floating dtypes; infer has refused all
// others.
template <class F>
auto with_float_type(core::DType dtype, F&& f) {
  if (dtype == core::DType::kF64) return f(double{});
  return f(float{});
}

// Like with_compute_type(), for ops that support only floating and complex dtypes.
template <class F>
auto with_inexact_type(core::DType dtype, F&& f) {
  if (dtype == core::DType::kC64) return f(core::Complex64{});
  if (dtype == core::DType::kC128) return f(core::Complex128{});
  return with_float_type(dtype, f);
}

}  // namespace teletensor::backends::cpu
