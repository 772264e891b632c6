// Kernels of the ops that compose complex numbers from parts or extract their parts.
#include <algorithm>

#include "engine/backends/cpu/access/strided.h"
#include "engine/backends/cpu/access/targets.h"
#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/loops/loops.h"

namespace teletensor::backends::cpu {
namespace {

using core::Geometry;
using core::Status;

// A real number is its own conjugate.
Status conj(KernelCall& call) {
  if (core::is_complex(call.in[0].dtype)) return run_functor(call, call.in, s::Conj());
  strided_copy(call.in[0], call.out[0], call.parallel);
  return {};
}

Status real(KernelCall& call) {
  strided_copy(call.in[0], call.out[0], call.parallel);
  return {};
}

// Computes functions of complex64 with the vector loops of the real functions: make(parts of x,
// results of F).
template <class F, bool kSwapped, class Make>
void by_parts(const void* const* in, void* out, std::int64_t n, Make&& make) {
  constexpr std::int64_t kAtOnce = 512;
  const auto* x = static_cast<const core::Complex64*>(in[0]);
  auto* y = static_cast<core::Complex64*>(out);
  float re[kAtOnce], im[kAtOnce], made[kAtOnce];
  const void* const parts[] = {kSwapped ? im : re, kSwapped ? re : im};
  const F functor;
  for (std::int64_t at = 0; at < n; at += kAtOnce) {
    const std::int64_t m = std::min(kAtOnce, n - at);
    for (std::int64_t i = 0; i < m; ++i) re[i] = x[at + i].re, im[i] = x[at + i].im;
    Slot<F>::loops.real32(parts, made, m, &functor);
    for (std::int64_t i = 0; i < m; ++i) y[at + i] = make(re[i], im[i], made[i]);
  }
}

void abs_loop(const void* const* in, void* out, std::int64_t n, const void*) {
  by_parts<s::Hypot, false>(in, out, n,
                            [](float, float, float size) { return core::Complex64(size, 0); });
}
void angle_loop(const void* const* in, void* out, std::int64_t n, const void*) {
  by_parts<s::Atan2, true>(in, out, n,
                           [](float, float, float angle) { return core::Complex64(angle, 0); });
}
void sgn_loop(const void* const* in, void* out, std::int64_t n, const void*) {
  by_parts<s::Hypot, false>(in, out, n, [](float re, float im, float size) {
    return size == 0 ? core::Complex64(0, 0) : core::Complex64(re / size, im / size);
  });
}

template <class F>
Status from_parts(KernelCall& call) {
  const F functor;
  Plan plan;
  plan.loops = &Slot<F>::loops;
  plan.functor = &functor;
  plan.dtype = call.out[0].dtype;
  return run_elementwise(call, call.in, plan);
}

// Handles row-major parts of the result's precision directly, without a pass that converts them
// first.
template <class T>
bool interleaved(KernelCall& call) {
  const TensorArg& out = call.out[0];
  for (const TensorArg& part : call.in) {
    if (part.kind != TensorArg::Kind::kTensor || part.dtype != core::real_of(out.dtype) ||
        !(part.geometry->shape == out.geometry->shape) || !part.geometry->contiguous()) {
      return false;
    }
  }
  if (!out.geometry->contiguous() || out.geometry->numel() == 0) return false;
  const T *re = call.in[0].first<T>(), *im = call.in[1].first<T>();
  T* const y = out.first<T>();
  split(call.parallel, out.geometry->numel(), 0.3, 4096, [&](std::int64_t begin, std::int64_t end) {
    TT_INDEPENDENT
    for (std::int64_t i = begin; i < end; ++i) {
      y[2 * i] = re[i];
      y[2 * i + 1] = im[i];
    }
  });
  return true;
}

Status complex(KernelCall& call) {
  if (call.loop == nullptr) {
    const bool wide = call.out[0].dtype == core::DType::kC128;
    if (wide ? interleaved<double>(call) : interleaved<float>(call)) return {};
  }
  return from_parts<s::MakeComplex>(call);
}

// Views a contiguous tensor of pairs of reals as complex numbers.
TensorArg paired(const TensorArg& reals, const Geometry& geometry) {
  TensorArg out = reals;
  out.data = reals.first();
  out.dtype = core::complex_of(reals.dtype);
  out.geometry = &geometry;
  return out;
}

Status view_as_real(KernelCall& call) {
  const Geometry geometry(call.in[0].geometry->shape);
  strided_copy(call.in[0], paired(call.out[0], geometry), call.parallel);
  return {};
}

Status view_as_complex(KernelCall& call) {
  const TensorArg& out = call.out[0];
  const Geometry geometry(call.in[0].geometry->shape);
  TensorArg reals = out;
  reals.data = out.first();
  reals.dtype = core::real_of(out.dtype);
  reals.geometry = &geometry;
  strided_copy(call.in[0], reals, call.parallel);
  return {};
}

}  // namespace

void add_complex_kernels(KernelTable& table) {
  bind_loops();
  Slot<s::Abs>::loops.complex64 = abs_loop;
  Slot<s::Angle>::loops.complex64 = angle_loop;
  Slot<s::Sgn>::loops.complex64 = sgn_loop;
  table.add("conj", conj);
  table.add("real", real);
  table.add("imag", functor_kernel<s::Imag>);
  table.add("sgn", functor_kernel<s::Sgn>);
  table.add("angle", functor_kernel<s::Angle>);
  table.add("complex", complex);
  table.add("polar", from_parts<s::Polar>);
  table.add("view_as_real", view_as_real);
  table.add("view_as_complex", view_as_complex);
}

}  // namespace teletensor::backends::cpu
