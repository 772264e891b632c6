// Optimizer steps for many tensors at once, with the operations of cpu/optimizer_simd.cc in the
// same order.
namespace tt {

using s::Rule;

inline void make_hyper(const calls::HyperCall& p, std::int64_t) {
  double h[s::kMaxHypers];
#pragma unroll
  for (int i = 0; i < s::kMaxHypers; ++i) h[i] = p.mask >> i & 1 ? p.tensors[i] : p.numbers[i];
  *p.to = s::make_step(p.rule, h, p.flags);
  // The last hyperparameter says whether to skip the step.
  if ((p.mask >> s::kMaxHypers & 1) != 0 && p.tensors[s::kMaxHypers] != 0) {
    p.to->rule = Rule::kSkip;
  }
}

template <class A>
A lerp_to(const s::Step<A>& t, A average, A g) {
  const A difference = g - average;
  return t.weight1 < A(0.5) ? average + t.weight1 * difference : g - t.rest1 * difference;
}
template <class A>
A squared_to(const s::Step<A>& t, A square, A g) {
  return t.beta2 * square + t.weight2 * g * g;
}
template <class A>
A larger_of(A a, A b) {
  return a > b || a != a ? a : b;
}

// Updates one element: x[i] are its parts, which are changed in place; has[i] is false if a part is
// absent.
template <Rule kRule, class A>
void step_element(const s::Step<A>& t, A (&x)[5], const bool (&has)[5]) {
  A p = x[0], g = x[1];
  if (t.maximize) g = -g;
  if (t.weight_decay != 0) g = g + t.weight_decay * p;
  if (t.shrink != 1) p = t.shrink * p;
  if constexpr (kRule == Rule::kSgd) {
    if (has[2]) {
      A b = g;
      if (!t.first) b = t.momentum * x[2] + t.damped * g;
      x[2] = b;
      g = t.nesterov ? g + t.momentum * b : b;
    }
    x[0] = p - t.lr * g;
  } else if constexpr (kRule == Rule::kAdam) {
    x[2] = lerp_to(t, x[2], g);
    A v = x[3] = squared_to(t, x[3], g);
    if (has[4]) v = x[4] = larger_of(v, x[4]);
    x[0] = p - t.lr * x[2] / (s::sqrt(v) / t.divide2 + t.eps);
  } else if constexpr (kRule == Rule::kAdamax) {
    x[2] = lerp_to(t, x[2], g);
    x[3] = larger_of(s::abs(g) + t.eps, t.beta2 * x[3]);
    x[0] = p - t.lr * x[2] / x[3];
  } else if constexpr (kRule == Rule::kNadam) {
    x[2] = lerp_to(t, x[2], g);
    x[3] = squared_to(t, x[3], g);
    const A root = s::sqrt(x[3] / t.divide2) + t.eps;
    p = p - t.grad_lr * g / root;
    x[0] = p - t.lr * x[2] / root;
  } else if constexpr (kRule == Rule::kRadam) {
    x[2] = lerp_to(t, x[2], g);
    x[3] = squared_to(t, x[3], g);
    A change = t.lr * (x[2] / t.divide1);
    if (t.rectified) {
      change = t.rectify * (change * (t.divide2 / (s::sqrt(x[3]) + t.eps)));
    }
    x[0] = p - change;
  } else if constexpr (kRule == Rule::kAdagrad) {
    x[2] = x[2] + g * g;
    x[0] = p - t.lr * g / (s::sqrt(x[2]) + t.eps);
  } else if constexpr (kRule == Rule::kAdadelta) {
    x[2] = squared_to(t, x[2], g);
    const A root = s::sqrt(x[2] + t.eps);
    const A change = s::sqrt(x[3] + t.eps) / root * g;
    x[3] = squared_to(t, x[3], change);
    x[0] = p - t.lr * change;
  } else if constexpr (kRule == Rule::kRmsprop) {
    const A v = x[2] = squared_to(t, x[2], g);
    A spread = v;
    if (has[4]) {
      x[4] = lerp_to(t, x[4], g);
      spread = v - x[4] * x[4];
    }
    const A root = s::sqrt(spread) + t.eps;
    if (has[3]) {
      x[3] = t.momentum * x[3] + g / root;
      x[0] = p - t.lr * x[3];
    } else {
      x[0] = p - t.lr * g / root;
    }
  } else if constexpr (kRule == Rule::kRprop) {
    const A turn = g * x[2];
    const bool back = turn < A(0);
    A size = x[3] * (back ? t.shorter : turn > A(0) ? t.longer : A(1));
    size = size < t.low ? t.low : size;  // NaN stays NaN
    size = size > t.high ? t.high : size;
    x[3] = size;
    if (back) g = A(0);
    x[2] = g;
    x[0] = p - (g > A(0) ? size : A(0)) + (g < A(0) ? size : A(0));
  } else if constexpr (kRule == Rule::kAsgd) {
    x[0] = p - t.lr * g;
    x[2] = t.mu == A(1) ? x[0] : x[2] + t.mu * (x[0] - x[2]);
  }
}

// One block: 1024 elements of one tensor.
template <class T, class A, int kRuleNumber>
void optimizer_step(const calls::StepCall& p) {
  constexpr Rule kRule = static_cast<Rule>(kRuleNumber);
  int which = 0;
  while (which + 1 < p.count && p.tensors[which + 1].first_block <= blockIdx.x) ++which;
  const calls::StepTensor& tensor = p.tensors[which];
  const s::Step<double> made = p.made != nullptr ? *p.made : p.step;
  const bool skip = made.rule == Rule::kSkip;
  const s::Step<A> step = s::converted<A>(made);
  bool has[5];
#pragma unroll
  for (int i = 0; i < 5; ++i) has[i] = tensor.out[i] != nullptr;
  const std::int64_t first =
      (static_cast<std::int64_t>(blockIdx.x) - tensor.first_block) * 1024 + threadIdx.x;
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const std::int64_t at = first + e * 256;
    if (at >= tensor.n) break;
    A x[5] = {};
#pragma unroll
    for (int i = 0; i < 5; ++i) {
      if (tensor.in[i] != nullptr) x[i] = s::to_compute<A>(static_cast<const T*>(tensor.in[i])[at]);
    }
    if constexpr (kRule == Rule::kUnscale) {
      if (std::isinf(x[0]) || std::isnan(x[0])) *p.found = 1;
      x[0] = step.lr * x[0];
    } else if (!skip) {
      step_element<kRule>(step, x, has);
    }
#pragma unroll
    for (int i = 0; i < 5; ++i) {
      if (has[i]) static_cast<T*>(tensor.out[i])[at] = s::from_compute<T>(x[i]);
    }
  }
}

template <class T>
void found_to(const calls::FoundCall& p, std::int64_t) {
  *static_cast<T*>(p.to) = s::from_compute<T>(*p.found != 0 ? 1.0f : 0.0f);
}

}  // namespace tt
