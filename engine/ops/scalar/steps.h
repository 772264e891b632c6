// Optimizer steps: the constants that are equal for all elements, computed from an op's
// hyperparameters; the kernels of all devices use them.
#pragma once

#include <cmath>
#include <cstdint>

namespace teletensor::ops::scalar {

// The states of each rule, which follow param (0) and grad (1); those in brackets are optional.
enum class Rule : std::uint8_t {
  kSgd,       // [2 buffer]
  kAdam,      // 2 average, 3 square, [4 largest square]
  kAdamax,    // 2 average, 3 largest
  kNadam,     // 2 average, 3 square
  kRadam,     // 2 average, 3 square
  kAdagrad,   // 2 sum of squares
  kAdadelta,  // 2 square, 3 square of the changes
  kRmsprop,   // 2 square, [3 buffer], [4 average]
  kRprop,     // 2 previous gradient, 3 step size
  kAsgd,      // 2 average of params
  kSkip,      // nothing changes
  kUnscale,   // param * lr, without grad; reports params that are infinite or NaN
};
inline constexpr int kStepParts = 5;
inline constexpr int kMaxHypers = 9;  // without `skip`

// The constants of a step; each rule reads those that its formula names. All rules begin with g =
// -g (maximize), g += weight_decay * p, p *= shrink.
template <class A>
struct Step {
  Rule rule = Rule::kSgd;
  bool maximize = false;
  bool first = false, nesterov = false;  // for SGD
  bool rectified = false;                // RAdam: the estimate of the variance is reliable enough
  A weight_decay = 0, shrink = 1;
  A lr = 0, grad_lr = 0;       // factor of the step, and of the gradient's own part (NAdam)
  A momentum = 0, damped = 1;  // factor of the buffer, and of the gradient that is added to it
  A weight1 = 0, rest1 = 1;    // averages: 1 - beta1 and beta1
  A beta2 = 0, weight2 = 0;    // squares: beta2 and 1 - beta2
  A divide1 = 1, divide2 = 1;  // bias corrections (for Adam's second one, the square root)
  A rectify = 1, eps = 0;      // rectification factor of RAdam
  A low = 0, high = 0;         // Rprop: limits of the step size, and its factors
  A shorter = 0, longer = 0;
  A mu = 1;  // ASGD: weight of the new param in the average
};

// Converts each constant, with one rounding from the double in which it was computed.
template <class B>
Step<B> converted(const Step<double>& s) {
  const auto r = [](double value) { return static_cast<B>(value); };
  const B weight = r(s.weight1);
  return {s.rule,        s.maximize, s.first,      s.nesterov,    s.rectified,  r(s.weight_decay),
          r(s.shrink),   r(s.lr),    r(s.grad_lr), r(s.momentum), r(s.damped),  weight,
          B(1) - weight, r(s.beta2), r(s.weight2), r(s.divide1),  r(s.divide2), r(s.rectify),
          r(s.eps),      r(s.low),   r(s.high),    r(s.shorter),  r(s.longer),  r(s.mu)};
}

// Optimizers similar to Adam: their hyperparameters begin with lr, beta1, beta2, eps, weight_decay.
inline void adam_like(Step<double>& s, const double* h, bool decoupled) {
  s.lr = h[0];
  s.weight1 = 1 - h[1];
  s.beta2 = h[2];
  s.weight2 = 1 - s.beta2;
  s.eps = h[3];
  (decoupled ? s.shrink : s.weight_decay) = decoupled ? 1 - s.lr * h[4] : h[4];
}

// Computes the constants from the op's operands after its lists and from its boolean attributes.
inline Step<double> make_step(Rule rule, const double* h, const bool* flags) {
  Step<double> s;
  s.rule = rule;
  s.maximize = flags[0];
  switch (rule) {
    case Rule::kSgd:
      s.lr = h[0];
      s.momentum = h[1];
      s.damped = 1 - h[2];
      s.weight_decay = h[3];
      s.nesterov = flags[0];
      s.maximize = flags[1];
      s.first = flags[2];
      break;
    case Rule::kAdam:
      adam_like(s, h, flags[1]);
      s.maximize = flags[2];
      s.lr /= 1 - std::pow(h[1], h[5]);
      s.divide2 = std::sqrt(1 - std::pow(s.beta2, h[5]));
      break;
    case Rule::kAdamax:
      adam_like(s, h, false);
      s.lr /= 1 - std::pow(h[1], h[5]);
      break;
    case Rule::kNadam:
      adam_like(s, h, flags[0]);
      s.maximize = flags[1];
      s.divide2 = 1 - std::pow(s.beta2, h[8]);
      s.grad_lr = s.lr * (1 - h[5]) / (1 - h[7]);
      s.lr = s.lr * h[6] / (1 - h[7] * h[6]);
      break;
    case Rule::kRadam: {
      adam_like(s, h, flags[0]);
      s.maximize = flags[1];
      const double t = h[5], power2 = std::pow(s.beta2, t);
      s.divide1 = 1 - std::pow(h[1], t);
      s.divide2 = std::sqrt(1 - power2);
      // The lengths of the simple moving average: in the limit, and the approximation for step t.
      const double limit = 2 / (1 - s.beta2) - 1;
      const double length = limit - 2 * t * power2 / (1 - power2);
      s.rectified = length > 5;
      if (s.rectified) {
        s.rectify =
            std::sqrt((length - 4) * (length - 2) * limit / ((limit - 4) * (limit - 2) * length));
      }
      break;
    }
    case Rule::kAdagrad:
      s.lr = h[0] / (1 + (h[4] - 1) * h[1]);
      s.eps = h[2];
      s.weight_decay = h[3];
      break;
    case Rule::kAdadelta:
      s.lr = h[0];
      s.beta2 = h[1];
      s.weight2 = 1 - s.beta2;
      s.eps = h[2];
      s.weight_decay = h[3];
      break;
    case Rule::kRmsprop:
      s.lr = h[0];
      s.beta2 = h[1];
      s.weight1 = s.weight2 = 1 - s.beta2;
      s.eps = h[2];
      s.weight_decay = h[3];
      s.momentum = h[4];
      break;
    case Rule::kRprop:
      s.shorter = h[0];
      s.longer = h[1];
      s.low = h[2];
      s.high = h[3];
      break;
    case Rule::kAsgd:
      s.lr = h[0];
      s.shrink = 1 - h[1] * s.lr;
      s.mu = h[2];
      s.weight_decay = h[3];
      break;
    case Rule::kSkip:
      break;
    case Rule::kUnscale:
      s.maximize = false;
      s.lr = h[0];
      break;
  }
  return s;
}

}  // namespace teletensor::ops::scalar
