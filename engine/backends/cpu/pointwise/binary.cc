// Kernels of the elementwise ops with two operands.

#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/loops/loops.h"
#include "engine/backends/cpu/pointwise/loop.h"

namespace teletensor::backends::cpu {
namespace {

using core::Status;

// In arithmetic with 16-bit floats, numbers and 0-d tensors are not rounded first.
template <class F>
Status arithmetic(KernelCall& call) {
  return run_functor(call, call.in, F(), /*exact_scalars=*/true);
}

template <class Plain, int kSign>
Status add(KernelCall& call) {
  double alpha = call.attributes.real(0);
  if (common_dtype(call.in, call.out[0]) == core::DType::kBool) alpha = alpha != 0;
  if (alpha == 1) return arithmetic<Plain>(call);
  return run_functor(call, call.in, s::AddScaled(kSign * alpha), true);
}

Status refuse_zero(const KernelCall& call) {
  return core::invalid(call.op.name + ": ZeroDivisionError: an integer divided by zero, " +
                       core::to_string(call.out[0].geometry->shape));
}

bool is_scalar(const TensorArg& arg) {
  return arg.kind != TensorArg::Kind::kTensor || arg.geometry->rank() == 0;
}

// With kExactDivisor, a number or 0-d tensor that divides a tensor of 16-bit floats is not rounded
// first. The dividend always is.
template <class F, bool kExactDivisor>
Status rounded_division(KernelCall& call) {
  if (!core::is_floating(common_dtype(call.in, call.out[0])) && call.out[0].geometry->numel() > 0) {
    if (call.loop != nullptr) {
      TT_RETURN_IF_ERROR(call.loop->add_check(call.in[1]));
    } else if (any_zero(call.in[1], call.parallel)) {
      return refuse_zero(call);
    }
  }
  const bool exact = kExactDivisor && call.in[0].kind == TensorArg::Kind::kTensor &&
                     is_scalar(call.in[1]) && core::is_floating(common_dtype(call.in, call.out[0]));
  return run_functor(call, call.in, F(), exact);
}

Status div(KernelCall& call) {
  if (!call.attributes.has(0)) return arithmetic<s::Div>(call);
  if (call.attributes.text(0) == "floor") return rounded_division<s::FloorDivide, true>(call);
  return rounded_division<s::DivTrunc, true>(call);
}

// Exponents that have a cheaper form; only for floats.
Status pow(KernelCall& call) {
  const TensorArg& exponent = call.in[1];
  const auto base = call.in.first(1);
  if (exponent.kind == TensorArg::Kind::kNumber && base[0].kind == TensorArg::Kind::kTensor &&
      !exponent.number.is_complex() && core::is_inexact(base[0].dtype)) {
    const double e = exponent.number.as_double();
    if (e == 2) return run_functor(call, base, s::Square());
    if (e == 3) return run_functor(call, base, s::Cube());
    if (e == 1) return run_functor(call, base, s::Positive());
    if (e == 0.5) return run_functor(call, base, s::Sqrt());
    if (e == -0.5) return run_functor(call, base, s::Rsqrt());
    if (e == -1) return run_functor(call, base, s::Reciprocal());
  }
  return run_functor(call, call.in, s::Pow());
}

// For bools the logical functor is used, which gives the same results.
template <class Bits, class Logical>
Status bitwise(KernelCall& call) {
  if (common_dtype(call.in, call.out[0]) == core::DType::kBool) {
    return run_functor(call, call.in, Logical());
  }
  return run_functor(call, call.in, Bits());
}

}  // namespace

void add_binary_kernels(KernelTable& table) {
  bind_loops();
  table.add("add", add<s::Add, 1>, LoopRole::kElement);
  table.add("sub", add<s::Sub, -1>, LoopRole::kElement);
  table.add("mul", arithmetic<s::Mul>, LoopRole::kElement);
  table.add("div", div, LoopRole::kElement);
  table.add("floor_divide", rounded_division<s::FloorDivide, true>, LoopRole::kElement);
  table.add("remainder", rounded_division<s::Remainder, false>, LoopRole::kElement);
  table.add("fmod", rounded_division<s::Fmod, false>, LoopRole::kElement);
  table.add("pow", pow, LoopRole::kElement);
  add_functors(table,
               List<s::Maximum, s::Minimum, s::Fmax, s::Fmin, s::Atan2, s::Hypot, s::Copysign>());
  add_functors(table, List<s::Eq, s::Ne, s::Lt, s::Le, s::Gt, s::Ge, s::LogicalAnd, s::LogicalOr,
                           s::LogicalXor, s::ShiftLeft, s::ShiftRight>());
  table.add("bitwise_and", bitwise<s::BitwiseAnd, s::LogicalAnd>, LoopRole::kElement);
  table.add("bitwise_or", bitwise<s::BitwiseOr, s::LogicalOr>, LoopRole::kElement);
  table.add("bitwise_xor", bitwise<s::BitwiseXor, s::LogicalXor>, LoopRole::kElement);
}

void bind_loops() {
  static const bool once = [] {
    bind_plain_unary();
    bind_math_unary();
    bind_activations();
    bind_arithmetic();
    bind_tests();
    bind_ternary();
    bind_special();
    return true;
  }();
  (void)once;
}

}  // namespace teletensor::backends::cpu
