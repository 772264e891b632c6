// Kernels of the elementwise ops with one operand.

#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/loops/loops.h"

namespace teletensor::backends::cpu {
namespace {

using core::Status;

template <class Exact, class Tanh>
Status gelu(KernelCall& call) {
  if (call.attributes.text(0) == "tanh") return run_functor(call, call.in, Tanh());
  return run_functor(call, call.in, Exact());
}

Status bitwise_not(KernelCall& call) {
  if (call.in[0].dtype == core::DType::kBool) return run_functor(call, call.in, s::LogicalNot());
  return run_functor(call, call.in, s::BitwiseNot());
}

}  // namespace

void add_special_kernels(KernelTable& table);  // special.cc

void add_unary_kernels(KernelTable& table) {
  add_special_kernels(table);
  bind_loops();
  add_functors(table, List<s::Neg, s::Abs, s::Sign, s::Square, s::Positive, s::Reciprocal, s::Sqrt,
                           s::Rsqrt, s::DegToRad, s::RadToDeg, s::Floor, s::Ceil, s::Round,
                           s::Trunc, s::Frac, s::IsNan, s::IsInf, s::IsFinite, s::LogicalNot>());
  table.add("bitwise_not", bitwise_not, LoopRole::kElement);
  add_functors(table, MathUnary());
  add_functors(table, List<s::Sigmoid, s::Silu, s::Relu, s::Elu, s::Selu, s::LeakyRelu, s::Softplus,
                           s::LogSigmoid, s::Mish, s::Hardtanh, s::Relu6, s::Hardsigmoid,
                           s::Hardswish, s::ReluBackward, s::TanhBackward, s::SigmoidBackward>());
  table.add("gelu", gelu<s::Gelu, s::GeluTanh>, LoopRole::kElement);
  table.add("gelu_backward", gelu<s::GeluBackward, s::GeluTanhBackward>, LoopRole::kElement);
}

}  // namespace teletensor::backends::cpu
