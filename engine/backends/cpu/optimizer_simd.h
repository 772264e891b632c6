// The element-wise inner loop of optimizer steps, one pass over all of a parameter's memory: one
// skeleton, and a rule for each optimizer.
#pragma once

#include <atomic>
#include <cstdint>

namespace teletensor::backends::cpu {

// Which memories a rule has beside param (0) and grad (1); in brackets those it may lack.
enum class Rule : std::uint8_t {
  kSgd,       // [2 buffer]
  kAdam,      // 2 average, 3 square, [4 largest square]
  kAdamax,    // 2 average, 3 largest
  kNadam,     // 2 average, 3 square
  kRadam,     // 2 average, 3 square
  kAdagrad,   // 2 sum of squares
  kAdadelta,  // 2 square, 3 square of the changes
  kRmsprop,   // 2 square, [3 buffer], [4 average]
  kRprop,     // 2 gradient before, 3 step size
  kAsgd,      // 2 average of params
  kSkip,      // every part stays as it is
  kUnscale,   // param * lr, no grad; sets `found` where param is infinite or NaN
};
inline constexpr int kStepParts = 5;

// What is equal for all elements. A rule reads what its formula names; all of them begin with
// g = -g (maximize), g += weight_decay * p, p *= shrink.
template <class A>
struct Step {
  Rule rule = Rule::kSgd;
  bool maximize = false;
  bool first = false, nesterov = false;  // SGD
  bool rectified = false;                // RAdam: the variance is known well enough
  A weight_decay = 0, shrink = 1;
  A lr = 0, grad_lr = 0;       // factor of the step; of the gradient's own part (NAdam)
  A momentum = 0, damped = 1;  // of the buffer, of what is added to it
  A weight1 = 0, rest1 = 1;    // averages: 1 - beta1 and beta1
  A beta2 = 0, weight2 = 0;    // squares: beta2 and 1 - beta2
  A divide1 = 1, divide2 = 1;  // bias corrections (Adam's second one: its root)
  A rectify = 1, eps = 0;      // RAdam's factor
  A low = 0, high = 0;         // Rprop: limits of the step size, and its factors
  A shorter = 0, longer = 0;
  A mu = 1;  // ASGD: weight of the new param in the average
  std::atomic<bool>* found = nullptr;

  // Rounded once from the doubles that hyperparameters are read as.
  template <class B>
  Step<B> as() const {
    const auto r = [](A value) { return static_cast<B>(value); };
    const B weight = r(weight1);
    return {rule,          maximize, first,      nesterov,    rectified,  r(weight_decay),
            r(shrink),     r(lr),    r(grad_lr), r(momentum), r(damped),  weight,
            B(1) - weight, r(beta2), r(weight2), r(divide1),  r(divide2), r(rectify),
            r(eps),        r(low),   r(high),    r(shorter),  r(longer),  r(mu)};
  }
};

// n elements of each part; in[i] is null where a part is absent, out[i] too where it is not
// written. An output may be the matching input. A: float or double.
template <class A>
void step_block(const Step<A>& step, std::int64_t n, const A* const* in, A* const* out);

}  // namespace teletensor::backends::cpu
