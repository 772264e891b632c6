// Kernels of special functions and rare pointwise ops: the functors of scalar_special.h in plain
// loops.

#include <limits>

#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/plain_loops.h"
#include "engine/ops/scalar_special.h"

namespace teletensor::backends::cpu {
namespace {

using core::DType;
using core::Status;

template <class... F>
void add_list(KernelTable& table, List<F...>) {
  (bind_plain<F>(), ...);
  (table.add(F::kOp, functor_kernel<F>), ...);
}

template <class... F>
void add_rare(KernelTable& table, List<F...>) {
  (table.add(F::kOp, functor_kernel<F>), ...);
}

double largest(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return 65504;
    case DType::kBF16:
      return 3.3895313892515355e38;
    case DType::kF32:
      return std::numeric_limits<float>::max();
    default:
      return std::numeric_limits<double>::max();
  }
}

Status nan_to_num(KernelCall& call) {
  const core::Attributes& a = call.attributes;
  const double limit = largest(call.out[0].dtype);
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
  add_list(table, List<s::Lgamma, s::Digamma, s::Polygamma, s::Erfcx, s::LogNdtr, s::I0, s::I0e,
                       s::I1, s::I1e>());
  add_list(table, List<s::BesselJ0, s::BesselJ1, s::BesselY0, s::BesselY1, s::BesselK0, s::BesselK1,
                       s::ScaledK0, s::ScaledK1, s::SphericalJ0, s::AiryAi>());
  add_list(table, List<s::Zeta, s::Igamma, s::Igammac, s::Heaviside, s::Gcd, s::Lcm>());
  add_list(
      table,
      List<s::ChebyshevT, s::ChebyshevU, s::ChebyshevV, s::ChebyshevW, s::ShiftedT, s::ShiftedU,
           s::ShiftedV, s::ShiftedW, s::HermiteH, s::HermiteHe, s::Laguerre, s::Legendre>());
  bind_plain<s::NextAfter>();
  add_rare(table, List<s::Entr, s::Sinc, s::Ndtr, s::Ndtri, s::Erfinv, s::Logit, s::Signbit,
                       s::Xlogy, s::Xlog1py, s::LogAddExp, s::LogAddExp2>());
  table.add("nan_to_num", nan_to_num);
  table.add("nextafter", nextafter);
  table.add("frexp", frexp);
}

}  // namespace teletensor::backends::cpu
