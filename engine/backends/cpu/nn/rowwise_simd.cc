#include "engine/backends/cpu/nn/rowwise_simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/backends/cpu/nn/rowwise_simd.cc"
#include "engine/backends/cpu/access/targets.h"
#include "hwy/foreach_target.h"  // compiles the part below once per instruction set
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace teletensor::backends::cpu {
namespace HWY_NAMESPACE {

// Plain loops, which the compiler vectorises for each target. They contain no sums, so the bits
// cannot differ.
template <class A>
void scale(const A* x, std::int64_t n, A a, A* y) {
  TT_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] * a;
}
template <class A>
void shift(const A* x, std::int64_t n, A a, A b, A* y) {
  TT_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) y[i] = (x[i] - a) - b;
}
template <class A>
void product(const A* x, const A* z, std::int64_t n, A* y) {
  TT_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] * z[i];
}
template <class A>
void difference(const A* x, const A* z, std::int64_t n, A* y) {
  TT_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] - z[i];
}
template <class A>
void softmax_gradient(const A* g, const A* p, std::int64_t n, A s, A* y) {
  TT_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) y[i] = p[i] * (g[i] - s);
}
template <class A>
void minus_scaled(const A* g, const A* e, std::int64_t n, A s, A* y) {
  TT_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) y[i] = g[i] - e[i] * s;
}
template <class A>
void normalize(const A* x, std::int64_t n, A mean, A scale, const A* weight, const A* bias, A* y) {
  if (weight && bias) {
    TT_INDEPENDENT
    for (std::int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * scale * weight[i] + bias[i];
  } else if (weight) {
    TT_INDEPENDENT
    for (std::int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * scale * weight[i];
  } else if (bias) {
    TT_INDEPENDENT
    for (std::int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * scale + bias[i];
  } else {
    TT_INDEPENDENT
    for (std::int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * scale;
  }
}
template <class A>
void normalize_gradient(const A* g, const A* x, std::int64_t n, A mean, A scale, A a, A b, A weight,
                        A* y) {
  const A factor = weight * scale, slope = scale * b;
  TT_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) y[i] = factor * ((g[i] - a) - (x[i] - mean) * slope);
}
template <class A>
void affine(const A* x, std::int64_t n, A mean, A scale, A b, A* y) {
  TT_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * scale - b;
}
template <class A>
void centred_product(const A* g, const A* x, std::int64_t n, A mean, A* y) {
  TT_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) y[i] = g[i] * (x[i] - mean);
}
template <class A>
void normalize_sums(const A* g, const A* x, const A* weight, std::int64_t n, A mean, A scale,
                    A* weight_sum, A* bias_sum, A* h, A* hx) {
  if (weight) {
    TT_INDEPENDENT
    for (std::int64_t i = 0; i < n; ++i) {
      const A xhat = (x[i] - mean) * scale, one = g[i], weighted = one * weight[i];
      weight_sum[i] += one * xhat;
      bias_sum[i] += one;
      h[i] = weighted;
      hx[i] = weighted * xhat;
    }
  } else {
    TT_INDEPENDENT
    for (std::int64_t i = 0; i < n; ++i) {
      const A xhat = (x[i] - mean) * scale, one = g[i];
      weight_sum[i] += one * xhat;
      bias_sum[i] += one;
      h[i] = one;
      hx[i] = one * xhat;
    }
  }
}
template <class A>
void add(const A* x, std::int64_t n, A* y) {
  TT_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) y[i] += x[i];
}

template <class A>
const RowSteps<A>& table() {
  static constexpr RowSteps<A> kSteps{&scale<A>,
                                      &shift<A>,
                                      &product<A>,
                                      &difference<A>,
                                      &softmax_gradient<A>,
                                      &minus_scaled<A>,
                                      &normalize<A>,
                                      &normalize_gradient<A>,
                                      &affine<A>,
                                      &centred_product<A>,
                                      &normalize_sums<A>,
                                      &add<A>};
  return kSteps;
}
const RowSteps<float>& steps_f32() { return table<float>(); }
const RowSteps<double>& steps_f64() { return table<double>(); }

}  // namespace HWY_NAMESPACE
}  // namespace teletensor::backends::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace teletensor::backends::cpu {

HWY_EXPORT(steps_f32);
HWY_EXPORT(steps_f64);

template <>
const RowSteps<float>& row_steps() {
  return HWY_DYNAMIC_DISPATCH(steps_f32)();
}
template <>
const RowSteps<double>& row_steps() {
  return HWY_DYNAMIC_DISPATCH(steps_f64)();
}

}  // namespace teletensor::backends::cpu
#endif  // HWY_ONCE
