#include "engine/backends/cpu/optimizer_simd.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/backends/cpu/optimizer_simd.cc"
#include "engine/backends/cpu/targets.h"
#include "hwy/foreach_target.h"  // compiles the part below once per instruction set
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace teletensor::backends::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// RULE: no fused multiply-adds, so that every instruction set gives the same bits as PyTorch's
// order of operations.
template <class A, class D>
HWY_INLINE void sgd_one(const SgdStep<A>& s, D d, const A* param, const A* grad, const A* buffer,
                        A* param_out, A* buffer_out) {
  auto p = hn::LoadU(d, param), g = hn::LoadU(d, grad);
  if (s.maximize) g = hn::Neg(g);
  if (s.weight_decay != 0) g = hn::Add(g, hn::Mul(p, hn::Set(d, s.weight_decay)));
  if (s.buffered) {
    auto b = g;
    if (!s.first) {
      b = hn::Add(hn::Mul(hn::LoadU(d, buffer), hn::Set(d, s.momentum)),
                  hn::Mul(g, hn::Set(d, s.damped)));
    }
    hn::StoreU(b, d, buffer_out);
    g = s.nesterov ? hn::Add(g, hn::Mul(b, hn::Set(d, s.momentum))) : b;
  }
  hn::StoreU(hn::Sub(p, hn::Mul(g, hn::Set(d, s.lr))), d, param_out);
}

template <class A>
void sgd(const SgdStep<A>& s, std::int64_t n, const A* param, const A* grad, const A* buffer,
         A* param_out, A* buffer_out) {
  const hn::ScalableTag<A> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    sgd_one(s, d, param + i, grad + i, s.buffered && !s.first ? buffer + i : nullptr, param_out + i,
            s.buffered ? buffer_out + i : nullptr);
  }
  if (i == n) return;
  // The rest through whole vectors of copies: the same bits wherever an element stands.
  A p[64 / sizeof(A)] = {}, g[64 / sizeof(A)] = {}, b[64 / sizeof(A)] = {};
  std::copy(param + i, param + n, p);
  std::copy(grad + i, grad + n, g);
  if (s.buffered && !s.first) std::copy(buffer + i, buffer + n, b);
  sgd_one(s, d, p, g, b, p, b);
  std::copy(p, p + (n - i), param_out + i);
  if (s.buffered) std::copy(b, b + (n - i), buffer_out + i);
}

template <class A, class D>
HWY_INLINE void adam_one(const AdamStep<A>& s, D d, const AdamMemory<const A>& in, const A* grad,
                         const AdamMemory<A>& out, std::int64_t i) {
  auto p = hn::LoadU(d, in.param + i), g = hn::LoadU(d, grad + i);
  auto m = hn::LoadU(d, in.average + i), v = hn::LoadU(d, in.square + i);
  if (s.maximize) g = hn::Neg(g);
  if (s.weight_decay != 0) g = hn::Add(g, hn::Mul(p, hn::Set(d, s.weight_decay)));
  if (s.shrink != 1) p = hn::Mul(p, hn::Set(d, s.shrink));
  // lerp, from the nearer end
  const auto difference = hn::Sub(g, m);
  m = s.weight1 < A(0.5) ? hn::Add(m, hn::Mul(hn::Set(d, s.weight1), difference))
                         : hn::Sub(g, hn::Mul(difference, hn::Set(d, s.rest1)));
  v = hn::Add(hn::Mul(v, hn::Set(d, s.beta2)), hn::Mul(hn::Mul(hn::Set(d, s.weight2), g), g));
  hn::StoreU(m, d, out.average + i);
  hn::StoreU(v, d, out.square + i);
  if (s.amsgrad) {
    const auto old = hn::LoadU(d, in.largest + i);
    // NaN wins, as in torch.maximum.
    v = hn::IfThenElse(hn::Or(hn::Gt(v, old), hn::Ne(v, v)), v, old);
    hn::StoreU(v, d, out.largest + i);
  }
  const auto denominator = hn::Add(hn::Div(hn::Sqrt(v), hn::Set(d, s.root2)), hn::Set(d, s.eps));
  hn::StoreU(hn::Sub(p, hn::Div(hn::Mul(hn::Set(d, s.step_size), m), denominator)), d,
             out.param + i);
}

template <class A>
void adam(const AdamStep<A>& s, std::int64_t n, const AdamMemory<const A>& in, const A* grad,
          const AdamMemory<A>& out) {
  const hn::ScalableTag<A> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) adam_one(s, d, in, grad, out, i);
  if (i == n) return;
  constexpr std::size_t kWide = 64 / sizeof(A);
  A p[kWide] = {}, g[kWide] = {}, m[kWide] = {}, v[kWide] = {}, l[kWide] = {};
  std::copy(in.param + i, in.param + n, p);
  std::copy(grad + i, grad + n, g);
  std::copy(in.average + i, in.average + n, m);
  std::copy(in.square + i, in.square + n, v);
  if (s.amsgrad) std::copy(in.largest + i, in.largest + n, l);
  adam_one<A>(s, d, AdamMemory<const A>{p, m, v, l}, g, AdamMemory<A>{p, m, v, l}, 0);
  const std::int64_t rest = n - i;
  std::copy(p, p + rest, out.param + i);
  std::copy(m, m + rest, out.average + i);
  std::copy(v, v + rest, out.square + i);
  if (s.amsgrad) std::copy(l, l + rest, out.largest + i);
}

void sgd_f32(const SgdStep<float>& s, std::int64_t n, const float* param, const float* grad,
             const float* buffer, float* param_out, float* buffer_out) {
  sgd(s, n, param, grad, buffer, param_out, buffer_out);
}
void sgd_f64(const SgdStep<double>& s, std::int64_t n, const double* param, const double* grad,
             const double* buffer, double* param_out, double* buffer_out) {
  sgd(s, n, param, grad, buffer, param_out, buffer_out);
}
void adam_f32(const AdamStep<float>& s, std::int64_t n, const AdamMemory<const float>& in,
              const float* grad, const AdamMemory<float>& out) {
  adam(s, n, in, grad, out);
}
void adam_f64(const AdamStep<double>& s, std::int64_t n, const AdamMemory<const double>& in,
              const double* grad, const AdamMemory<double>& out) {
  adam(s, n, in, grad, out);
}

}  // namespace HWY_NAMESPACE
}  // namespace teletensor::backends::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace teletensor::backends::cpu {

HWY_EXPORT(sgd_f32);
HWY_EXPORT(sgd_f64);
HWY_EXPORT(adam_f32);
HWY_EXPORT(adam_f64);

template <>
void sgd_block(const SgdStep<float>& step, std::int64_t n, const float* param, const float* grad,
               const float* buffer, float* param_out, float* buffer_out) {
  HWY_DYNAMIC_DISPATCH(sgd_f32)(step, n, param, grad, buffer, param_out, buffer_out);
}
template <>
void sgd_block(const SgdStep<double>& step, std::int64_t n, const double* param, const double* grad,
               const double* buffer, double* param_out, double* buffer_out) {
  HWY_DYNAMIC_DISPATCH(sgd_f64)(step, n, param, grad, buffer, param_out, buffer_out);
}
template <>
void adam_block(const AdamStep<float>& step, std::int64_t n, const AdamMemory<const float>& in,
                const float* grad, const AdamMemory<float>& out) {
  HWY_DYNAMIC_DISPATCH(adam_f32)(step, n, in, grad, out);
}
template <>
void adam_block(const AdamStep<double>& step, std::int64_t n, const AdamMemory<const double>& in,
                const double* grad, const AdamMemory<double>& out) {
  HWY_DYNAMIC_DISPATCH(adam_f64)(step, n, in, grad, out);
}

}  // namespace teletensor::backends::cpu
#endif
