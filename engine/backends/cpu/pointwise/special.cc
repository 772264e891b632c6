// Kernels of special functions and rare pointwise ops: the functors of scalar/special.h in plain
// loops.

#include "engine/ops/scalar/special.h"

#include <algorithm>
#include <utility>

#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/loops/plain_loops.h"
#include "engine/backends/cpu/pointwise/special_table.h"

namespace teletensor::backends::cpu {
namespace {

using core::DType;
using core::Status;

template <class... F>
void add_list(KernelTable& table, List<F...>) {
  (bind_plain<F>(), ...);
  add_functors(table, List<F...>());
}

template <class... F>
void add_rare(KernelTable& table, List<F...>) {
  (table.add(F::kOp, functor_kernel<F>, LoopRole::kElement), ...);
}

// ---------------------------------------------------------------- tables

// The range of each function's table, chosen so that the polynomial of a cell is within 1e-9 of the
// function.
template <class F>
inline constexpr TableRange kRange{0, 0, Symmetry::kNone};
template <>
inline constexpr TableRange kRange<s::Lgamma>{-8, 7, Symmetry::kPositive, 1e-6};
template <>
inline constexpr TableRange kRange<s::Digamma>{-8, 7, Symmetry::kPositive, 1e-6};
template <>
inline constexpr TableRange kRange<s::Polygamma>{-8, 7, Symmetry::kPositive};
template <>
inline constexpr TableRange kRange<s::I0>{-8, 5, Symmetry::kEven};
template <>
inline constexpr TableRange kRange<s::I0e>{-8, 8, Symmetry::kEven};
template <>
inline constexpr TableRange kRange<s::I1>{-8, 5, Symmetry::kOdd};
template <>
inline constexpr TableRange kRange<s::I1e>{-8, 8, Symmetry::kOdd};
template <>
inline constexpr TableRange kRange<s::BesselJ0>{-8, 4, Symmetry::kEven, 1e-3};
template <>
inline constexpr TableRange kRange<s::BesselJ1>{-8, 4, Symmetry::kOdd, 1e-3};
template <>
inline constexpr TableRange kRange<s::BesselY0>{-8, 4, Symmetry::kPositive, 1e-3};
template <>
inline constexpr TableRange kRange<s::BesselY1>{-8, 4, Symmetry::kPositive, 1e-3};
template <>
inline constexpr TableRange kRange<s::BesselK0>{-8, 5, Symmetry::kPositive};
template <>
inline constexpr TableRange kRange<s::BesselK1>{-8, 5, Symmetry::kPositive};
template <>
inline constexpr TableRange kRange<s::ScaledK0>{-8, 8, Symmetry::kPositive};
template <>
inline constexpr TableRange kRange<s::ScaledK1>{-8, 8, Symmetry::kPositive};
template <>
inline constexpr TableRange kRange<s::SphericalJ0>{-8, 4, Symmetry::kEven, 1e-3};
template <>
inline constexpr TableRange kRange<s::AiryAi>{-8, 3, Symmetry::kNone, 1e-3};

template <class F>
void table_loop(const void* const* in, void* out, std::int64_t n, const void*) {
  static const SpecialTable table(kRange<F>, F());
  table.run(static_cast<const float*>(in[0]), static_cast<float*>(out), n, F());
}

constexpr int kPolygammas = 8;  // number of orders that have a table

template <int kOrder>
const SpecialTable& polygamma_table() {
  static const SpecialTable table(kRange<s::Polygamma>,
                                  [](double x) { return s::polygamma(kOrder, x); });
  return table;
}

void polygamma_loop(const void* const* in, void* out, std::int64_t n, const void* functor) {
  const auto& f = *static_cast<const s::Polygamma*>(functor);
  if (f.n >= kPolygammas) return plain_loop<s::Polygamma, float>(in, out, n, functor);
  const auto run = [&]<int... kOrders>(std::integer_sequence<int, kOrders...>) {
    ((f.n == kOrders ? polygamma_table<kOrders>().run(static_cast<const float*>(in[0]),
                                                      static_cast<float*>(out), n, f)
                     : void()),
     ...);
  };
  run(std::make_integer_sequence<int, kPolygammas>());
}

template <class... F>
void add_tables(KernelTable& table, List<F...>) {
  add_list(table, List<F...>());
  ((Slot<F>::loops.real32 = table_loop<F>, Slot<F>::loops.cost = 50), ...);
}

// ---------------------------------------------------------------- polynomials

// One step of each recurrence, with the operations of scalar/polynomials.h, so that the bits are
// the same.
template <s::Chebyshev kKind, bool kShifted>
struct ChebyshevSteps {
  // Higher degrees are computed with cosines.
  static constexpr int kMax = kKind == s::Chebyshev::kT ? 6 : 8;
  static double argument(double x) { return kShifted ? x + x - 1 : x; }
  static double first(double x) {
    return kKind == s::Chebyshev::kT   ? x
           : kKind == s::Chebyshev::kU ? x + x
           : kKind == s::Chebyshev::kV ? x + x - 1
                                       : x + x + 1;
  }
  static double next(double x, double p, double q, double) { return (x + x) * q - p; }
};
template <bool kPhysicist>
struct HermiteSteps {
  static constexpr int kMax = 30;
  static constexpr double kScale = kPhysicist ? 2 : 1;
  static double argument(double x) { return x; }
  static double first(double x) { return kScale * x; }
  static double next(double x, double p, double q, double k) { return kScale * (x * q - k * p); }
};
struct LaguerreSteps {
  static constexpr int kMax = 30;
  static double argument(double x) { return x; }
  static double first(double x) { return 1 - x; }
  static double next(double x, double p, double q, double m) {
    return ((m + m + (1 - x)) * q - m * p) / (m + 1);
  }
};
struct LegendreSteps {
  static constexpr int kMax = 30;
  static double argument(double x) { return x; }
  static double first(double x) { return x; }
  static double next(double x, double p, double q, double m) {
    return ((m + m + 1) * x * q - m * p) / (m + 1);
  }
};

// If adjacent elements have the same small degree, the recurrence is computed for all of them
// together, step by step.
template <class F, class Steps, class T>
void polynomial_loop(const void* const* in, void* out, std::int64_t n, const void* functor) {
  constexpr std::int64_t kChunk = 256;
  const T *a = static_cast<const T*>(in[0]), *b = static_cast<const T*>(in[1]);
  T* y = static_cast<T*>(out);
  double x[kChunk], p[kChunk], q[kChunk];
  for (std::int64_t at = 0; at < n; at += kChunk) {
    const std::int64_t count = std::min(kChunk, n - at);
    const T degree = b[at];
    if (!(degree >= 2 && degree < Steps::kMax + 1) ||
        !std::all_of(b + at, b + at + count, [&](T each) { return each == degree; })) {
      const void* const from[] = {a + at, b + at};
      plain_loop<F, T>(from, y + at, count, functor);
      continue;
    }
    for (std::int64_t i = 0; i < count; ++i) {
      x[i] = Steps::argument(static_cast<double>(a[at + i]));
      p[i] = 1;
      q[i] = Steps::first(x[i]);
    }
    for (int k = 1; k < static_cast<int>(degree); ++k) {
      for (std::int64_t i = 0; i < count; ++i) {
        const double r = Steps::next(x[i], p[i], q[i], k);
        p[i] = q[i];
        q[i] = r;
      }
    }
    for (std::int64_t i = 0; i < count; ++i) y[at + i] = static_cast<T>(q[i]);
  }
}

template <class F, class Steps>
void add_polynomial(KernelTable& table) {
  add_list(table, List<F>());
  Slot<F>::loops.real32 = polynomial_loop<F, Steps, float>;
  Slot<F>::loops.real64 = polynomial_loop<F, Steps, double>;
}

// ---------------------------------------------------------------- other kernels

Status nan_to_num(KernelCall& call) {
  const core::Attributes& a = call.attributes;
  const double limit = core::largest_of(call.out[0].dtype);
  s::NanToNum functor;
  functor.nan = a.has(0) ? a.real(0) : 0;
  functor.above = a.has(1) ? a.real(1) : limit;
  functor.below = a.has(2) ? a.real(2) : -limit;
  return run_functor(call, call.in, functor);
}

Status nextafter(KernelCall& call) {
  s::NextAfter functor;
  functor.dtype = common_dtype(call.in, call.out[0]);
  return run_functor(call, call.in, functor);
}

Status frexp(KernelCall& call) {
  TT_RETURN_IF_ERROR(run_functor(call, call.in, s::Mantissa()));
  KernelCall exponents{call.op,         call.in,       call.out.subspan(1), call.counts,
                       call.attributes, call.parallel, call.scratch};
  return run_functor(exponents, call.in, s::Exponent());
}

}  // namespace

void add_special_kernels(KernelTable& table) {
  add_list(table, List<s::Erfcx, s::LogNdtr, s::Polygamma>());
  Slot<s::Polygamma>::loops.real32 = polygamma_loop;
  add_tables(table, List<s::Lgamma, s::Digamma, s::I0, s::I0e, s::I1, s::I1e>());
  add_tables(table, List<s::BesselJ0, s::BesselJ1, s::BesselY0, s::BesselY1, s::BesselK0,
                         s::BesselK1, s::ScaledK0, s::ScaledK1, s::SphericalJ0, s::AiryAi>());
  add_list(table, List<s::Zeta, s::Igamma, s::Igammac, s::Heaviside, s::Gcd, s::Lcm>());
  using enum s::Chebyshev;
  add_polynomial<s::ChebyshevT, ChebyshevSteps<kT, false>>(table);
  add_polynomial<s::ChebyshevU, ChebyshevSteps<kU, false>>(table);
  add_polynomial<s::ChebyshevV, ChebyshevSteps<kV, false>>(table);
  add_polynomial<s::ChebyshevW, ChebyshevSteps<kW, false>>(table);
  add_polynomial<s::ShiftedT, ChebyshevSteps<kT, true>>(table);
  add_polynomial<s::ShiftedU, ChebyshevSteps<kU, true>>(table);
  add_polynomial<s::ShiftedV, ChebyshevSteps<kV, true>>(table);
  add_polynomial<s::ShiftedW, ChebyshevSteps<kW, true>>(table);
  add_polynomial<s::HermiteH, HermiteSteps<true>>(table);
  add_polynomial<s::HermiteHe, HermiteSteps<false>>(table);
  add_polynomial<s::Laguerre, LaguerreSteps>(table);
  add_polynomial<s::Legendre, LegendreSteps>(table);
  bind_plain<s::NextAfter>();
  add_rare(table, List<s::Entr, s::Sinc, s::Ndtr, s::Ndtri, s::Erfinv, s::Logit, s::Signbit,
                       s::Xlogy, s::Xlog1py, s::LogAddExp, s::LogAddExp2>());
  table.add("nan_to_num", nan_to_num, LoopRole::kElement);
  table.add("nextafter", nextafter, LoopRole::kElement);
  table.add("frexp", frexp);
}

}  // namespace teletensor::backends::cpu
