// Kernels of the elementwise ops with three operands.

#include "engine/backends/cpu/access/block_io.h"
#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/loops/loops.h"
#include "engine/backends/cpu/pointwise/loop.h"

namespace teletensor::backends::cpu {
namespace {

using core::DType;
using core::Status;
using Kind = TensorArg::Kind;

Status select(KernelCall& call, std::span<const TensorArg> in, DType dtype) {
  const s::Where functor;
  Plan plan;
  plan.loops = &Slot<s::Where>::loops;
  plan.functor = &functor;
  plan.functor_bytes = sizeof functor;
  plan.dtype = dtype;
  plan.condition = true;
  return run_elementwise(call, in, plan);
}

Status where(KernelCall& call) {
  return select(call, call.in, common_dtype(call.in.subspan(1), call.out[0]));
}

Status masked_fill(KernelCall& call) {
  TensorArg in[] = {call.in[1], call.in[2], call.in[0]};
  if (call.in[0].dtype == DType::kBool) {            // any value other than 0 is True
    if (call.loop != nullptr) return no_step(call);  // this kernel reads the value
    double value = in[1].number.as_double();
    if (in[1].kind == Kind::kTensor) load_block<double>(in[1].dtype)(in[1].first(), 1, 1, &value);
    in[1] = {};
    in[1].kind = Kind::kNumber;
    in[1].number = core::Number::of_bool(value != 0);
  }
  return select(call, in, call.in[0].dtype);
}

// A weight that is a number is not rounded to 16 bits.
Status lerp(KernelCall& call) { return run_functor(call, call.in, s::Lerp(), true); }

Status clamp(KernelCall& call) {
  const bool exact = !core::is_floating(call.out[0].dtype);
  if (call.in[2].kind == Kind::kAbsent) {
    return run_functor(call, call.in.first(2), s::Maximum(), exact);
  }
  if (call.in[1].kind == Kind::kAbsent) {
    const TensorArg in[] = {call.in[0], call.in[2]};
    return run_functor(call, in, s::Minimum(), exact);
  }
  return run_functor(call, call.in, s::Clamp(), exact);
}

}  // namespace

void add_ternary_kernels(KernelTable& table) {
  bind_loops();
  table.add("where", where, LoopRole::kElement);
  table.add("masked_fill", masked_fill, LoopRole::kElement);
  table.add("clamp", clamp, LoopRole::kElement);
  table.add("lerp", lerp, LoopRole::kElement);
  table.add("addcmul", functor_kernel<s::Addcmul>, LoopRole::kElement);
  table.add("addcdiv", functor_kernel<s::Addcdiv>, LoopRole::kElement);
}

}  // namespace teletensor::backends::cpu
