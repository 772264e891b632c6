// Losses of one element of an input and a target; the kernels of all devices use them.
#pragma once

#include <cmath>
#include <cstdint>

namespace teletensor::ops::scalar {

enum class Loss : std::uint8_t { kMse, kL1, kSmoothL1, kHuber, kBce, kBceLogits, kKlDiv };

// The arguments of the losses' ops.
struct LossSettings {
  double width = 1;         // beta of smooth_l1, delta of huber
  bool log_target = false;  // only kl_div
};

// Like std::max: a NaN in `a` stays.
template <class A>
A larger(A a, A b) {
  return a < b ? b : a;
}

// The loss for input x and target t; `positive` is the weight of a positive target (kBceLogits).
template <Loss kLoss, class A>
A loss(A x, A t, A positive, const LossSettings& settings) {
  if constexpr (kLoss == Loss::kMse) {
    const A d = x - t;
    return d * d;
  } else if constexpr (kLoss == Loss::kL1) {
    return std::abs(x - t);
  } else if constexpr (kLoss == Loss::kSmoothL1) {
    const A z = std::abs(x - t), beta = static_cast<A>(settings.width);
    return z < beta ? A(0.5) * z * z / beta : z - A(0.5) * beta;
  } else if constexpr (kLoss == Loss::kHuber) {
    const A z = std::abs(x - t), delta = static_cast<A>(settings.width);
    return z <= delta ? A(0.5) * z * z : delta * (z - A(0.5) * delta);
  } else if constexpr (kLoss == Loss::kBce) {
    const A low = larger(std::log(x), A(-100)), high = larger(std::log1p(-x), A(-100));
    return (t - A(1)) * high - t * low;
  } else if constexpr (kLoss == Loss::kBceLogits) {
    const A softplus = std::log1p(std::exp(-std::abs(x))) + larger(-x, A(0));  // -log(sigmoid(x))
    return (A(1) - t) * x + (A(1) + (positive - A(1)) * t) * softplus;
  } else {
    if (settings.log_target) return std::exp(t) * (t - x);
    return t == A(0) ? -t * x : t * (std::log(t) - x);  // 0 log(0) = 0
  }
}

}  // namespace teletensor::ops::scalar
