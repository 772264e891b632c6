// Block loads and stores: any dtype, any stride, to and from the type that a kernel computes in.
//
// The compute types are float (f16, bf16, f32), double (f64), int64 (bool and the integers up to 32
// bits and int64; int32 for what needs no more), uint64 (u64), Complex64 and Complex128. A float
// becomes an integer by truncation, saturated to 64 bits, NaN as 0 (of u64: negative ones wrap
// through int64); integers wrap; a bool is "not zero"; a complex number becomes a real one by its
// real part.
#pragma once

#include <cstdint>
#include <type_traits>

#include "engine/core/complex.h"
#include "engine/core/dtype.h"

namespace teletensor::backends::cpu {

// Reads n elements from `from`, `stride` elements apart (any sign, 0 too).
template <class A>
using LoadBlock = void (*)(const void* from, std::int64_t stride, std::int64_t n, A* to);
template <class A>
using StoreBlock = void (*)(const A* from, std::int64_t n, void* to, std::int64_t stride);

template <class A>
LoadBlock<A> load_block(core::DType dtype);
// 1 where the element is not zero (NaN is not), else 0.
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

// Calls f(A{}) with the type that `dtype` is computed in: for ops that order their elements, so
// never a complex one (the caller's infer has refused those).
template <class F>
auto with_compute_type(core::DType dtype, F&& f) {
  if (dtype == core::DType::kF64) return f(double{});
  if (core::is_floating(dtype)) return f(float{});
  if (dtype == core::DType::kU64) return f(std::uint64_t{});
  return f(std::int64_t{});
}

// The same for ops that complex numbers have as well.
template <class F>
auto with_any_compute_type(core::DType dtype, F&& f) {
  if (dtype == core::DType::kC64) return f(core::Complex64{});
  if (dtype == core::DType::kC128) return f(core::Complex128{});
  return with_compute_type(dtype, f);
}

// The floating ones alone; the caller's infer has refused the others.
template <class F>
auto with_float_type(core::DType dtype, F&& f) {
  if (dtype == core::DType::kF64) return f(double{});
  return f(float{});
}

// The floating and the complex ones.
template <class F>
auto with_inexact_type(core::DType dtype, F&& f) {
  if (dtype == core::DType::kC64) return f(core::Complex64{});
  if (dtype == core::DType::kC128) return f(core::Complex128{});
  return with_float_type(dtype, f);
}

}  // namespace teletensor::backends::cpu
