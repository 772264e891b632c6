// Device kernels for ops in which each element follows from its position and a few other elements:
// ranges, triangles, one-hot rows, padding, gates.
#include <algorithm>

#include "engine/backends/cpu/arrangement/regions.h"
#include "engine/backends/cuda/codegen/recipes.h"
#include "engine/backends/cuda/describe.h"
#include "engine/backends/cuda/plans/index_plan.h"
#include "engine/backends/cuda/text/base/calls.h"

namespace teletensor::backends::cuda {
namespace {

using core::Dims;
using core::DType;
using core::Geometry;
using core::Number;
using core::Status;

enum RangeKind : std::uint8_t { kWhole, kReal, kLinspace };  // same values as in text/creation.cuh

Status range(KernelCall& call, Work& work, RangeKind kind, calls::RangeCall p) {
  const TensorArg& out = call.out[0];
  RowMajorCall memory(call, work);
  p.n = out.geometry->numel();
  p.y = memory.write(out);
  return memory.finish({Recipe::kRange, {out.dtype}, kind}, p);
}

Status ends_are_numbers(const KernelCall& call) {
  for (const TensorArg& arg : call.in) {
    if (arg.kind != TensorArg::Kind::kNumber) return not_on_device("an end that is a tensor");
  }
  return {};
}

Status arange(KernelCall& call, Work& work) {
  TT_RETURN_IF_ERROR(ends_are_numbers(call));
  const Number &start = call.in[0].number, &end = call.in[1].number, &step = call.in[2].number;
  calls::RangeCall p = {};
  const auto real = [](const Number& x) { return x.kind == Number::Kind::kFloat; };
  if (!real(start) && !real(end) && !real(step) && !core::is_floating(call.out[0].dtype)) {
    p.whole_start = start.integer;
    p.whole_step = step.integer;
    return range(call, work, kWhole, p);
  }
  p.start = start.as_double();
  p.step = step.as_double();
  return range(call, work, kReal, p);
}

Status linspace(KernelCall& call, Work& work) {
  TT_RETURN_IF_ERROR(ends_are_numbers(call));
  calls::RangeCall p = {};
  const std::int64_t steps = call.attributes.integer(0);
  p.start = call.in[0].number.as_double();
  p.end = call.in[1].number.as_double();
  p.step = steps > 1 ? (p.end - p.start) / static_cast<double>(steps - 1) : 0;
  return range(call, work, kLinspace, p);
}

template <bool kLower>
Status triangle(KernelCall& call, Work& work) {
  const TensorArg &x = call.in[0], &out = call.out[0];
  calls::TriangleCall p;
  p.n = out.geometry->numel();
  if (p.n == 0) return {};
  const Dims& shape = x.geometry->shape;
  p.rows = shape[shape.size() - 2];
  p.columns = shape.back();
  p.diagonal = std::clamp(call.attributes.integer(0), -p.rows - 1, p.columns + 1);
  RowMajorCall memory(call, work);
  p.x = memory.read(x);
  p.y = memory.write(out);
  return memory.finish({Recipe::kTriangle, {x.dtype}, kLower}, p);
}

Status one_hot(KernelCall& call, Work& work) {
  const TensorArg &x = call.in[0], &out = call.out[0];
  calls::OneHotCall p;
  p.n = out.geometry->numel();
  p.classes = call.attributes.integer(0);
  if (x.geometry->numel() == 0) return {};
  TT_RETURN_IF_ERROR(describe_check(call, x, false, 0, p.classes - 1, work));
  RowMajorCall memory(call, work);
  p.index = static_cast<const std::int64_t*>(memory.read(x, DType::kI64));
  p.y = static_cast<std::int64_t*>(memory.write(out, DType::kI64));
  p.flag = static_cast<const int*>(work.flag);
  return memory.finish({Recipe::kOneHot}, p);
}

// As in cpu/spatial.cc: fills the result with the value, and then copies the part of x that
// remains.
Status constant_pad(KernelCall& call, Work& work) {
  const TensorArg& out = call.out[0];
  if (out.geometry->numel() == 0) return {};
  TensorArg value = call.in[1];
  if (value.kind == TensorArg::Kind::kTensor && value.geometry->numel() != 1) {
    return not_on_device("a value of many elements");
  }
  TT_RETURN_IF_ERROR(describe_copy(call, value, out, work));
  const std::optional<cpu::Kept> kept = cpu::kept_of_pad(call);
  if (!kept) return {};
  TensorArg source = call.in[0], target = out;
  source.geometry = &kept->from;
  target.geometry = &kept->to;
  return describe_copy(call, source, target, work);
}

// `state` is the index of the operand whose row size is the size of one part.
template <Recipe kRecipe, int kOperands, int kState, int kResults>
Status gates(KernelCall& call, Work& work) {
  const TensorArg& state = call.in[kState];
  const Dims& shape = state.geometry->shape;
  calls::GateCall p = {};
  p.n = state.geometry->numel();
  if (p.n == 0) return {};
  p.size = shape[shape.size() - 1];
  RowMajorCall memory(call, work);
  for (int i = 0; i < kOperands; ++i) p.in[i] = memory.read(call.in[i], state.dtype);
  for (int i = 0; i < kResults; ++i) p.out[i] = memory.write(call.out[i], state.dtype);
  return memory.finish({kRecipe, {state.dtype, float_of(state.dtype)}}, p);
}

}  // namespace

void add_cell_kernels(DeviceTable& table) {
  constexpr Skeleton kCell = Skeleton::kCell;
  table.add("arange", kCell, arange);
  table.add("linspace", kCell, linspace);
  table.add("tril", kCell, triangle<true>);
  table.add("triu", kCell, triangle<false>);
  table.add("one_hot", kCell, one_hot);
  table.add("constant_pad_nd", Skeleton::kLoop, constant_pad);
  table.add("lstm_gates", kCell, gates<Recipe::kLstmGates, 3, 2, 2>);
  table.add("lstm_gates_backward", kCell, gates<Recipe::kLstmGatesBackward, 5, 4, 2>);
  table.add("gru_gates", kCell, gates<Recipe::kGruGates, 3, 2, 1>);
  table.add("gru_gates_backward", kCell, gates<Recipe::kGruGatesBackward, 4, 3, 3>);
}

}  // namespace teletensor::backends::cuda
