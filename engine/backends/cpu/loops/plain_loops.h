// Loops of functors that the compiler does not vectorise (special functions, rare ops): plain code,
// compiled once.
#pragma once

#include "engine/backends/cpu/loops/loops.h"

namespace teletensor::backends::cpu {

template <class F, class T>
void plain_loop(const void* const* in, void* out, std::int64_t n, const void* functor) {
  using Result = std::conditional_t<has_bool_result<F>, std::uint8_t, T>;
  const F& f = *static_cast<const F*>(functor);
  const T* a = static_cast<const T*>(in[0]);
  auto* y = static_cast<Result*>(out);
  if constexpr (std::is_invocable_v<F, T>) {
    for (std::int64_t i = 0; i < n; ++i) y[i] = static_cast<Result>(f(a[i]));
  } else {
    const T* b = static_cast<const T*>(in[1]);
    for (std::int64_t i = 0; i < n; ++i) y[i] = static_cast<Result>(f(a[i], b[i]));
  }
}

// Sets Slot<F>::loops; called while the kernel table is made.
template <class F>
void bind_plain() {
  static const bool once = [] {
    Loops& loops = Slot<F>::loops;
    if constexpr ((F::kTypes & s::kReal) != 0) {
      loops.real32 = plain_loop<F, float>;
      loops.real64 = plain_loop<F, double>;
    }
    if constexpr ((F::kTypes & s::kInteger) != 0) {
      loops.integer = plain_loop<F, std::int64_t>;
      loops.natural = plain_loop<F, std::uint64_t>;
    }
    loops.bool_result = has_bool_result<F>;
    loops.cost = cost_of<F>;
    loops.functor = type_name<F>();
    loops.stateless = std::is_empty_v<F>;
    loops.libm = calls_libm<F>;
    return true;
  }();
  (void)once;
}

}  // namespace teletensor::backends::cpu
