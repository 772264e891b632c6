// Elementwise steps of softmax, layer_norm and losses over one row, compiled per instruction set. A
// is float or double. A result may be the same memory as an operand.
#pragma once

#include <cstdint>

namespace teletensor::backends::cpu {

template <class A>
struct RowSteps {
  // y = x * a
  void (*scale)(const A* x, std::int64_t n, A a, A* y);
  // y = (x - a) - b
  void (*shift)(const A* x, std::int64_t n, A a, A b, A* y);
  // y = x * z
  void (*product)(const A* x, const A* z, std::int64_t n, A* y);
  // y = x - z
  void (*difference)(const A* x, const A* z, std::int64_t n, A* y);
  // y = p * (g - s)
  void (*softmax_gradient)(const A* g, const A* p, std::int64_t n, A s, A* y);
  // y = g - e * s
  void (*minus_scaled)(const A* g, const A* e, std::int64_t n, A s, A* y);
  // y = (x - mean) * scale * weight + bias; weight and bias may be null.
  void (*normalize)(const A* x, std::int64_t n, A mean, A scale, const A* weight, const A* bias,
                    A* y);
  // y = weight * scale * ((g - a) - (x - mean) * scale * b)
  void (*normalize_gradient)(const A* g, const A* x, std::int64_t n, A mean, A scale, A a, A b,
                             A weight, A* y);
  // y = (x - mean) * scale - b
  void (*affine)(const A* x, std::int64_t n, A mean, A scale, A b, A* y);
  // y = g * (x - mean)
  void (*centred_product)(const A* g, const A* x, std::int64_t n, A mean, A* y);
  // weight_sum += g * xhat, bias_sum += g, h = g * weight, hx = h * xhat, where xhat = (x - mean) *
  // scale. A null weight means 1. The four rows that are written must not overlap anything.
  void (*normalize_sums)(const A* g, const A* x, const A* weight, std::int64_t n, A mean, A scale,
                         A* weight_sum, A* bias_sum, A* h, A* hx);
  // y = y + x
  void (*add)(const A* x, std::int64_t n, A* y);
};
template <class A>
const RowSteps<A>& row_steps();

}  // namespace teletensor::backends::cpu
