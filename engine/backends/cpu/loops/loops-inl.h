// The contiguous loops of the scalar functors, compiled once per instruction set. The kernel files
// include this between hwy/foreach_target.h and HWY_BEFORE_NAMESPACE. The compiler vectorises the
// loops.
#if defined(TELETENSOR_LOOPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TELETENSOR_LOOPS_INL_H_
#undef TELETENSOR_LOOPS_INL_H_
#else
#define TELETENSOR_LOOPS_INL_H_
#endif

#include "engine/backends/cpu/loops/loops.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace teletensor::backends::cpu {
namespace HWY_NAMESPACE {

// Element types in memory; conditions and bool results are bytes.
template <class F, class T>
using Result = std::conditional_t<has_bool_result<F>, std::uint8_t, T>;

// A loop that calls libm processes multiples of kWhole elements, because a scalar remainder would
// call the scalar function, which gives other bits.
inline constexpr std::int64_t kWhole = 16;

// noinline keeps the length unknown to the compiler, so that the remainder uses the same vector
// code. flatten compiles the functor for this instruction set.
template <class F, class T>
[[gnu::noinline, gnu::flatten]] void body1(const T* a, Result<F, T>* y, std::int64_t n,
                                           const F& functor) {
  const F f = functor;
  TT_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) y[i] = f(a[i]);
}
template <class F, class T>
[[gnu::noinline, gnu::flatten]] void body2(const T* a, const T* b, Result<F, T>* y, std::int64_t n,
                                           const F& functor) {
  const F f = functor;
  TT_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) y[i] = f(a[i], b[i]);
}
template <class F, class T>
[[gnu::noinline, gnu::flatten]] void body3(const T* a, const T* b, const T* c, Result<F, T>* y,
                                           std::int64_t n, const F& functor) {
  const F f = functor;
  TT_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) y[i] = f(a[i], b[i], c[i]);
}

template <class T>
[[gnu::noinline, gnu::flatten]] bool all_near(const T* a, const T* b, std::int64_t n) {
  std::int64_t near = 0;
  for (std::int64_t i = 0; i < n; ++i) near += ops::scalar::fmod_is_near(a[i], b[i]);
  return near == n;
}

template <class F, class T>
void loop1(const void* const* in, void* out, std::int64_t n, const void* functor) {
  const F& f = *static_cast<const F*>(functor);
  const T* a = static_cast<const T*>(in[0]);
  auto* y = static_cast<Result<F, T>*>(out);
  std::int64_t whole = n;
  if constexpr (calls_libm<F> && std::is_floating_point_v<T>) {
    whole = n / kWhole * kWhole;
    if (whole < n) {
      T x[kWhole] = {};
      Result<F, T> z[kWhole];
      for (std::int64_t i = whole; i < n; ++i) x[i - whole] = a[i];
      body1<F, T>(x, z, kWhole, f);
      if (whole > 0) body1<F, T>(a, y, whole, f);
      for (std::int64_t i = whole; i < n; ++i) y[i] = z[i - whole];
      return;
    }
  }
  body1<F, T>(a, y, whole, f);
}

template <class F, class T>
void loop2(const void* const* in, void* out, std::int64_t n, const void* functor) {
  const F& f = *static_cast<const F*>(functor);
  const T *a = static_cast<const T*>(in[0]), *b = static_cast<const T*>(in[1]);
  auto* y = static_cast<Result<F, T>*>(out);
  std::int64_t whole = n;
  if constexpr (calls_libm<F> && std::is_floating_point_v<T>) {
    whole = n / kWhole * kWhole;
    if (whole < n) {
      T u[kWhole] = {}, v[kWhole] = {};
      Result<F, T> z[kWhole];
      for (std::int64_t i = whole; i < n; ++i) u[i - whole] = a[i], v[i - whole] = b[i];
      body2<F, T>(u, v, z, kWhole, f);
      if (whole > 0) body2<F, T>(a, b, y, whole, f);
      for (std::int64_t i = whole; i < n; ++i) y[i] = z[i - whole];
      return;
    }
  }
  if constexpr (requires { typename F::Near; } && std::is_floating_point_v<T>) {
    using Near = typename F::Near;
    for (std::int64_t i = 0; i < n; i += kBlock) {
      const std::int64_t m = n - i < kBlock ? n - i : kBlock;
      if (all_near(a + i, b + i, m)) {
        body2<Near, T>(a + i, b + i, y + i, m, Near());
      } else {
        body2<F, T>(a + i, b + i, y + i, m, f);
      }
    }
    return;
  }
  body2<F, T>(a, b, y, whole, f);
}

template <class F, class T>
void loop3(const void* const* in, void* out, std::int64_t n, const void* functor) {
  body3<F, T>(static_cast<const T*>(in[0]), static_cast<const T*>(in[1]),
              static_cast<const T*>(in[2]), static_cast<T*>(out), n,
              *static_cast<const F*>(functor));
}

// in[0] are the bytes of the condition.
template <class F, class T>
void loop_select(const void* const* in, void* out, std::int64_t n, const void* functor) {
  const F f = *static_cast<const F*>(functor);
  const auto* condition = static_cast<const std::uint8_t*>(in[0]);
  const T *a = static_cast<const T*>(in[1]), *b = static_cast<const T*>(in[2]);
  T* y = static_cast<T*>(out);
  TT_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) {
    const T u = a[i], v = b[i];
    y[i] = f(condition[i] != 0, u, v);
  }
}

template <class F, class T>
constexpr Inner loop_of() {
  if constexpr (std::is_same_v<F, ops::scalar::Where>) {
    return &loop_select<F, T>;
  } else if constexpr (std::is_invocable_v<F, T>) {
    return &loop1<F, T>;
  } else if constexpr (std::is_invocable_v<F, T, T>) {
    return &loop2<F, T>;
  } else {
    return &loop3<F, T>;
  }
}

// Sets Slot<F>::loops to the functions of this instruction set.
template <class F>
void bind_one() {
  Loops& loops = Slot<F>::loops;
  if constexpr (F::kTypes & ops::scalar::kReal) {
    loops.real32 = loop_of<F, float>();
    loops.real64 = loop_of<F, double>();
  }
  if constexpr (F::kTypes & ops::scalar::kInteger) {
    loops.integer = loop_of<F, std::int64_t>();
    loops.natural = loop_of<F, std::uint64_t>();
  }
  if constexpr (F::kTypes & ops::scalar::kComplex) {
    loops.complex64 = loop_of<F, core::Complex64>();
    loops.complex128 = loop_of<F, core::Complex128>();
  }
  if constexpr (is_narrow<F>) loops.narrow = loop_of<F, std::int32_t>();
  if constexpr (is_logical<F>) loops.bytes = loop_of<F, std::uint8_t>();
  loops.bool_result = has_bool_result<F>;
  loops.cost = cost_of<F>;
  loops.functor = type_name<F>();
  loops.stateless = std::is_empty_v<F>;
  loops.libm = calls_libm<F>;
}
template <class... F>
void bind(List<F...>) {
  (bind_one<F>(), ...);
}

}  // namespace HWY_NAMESPACE
}  // namespace teletensor::backends::cpu
HWY_AFTER_NAMESPACE();

#endif
