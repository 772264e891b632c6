// The functors that have elementwise kernels, and the kernels as function templates over them.
//
// The lists of functors are split so that their loops are compiled in several files (loops_*.cc).
// When the kernel table is made, each file binds its list to the best instruction set of this
// machine.
#pragma once

#include <type_traits>

#include "engine/backends/cpu/pointwise/elementwise.h"
#include "engine/ops/scalar/rare.h"
#include "engine/ops/scalar/scalar.h"

namespace teletensor::backends::cpu {

template <class... F>
struct List {};

namespace s = ops::scalar;
using PlainUnary =
    List<s::Neg, s::Abs, s::Sign, s::Sgn, s::Conj, s::Imag, s::Angle, s::Square, s::Positive,
         s::Reciprocal, s::Sqrt, s::Rsqrt, s::DegToRad, s::RadToDeg, s::Floor, s::Ceil, s::Round,
         s::Trunc, s::Frac, s::IsNan, s::IsInf, s::IsFinite, s::LogicalNot, s::BitwiseNot, s::Cube>;
using MathUnary = List<s::Exp, s::Exp2, s::Expm1, s::Log, s::Log2, s::Log10, s::Log1p, s::Sin,
                       s::Cos, s::Tan, s::Asin, s::Acos, s::Atan, s::Sinh, s::Cosh, s::Tanh,
                       s::Asinh, s::Acosh, s::Atanh, s::Erf, s::Erfc>;
using Activations = List<s::Sigmoid, s::Silu, s::Relu, s::Gelu, s::GeluTanh, s::Elu, s::Selu,
                         s::LeakyRelu, s::Softplus, s::LogSigmoid, s::Mish, s::Hardtanh, s::Relu6,
                         s::Hardsigmoid, s::Hardswish, s::ReluBackward, s::TanhBackward,
                         s::SigmoidBackward, s::GeluBackward, s::GeluTanhBackward>;
using Arithmetic = List<s::Add, s::Sub, s::AddScaled, s::Mul, s::Div, s::DivTrunc, s::FloorDivide,
                        s::Remainder, s::Fmod, s::Pow, s::Maximum, s::Minimum, s::Fmax, s::Fmin,
                        s::Atan2, s::Hypot, s::Copysign, s::MakeComplex, s::Polar>;
using Tests =
    List<s::Eq, s::Ne, s::Lt, s::Le, s::Gt, s::Ge, s::LogicalAnd, s::LogicalOr, s::LogicalXor,
         s::BitwiseAnd, s::BitwiseOr, s::BitwiseXor, s::ShiftLeft, s::ShiftRight>;
using Rare = List<s::Entr, s::Sinc, s::Ndtr, s::Ndtri, s::Erfinv, s::Logit, s::NanToNum, s::Signbit,
                  s::Mantissa, s::Exponent, s::Xlogy, s::Xlog1py, s::LogAddExp, s::LogAddExp2>;
using Ternary = List<s::Where, s::Clamp, s::Lerp, s::Addcmul, s::Addcdiv>;

// The loops of functor F on this machine. Written once, by bind_loops().
template <class F>
struct Slot {
  static inline Loops loops;
};

void bind_loops();  // binds all lists; idempotent and thread-safe
// Each of these binds one list, in the file loops_*.cc that compiles its loops. Only bind_loops()
// calls them.
void bind_plain_unary();
void bind_math_unary();
void bind_activations();
void bind_arithmetic();
void bind_tests();
void bind_ternary();
void bind_special();

template <class F>
inline constexpr bool has_bool_result = [] {
  using T = std::conditional_t<
      (F::kTypes & s::kReal) != 0, float,
      std::conditional_t<(F::kTypes & s::kComplex) != 0, core::Complex64, std::int64_t>>;
  if constexpr (std::is_invocable_v<F, T>) {
    return std::is_same_v<std::invoke_result_t<F, T>, bool>;
  } else if constexpr (std::is_invocable_v<F, T, T>) {
    return std::is_same_v<std::invoke_result_t<F, T, T>, bool>;
  } else {
    return false;
  }
}();

template <class F>
inline constexpr bool is_logical =
    std::is_same_v<F, s::LogicalNot> || std::is_same_v<F, s::LogicalAnd> ||
    std::is_same_v<F, s::LogicalOr> || std::is_same_v<F, s::LogicalXor>;

// Functors whose result in the low 32 bits depends only on the low 32 bits of the operands, or
// which only compare or select.
template <class F, class... Which>
constexpr bool is_one_of(List<Which...>) {
  return (std::is_same_v<F, Which> || ...);
}
template <class F>
inline constexpr bool is_narrow = is_one_of<F>(
    List<s::Neg, s::Abs, s::Sign, s::Square, s::Positive, s::Floor, s::Ceil, s::Round, s::Trunc,
         s::IsNan, s::IsInf, s::IsFinite, s::BitwiseNot, s::Relu, s::Add, s::Sub, s::Mul,
         s::Maximum, s::Minimum, s::Fmax, s::Fmin, s::Eq, s::Ne, s::Lt, s::Le, s::Gt, s::Ge,
         s::LogicalAnd, s::LogicalOr, s::LogicalXor, s::LogicalNot, s::BitwiseAnd, s::BitwiseOr,
         s::BitwiseXor, s::ShiftLeft, s::ShiftRight>());

template <class F>
inline constexpr bool calls_libm = [] {
  if constexpr (requires { F::kLibm; }) return F::kLibm;
  return false;
}();

template <class F>
inline constexpr int cost_of = [] {
  if constexpr (requires { F::kCost; }) return F::kCost;
  return 1;
}();

// The name of a type, for example "teletensor::ops::scalar::Add".
template <class F>
constexpr std::string_view type_name() {
  // Has the form "... [with F = NAME; ...]" or "[F = NAME]".
  const std::string_view text = __PRETTY_FUNCTION__;
  const std::size_t from = text.find("F = ") + 4;
  return text.substr(from, text.find_first_of(";]", from) - from);
}

template <class F>
F make_functor(const core::Attributes& attributes) {
  if constexpr (std::is_constructible_v<F, const core::Attributes&>) {
    return F(attributes);
  } else {
    (void)attributes;
    return F();
  }
}

// Runs F over the operands `in`.
template <class F>
core::Status run_functor(KernelCall& call, std::span<const TensorArg> in, const F& functor,
                         bool exact_scalars = false) {
  Plan plan;
  plan.loops = &Slot<F>::loops;
  static_assert(std::is_trivially_copyable_v<F> && sizeof(F) <= kMaxFunctorBytes);
  plan.functor = &functor;
  plan.functor_bytes = sizeof functor;
  plan.dtype = common_dtype(in, call.out[0], (F::kTypes & s::kInteger) == 0);
  plan.exact_scalars = exact_scalars;
  return run_elementwise(call, in, plan);
}

// The kernel of an op that is a single functor.
template <class F>
core::Status functor_kernel(KernelCall& call) {
  return run_functor(call, call.in, make_functor<F>(call.attributes));
}

// Adds the kernels of ops that are a single functor each.
template <class... F>
void add_functors(KernelTable& table, List<F...>) {
  (table.add(F::kOp, functor_kernel<F>, LoopRole::kElement), ...);
}

}  // namespace teletensor::backends::cpu
