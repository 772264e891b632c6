// The element-wise inner loops of optimizer steps, one pass over all of a parameter's memory. Each
// output may be the matching input; n elements each. A: float or double.
#pragma once

#include <cstdint>

namespace teletensor::backends::cpu {

template <class A>
struct SgdStep {
  A lr, momentum, damped, weight_decay;  // damped: 1 - dampening
  bool buffered, first, nesterov, maximize;
};
// With buffered, buffer_out = the new buffer; `buffer` is not read on the first step.
template <class A>
void sgd_block(const SgdStep<A>& step, std::int64_t n, const A* param, const A* grad,
               const A* buffer, A* param_out, A* buffer_out);

template <class A>
struct AdamStep {
  A shrink;                 // factor of the parameter: 1 - lr * weight_decay when decoupled, else 1
  A weight_decay;           // added to the gradient; 0 when decoupled
  A weight1, rest1;         // 1 - beta1, beta1
  A beta2, weight2;         // beta2, 1 - beta2
  A step_size, root2, eps;  // lr / (1 - beta1^t), sqrt(1 - beta2^t)
  bool amsgrad, maximize;
};
template <class A>
struct AdamMemory {
  A *param, *average, *square, *largest;  // largest: with amsgrad
};
template <class A>
void adam_block(const AdamStep<A>& step, std::int64_t n, const AdamMemory<const A>& in,
                const A* grad, const AdamMemory<A>& out);

}  // namespace teletensor::backends::cpu
