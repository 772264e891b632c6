#include "engine/backends/cpu/nn/optimizer_simd.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/backends/cpu/nn/optimizer_simd.cc"
#include "engine/backends/cpu/access/targets.h"
#include "hwy/foreach_target.h"  // compiles the part below once per instruction set
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace teletensor::backends::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// RULE: no fused multiply-adds, so that every instruction set gives the bits of PyTorch's order of
// operations.

// The elements of all parts at one position.
template <class A, class D>
struct At {
  using V = hn::Vec<D>;
  D d;
  const A* const* in;
  A* const* out;
  std::atomic<bool>* found;
  std::int64_t i;
  HWY_INLINE V load(int part) const { return hn::LoadU(d, in[part] + i); }
  HWY_INLINE void store(V value, int part) const { hn::StoreU(value, d, out[part] + i); }
  HWY_INLINE V times(A factor, V value) const { return hn::Mul(hn::Set(d, factor), value); }
  HWY_INLINE V plus(V value, A term) const { return hn::Add(value, hn::Set(d, term)); }
  HWY_INLINE V over(V value, A divisor) const { return hn::Div(value, hn::Set(d, divisor)); }
};

// average + weight * (g - average), computed from the nearer end.
template <class A, class D>
HWY_INLINE hn::Vec<D> lerp(const At<A, D>& at, const Step<A>& s, hn::Vec<D> average, hn::Vec<D> g) {
  const auto difference = hn::Sub(g, average);
  return s.weight1 < A(0.5) ? hn::Add(average, at.times(s.weight1, difference))
                            : hn::Sub(g, at.times(s.rest1, difference));
}
// beta2 * square + (1 - beta2) * g * g.
template <class A, class D>
HWY_INLINE hn::Vec<D> squared(const At<A, D>& at, const Step<A>& s, hn::Vec<D> square,
                              hn::Vec<D> g) {
  return hn::Add(at.times(s.beta2, square), hn::Mul(at.times(s.weight2, g), g));
}
// NaN wins, as in torch.maximum.
template <class V>
HWY_INLINE V larger(V a, V b) {
  return hn::IfThenElse(hn::Or(hn::Gt(a, b), hn::IsNaN(a)), a, b);
}

// Returns the new param; states are stored here.
template <Rule kRule, class A, class D>
HWY_INLINE hn::Vec<D> rule(const At<A, D>& at, const Step<A>& s, hn::Vec<D> p, hn::Vec<D> g) {
  if constexpr (kRule == Rule::kSgd) {
    if (at.out[2]) {
      auto b = g;
      if (!s.first) b = hn::Add(at.times(s.momentum, at.load(2)), at.times(s.damped, g));
      at.store(b, 2);
      g = s.nesterov ? hn::Add(g, at.times(s.momentum, b)) : b;
    }
    return hn::Sub(p, at.times(s.lr, g));
  } else if constexpr (kRule == Rule::kAdam) {
    const auto m = lerp(at, s, at.load(2), g);
    auto v = squared(at, s, at.load(3), g);
    at.store(m, 2);
    at.store(v, 3);
    if (at.out[4]) {
      v = larger(v, at.load(4));
      at.store(v, 4);
    }
    const auto root = at.plus(at.over(hn::Sqrt(v), s.divide2), s.eps);
    return hn::Sub(p, hn::Div(at.times(s.lr, m), root));
  } else if constexpr (kRule == Rule::kAdamax) {
    const auto m = lerp(at, s, at.load(2), g);
    const auto u = larger(at.plus(hn::Abs(g), s.eps), at.times(s.beta2, at.load(3)));
    at.store(m, 2);
    at.store(u, 3);
    return hn::Sub(p, hn::Div(at.times(s.lr, m), u));
  } else if constexpr (kRule == Rule::kNadam) {
    const auto m = lerp(at, s, at.load(2), g);
    const auto v = squared(at, s, at.load(3), g);
    at.store(m, 2);
    at.store(v, 3);
    const auto root = at.plus(hn::Sqrt(at.over(v, s.divide2)), s.eps);
    p = hn::Sub(p, hn::Div(at.times(s.grad_lr, g), root));
    return hn::Sub(p, hn::Div(at.times(s.lr, m), root));
  } else if constexpr (kRule == Rule::kRadam) {
    const auto m = lerp(at, s, at.load(2), g);
    const auto v = squared(at, s, at.load(3), g);
    at.store(m, 2);
    at.store(v, 3);
    auto change = at.times(s.lr, at.over(m, s.divide1));
    if (s.rectified) {
      const auto root = at.plus(hn::Sqrt(v), s.eps);
      change = at.times(s.rectify, hn::Mul(change, hn::Div(hn::Set(at.d, s.divide2), root)));
    }
    return hn::Sub(p, change);
  } else if constexpr (kRule == Rule::kAdagrad) {
    const auto sum = hn::Add(at.load(2), hn::Mul(g, g));
    at.store(sum, 2);
    return hn::Sub(p, hn::Div(at.times(s.lr, g), at.plus(hn::Sqrt(sum), s.eps)));
  } else if constexpr (kRule == Rule::kAdadelta) {
    const auto v = squared(at, s, at.load(2), g);
    at.store(v, 2);
    const auto changes = at.load(3);
    const auto root = hn::Sqrt(at.plus(v, s.eps));
    const auto change = hn::Mul(hn::Div(hn::Sqrt(at.plus(changes, s.eps)), root), g);
    at.store(squared(at, s, changes, change), 3);
    return hn::Sub(p, at.times(s.lr, change));
  } else if constexpr (kRule == Rule::kRmsprop) {
    const auto v = squared(at, s, at.load(2), g);
    at.store(v, 2);
    auto spread = v;
    if (at.out[4]) {
      const auto average = lerp(at, s, at.load(4), g);
      at.store(average, 4);
      spread = hn::Sub(v, hn::Mul(average, average));
    }
    const auto root = at.plus(hn::Sqrt(spread), s.eps);
    if (!at.out[3]) return hn::Sub(p, hn::Div(at.times(s.lr, g), root));
    const auto b = hn::Add(at.times(s.momentum, at.load(3)), hn::Div(g, root));
    at.store(b, 3);
    return hn::Sub(p, at.times(s.lr, b));
  } else if constexpr (kRule == Rule::kRprop) {
    const auto zero = hn::Zero(at.d), one = hn::Set(at.d, A(1));
    const auto turn = hn::Mul(g, at.load(2));
    const auto back = hn::Lt(turn, zero);
    auto factor = hn::IfThenElse(hn::Gt(turn, zero), hn::Set(at.d, s.longer), one);
    factor = hn::IfThenElse(back, hn::Set(at.d, s.shorter), factor);
    auto size = hn::Mul(at.load(3), factor);
    // NaN stays NaN.
    size = hn::IfThenElse(hn::Lt(size, hn::Set(at.d, s.low)), hn::Set(at.d, s.low), size);
    size = hn::IfThenElse(hn::Gt(size, hn::Set(at.d, s.high)), hn::Set(at.d, s.high), size);
    at.store(size, 3);
    g = hn::IfThenElse(back, zero, g);
    at.store(g, 2);
    const auto up = hn::IfThenElseZero(hn::Gt(g, zero), size);
    const auto down = hn::IfThenElseZero(hn::Lt(g, zero), size);
    return hn::Add(hn::Sub(p, up), down);
  } else if constexpr (kRule == Rule::kAsgd) {
    p = hn::Sub(p, at.times(s.lr, g));
    const auto average = at.load(2);
    at.store(s.mu == A(1) ? p : hn::Add(average, at.times(s.mu, hn::Sub(p, average))), 2);
    return p;
  } else {
    return p;
  }
}

template <Rule kRule, class A, class D>
HWY_INLINE void one(const At<A, D>& at, const Step<A>& s) {
  if constexpr (kRule == Rule::kSkip) {
    for (int part = 0; part < kStepParts; ++part) {
      if (at.out[part]) at.store(at.load(part), part);
    }
    return;
  }
  auto p = at.load(0);
  if constexpr (kRule == Rule::kUnscale) {
    if (!hn::AllTrue(at.d, hn::IsFinite(p))) at.found->store(true, std::memory_order_relaxed);
    at.store(at.times(s.lr, p), 0);
    return;
  }
  auto g = at.load(1);
  if (s.maximize) g = hn::Neg(g);
  if (s.weight_decay != 0) g = hn::Add(g, at.times(s.weight_decay, p));
  if (s.shrink != 1) p = at.times(s.shrink, p);
  at.store(rule<kRule>(at, s, p, g), 0);
}

template <Rule kRule, class A>
void run(const Step<A>& s, std::int64_t n, const A* const* in, A* const* out,
         std::atomic<bool>* found) {
  const hn::ScalableTag<A> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) one<kRule>(At<A, decltype(d)>{d, in, out, found, i}, s);
  if (i == n) return;
  // The remaining elements are copied into whole vectors, so that the bits do not depend on an
  // element's position.
  A memory[kStepParts][64 / sizeof(A)] = {};
  const A* from[kStepParts] = {};
  A* to[kStepParts] = {};
  for (int part = 0; part < kStepParts; ++part) {
    if (in[part]) {
      std::copy(in[part] + i, in[part] + n, memory[part]);
      from[part] = memory[part];
    }
    if (out[part]) to[part] = memory[part];
  }
  one<kRule>(At<A, decltype(d)>{d, from, to, found, 0}, s);
  for (int part = 0; part < kStepParts; ++part) {
    if (out[part]) std::copy(memory[part], memory[part] + (n - i), out[part] + i);
  }
}

template <class A>
void step(const Step<A>& s, std::int64_t n, const A* const* in, A* const* out,
          std::atomic<bool>* found) {
  switch (s.rule) {
    case Rule::kSgd:
      return run<Rule::kSgd>(s, n, in, out, found);
    case Rule::kAdam:
      return run<Rule::kAdam>(s, n, in, out, found);
    case Rule::kAdamax:
      return run<Rule::kAdamax>(s, n, in, out, found);
    case Rule::kNadam:
      return run<Rule::kNadam>(s, n, in, out, found);
    case Rule::kRadam:
      return run<Rule::kRadam>(s, n, in, out, found);
    case Rule::kAdagrad:
      return run<Rule::kAdagrad>(s, n, in, out, found);
    case Rule::kAdadelta:
      return run<Rule::kAdadelta>(s, n, in, out, found);
    case Rule::kRmsprop:
      return run<Rule::kRmsprop>(s, n, in, out, found);
    case Rule::kRprop:
      return run<Rule::kRprop>(s, n, in, out, found);
    case Rule::kAsgd:
      return run<Rule::kAsgd>(s, n, in, out, found);
    case Rule::kSkip:
      return run<Rule::kSkip>(s, n, in, out, found);
    case Rule::kUnscale:
      return run<Rule::kUnscale>(s, n, in, out, found);
  }
}

void step_f32(const Step<float>& s, std::int64_t n, const float* const* in, float* const* out,
              std::atomic<bool>* found) {
  step(s, n, in, out, found);
}
void step_f64(const Step<double>& s, std::int64_t n, const double* const* in, double* const* out,
              std::atomic<bool>* found) {
  step(s, n, in, out, found);
}

}  // namespace HWY_NAMESPACE
}  // namespace teletensor::backends::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace teletensor::backends::cpu {

HWY_EXPORT(step_f32);
HWY_EXPORT(step_f64);

template <>
void step_block(const Step<float>& s, std::int64_t n, const float* const* in, float* const* out,
                std::atomic<bool>* found) {
  HWY_DYNAMIC_DISPATCH(step_f32)(s, n, in, out, found);
}
template <>
void step_block(const Step<double>& s, std::int64_t n, const double* const* in, double* const* out,
                std::atomic<bool>* found) {
  HWY_DYNAMIC_DISPATCH(step_f64)(s, n, in, out, found);
}

}  // namespace teletensor::backends::cpu
#endif
