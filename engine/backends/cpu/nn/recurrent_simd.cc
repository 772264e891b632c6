#include "engine/backends/cpu/nn/recurrent_simd.h"

#include "engine/ops/scalar/math.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/backends/cpu/nn/recurrent_simd.cc"
#include "engine/backends/cpu/access/targets.h"
#include "hwy/foreach_target.h"  // compiles the part below once per instruction set
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace teletensor::backends::cpu {
namespace HWY_NAMESPACE {

// Plain loops over whole blocks. The compiler vectorises them for each target, with libmvec's
// functions where they exist (ops/scalar/math.h).
template <class A>
HWY_INLINE A sigmoid(A x) {
  return A(1) / (A(1) + ops::scalar::exp(-x));
}

template <class A>
[[gnu::noinline, gnu::flatten]] void lstm(A (*parts)[kGateBlock]) {
  A *i = parts[0], *f = parts[1], *g = parts[2], *o = parts[3], *c = parts[4];
  TT_INDEPENDENT
  for (std::int64_t k = 0; k < kGateBlock; ++k) {
    const A next = sigmoid(f[k]) * c[k] + sigmoid(i[k]) * ops::scalar::tanh(g[k]);
    i[k] = sigmoid(o[k]) * ops::scalar::tanh(next);
    c[k] = next;
  }
}

template <class A>
[[gnu::noinline, gnu::flatten]] void lstm_backward(A (*parts)[kGateBlock]) {
  A *pi = parts[0], *pf = parts[1], *pg = parts[2], *po = parts[3], *pc = parts[4];
  const A *gh = parts[5], *gc = parts[6];
  TT_INDEPENDENT
  for (std::int64_t k = 0; k < kGateBlock; ++k) {
    const A i = sigmoid(pi[k]), f = sigmoid(pf[k]), o = sigmoid(po[k]), c = pc[k];
    const A g = ops::scalar::tanh(pg[k]), t = ops::scalar::tanh(f * c + i * g);
    const A d = gc[k] + gh[k] * o * (A(1) - t * t);
    pi[k] = d * g * (i * (A(1) - i));
    pf[k] = d * c * (f * (A(1) - f));
    pg[k] = d * i * (A(1) - g * g);
    po[k] = gh[k] * t * (o * (A(1) - o));
    pc[k] = d * f;
  }
}

template <class A>
[[gnu::noinline, gnu::flatten]] void gru(A (*parts)[kGateBlock]) {
  const A *r = parts[0], *z = parts[1], *x = parts[2], *m = parts[3];
  A* h = parts[4];
  TT_INDEPENDENT
  for (std::int64_t k = 0; k < kGateBlock; ++k) {
    const A n = ops::scalar::tanh(x[k] + sigmoid(r[k]) * m[k]);
    h[k] = (h[k] - n) * sigmoid(z[k]) + n;
  }
}

template <class A>
[[gnu::noinline, gnu::flatten]] void gru_backward(A (*parts)[kGateBlock]) {
  A *pr = parts[0], *pz = parts[1], *px = parts[2], *pm = parts[3], *ph = parts[4];
  const A* grad = parts[5];
  TT_INDEPENDENT
  for (std::int64_t k = 0; k < kGateBlock; ++k) {
    const A r = sigmoid(pr[k]), z = sigmoid(pz[k]), m = pm[k];
    const A n = ops::scalar::tanh(px[k] + r * m);
    const A u = grad[k] * (A(1) - z) * (A(1) - n * n);
    pr[k] = u * m * (r * (A(1) - r));
    pz[k] = grad[k] * (ph[k] - n) * (z * (A(1) - z));
    px[k] = u;
    pm[k] = u * r;
    ph[k] = grad[k] * z;
  }
}

template <class A>
const GateLoops<A>& table() {
  static constexpr GateLoops<A> kLoops{&lstm<A>, &lstm_backward<A>, &gru<A>, &gru_backward<A>};
  return kLoops;
}
const GateLoops<float>& gates_f32() { return table<float>(); }
const GateLoops<double>& gates_f64() { return table<double>(); }

}  // namespace HWY_NAMESPACE
}  // namespace teletensor::backends::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace teletensor::backends::cpu {

HWY_EXPORT(gates_f32);
HWY_EXPORT(gates_f64);

template <>
const GateLoops<float>& gate_loops() {
  return HWY_DYNAMIC_DISPATCH(gates_f32)();
}
template <>
const GateLoops<double>& gate_loops() {
  return HWY_DYNAMIC_DISPATCH(gates_f64)();
}

}  // namespace teletensor::backends::cpu
#endif  // HWY_ONCE
