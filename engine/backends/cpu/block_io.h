// Block loads and stores: any dtype, any stride, to and from the type that a kernel computes in.
//
// The compute types are float (f16, bf16, f32), double (f64) and int64 (bool and the integers). A
// float becomes an integer by truncation, saturated, NaN as 0; integers wrap; a bool is "not zero".
#pragma once

#include <cstdint>
#include <type_traits>

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
inline constexpr core::DType kDTypeOf = std::is_same_v<A, float>    ? core::DType::kF32
                                        : std::is_same_v<A, double> ? core::DType::kF64
                                                                    : core::DType::kI64;

// Calls f(A{}) with the type that `dtype` is computed in.
template <class F>
auto with_compute_type(core::DType dtype, F&& f) {
  if (dtype == core::DType::kF64) return f(double{});
  if (core::is_floating(dtype)) return f(float{});
  return f(std::int64_t{});
}

// The floating ones alone; the caller's infer has refused the others.
template <class F>
auto with_float_type(core::DType dtype, F&& f) {
  if (dtype == core::DType::kF64) return f(double{});
  return f(float{});
}

}  // namespace teletensor::backends::cpu
