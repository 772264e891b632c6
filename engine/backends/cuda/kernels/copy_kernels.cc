// Device kernels for ops that only move elements. Each copy is a loop of one step over the layouts
// of that copy. The counterparts of cpu/copies.cc, regions.cc, join.cc and creation.cc.
#include <algorithm>

#include "engine/backends/cpu/arrangement/regions.h"
#include "engine/backends/cuda/describe.h"
#include "engine/backends/cuda/plans/index_plan.h"
#include "engine/backends/cuda/plans/loop_plan.h"

namespace teletensor::backends::cuda {
namespace {

using core::Dims;
using core::DType;
using core::Geometry;
using core::Number;
using core::Status;
using cpu::lies_as;
using cpu::Region;
using cpu::seen_as;

TensorArg number_arg(Number number) {
  TensorArg arg;
  arg.kind = TensorArg::Kind::kNumber;
  arg.number = number;
  return arg;
}

Status relayout(KernelCall& call, Work& work) {
  return describe_copy(call, call.in[0], call.out[0], work);
}

Status reshape(KernelCall& call, Work& work) {
  const Geometry geometry(call.in[0].geometry->shape);
  return describe_copy(call, call.in[0], seen_as(call.out[0], call.out[0].first(), geometry), work);
}

Status bitcast(KernelCall& call, Work& work) {
  if (call.out[0].dtype == DType::kBool) return not_on_device("bytes that become bools");
  const Geometry geometry(call.in[0].geometry->shape);
  TensorArg out = seen_as(call.out[0], call.out[0].first(), geometry);
  out.dtype = call.in[0].dtype;
  return describe_copy(call, call.in[0], out, work);
}

Status conj(KernelCall& call, Work& work) {
  if (core::is_complex(call.in[0].dtype)) return describe_elementwise(call, work);
  return relayout(call, work);
}

Status view_as_real(KernelCall& call, Work& work) {
  const Geometry geometry(call.in[0].geometry->shape);
  TensorArg out = seen_as(call.out[0], call.out[0].first(), geometry);
  out.dtype = core::complex_of(call.out[0].dtype);
  return describe_copy(call, call.in[0], out, work);
}

Status view_as_complex(KernelCall& call, Work& work) {
  const Geometry geometry(call.in[0].geometry->shape);
  TensorArg out = seen_as(call.out[0], call.out[0].first(), geometry);
  out.dtype = core::real_of(call.out[0].dtype);
  return describe_copy(call, call.in[0], out, work);
}

Status full(KernelCall& call, Work& work) {
  if (call.in[0].kind != TensorArg::Kind::kTensor) {
    return describe_copy(call, call.in[0], call.out[0], work);
  }
  static const Geometry scalar{Dims()};
  return describe_copy(call, seen_as(call.in[0], call.in[0].first(), scalar), call.out[0], work);
}

Status empty(KernelCall&, Work&) { return {}; }

Status eye(KernelCall& call, Work& work) {
  const TensorArg& out = call.out[0];
  const Dims& shape = out.geometry->shape;
  const Geometry diagonal({std::min(shape[0], shape[1])}, {shape[1] + 1}, out.geometry->offset);
  TT_RETURN_IF_ERROR(describe_copy(call, number_arg(Number::of_int(0)), out, work));
  return describe_copy(call, number_arg(Number::of_int(1)), seen_as(out, out.data, diagonal), work);
}

Status diag(KernelCall& call, Work& work) {
  const TensorArg &x = call.in[0], &out = call.out[0];
  const std::int64_t k = call.attributes.integer(0);
  const bool build = x.geometry->rank() == 1;
  const Geometry& matrix = build ? *out.geometry : *x.geometry;
  if (build) TT_RETURN_IF_ERROR(describe_copy(call, number_arg(Number::of_int(0)), out, work));
  const std::int64_t length = build ? x.geometry->shape[0] : out.geometry->shape[0];
  if (length == 0) return {};
  const Geometry diagonal(
      {length}, {matrix.strides[0] + matrix.strides[1]},
      matrix.offset + (k >= 0 ? k * matrix.strides[1] : -k * matrix.strides[0]));
  if (build) return describe_copy(call, x, seen_as(out, out.data, diagonal), work);
  return describe_copy(call, seen_as(x, x.data, diagonal), out, work);
}

Status cat(KernelCall& call, Work& work) {
  const TensorArg& out = call.out[0];
  const int rank = out.geometry->rank(), dim = dim_of(call, call.attributes.integer(0), rank);
  std::int64_t start = 0;
  for (const TensorArg& x : call.in) {
    if (x.geometry->rank() != rank) continue;  // an empty 1-d tensor, which cat has always accepted
    const std::int64_t length = x.geometry->shape[dim];
    const Geometry geometry = out.geometry->slice(dim, start, length, 1);
    TT_RETURN_IF_ERROR(describe_copy(call, x, seen_as(out, out.data, geometry), work));
    start += length;
  }
  return {};
}

Status stack(KernelCall& call, Work& work) {
  const TensorArg& out = call.out[0];
  if (out.geometry->numel() == 0) return {};
  const int dim = dim_of(call, call.attributes.integer(0), out.geometry->rank());
  for (std::size_t i = 0; i < call.in.size(); ++i) {
    const Geometry geometry = out.geometry->select(dim, static_cast<std::int64_t>(i));
    TT_RETURN_IF_ERROR(describe_copy(call, call.in[i], seen_as(out, out.data, geometry), work));
  }
  return {};
}

Status index_region(KernelCall& call, Work& work) {
  const Region region(call.attributes);
  const TensorArg& x = call.in[0];
  if (!lies_as(*x.geometry, region.base)) return not_on_device("a base with another layout");
  return describe_copy(call, seen_as(x, x.first(), region.view), call.out[0], work);
}

Status scatter_region(KernelCall& call, Work& work) {
  const Region region(call.attributes);
  const TensorArg &x = call.in[0], &out = call.out[0];
  if (!lies_as(*out.geometry, region.base)) return not_on_device("a base with another layout");
  if (region.view.overlaps_itself()) return not_on_device("a view that overlaps itself");
  TT_RETURN_IF_ERROR(describe_copy(call, number_arg(Number::of_int(0)), out, work));
  return describe_copy(call, x, seen_as(out, out.first(), region.view), work);
}

// Operand 0 has already been copied to the result.
Status update_region(KernelCall& call, Work& work) {
  const Region region(call.attributes);
  const TensorArg& out = call.out[0];
  if (!lies_as(*out.geometry, region.base)) return not_on_device("a base with another layout");
  if (region.view.overlaps_itself()) return not_on_device("a view that overlaps itself");
  return describe_copy(call, call.in[1], seen_as(out, out.first(), region.view), work);
}

Status add_region(KernelCall& call, Work& work) {
  static const ops::OpDef& add = *ops::catalog().find("add");
  static const core::Attributes kOnce{core::Attribute::of(1.0)};
  const Region region(call.attributes);
  const TensorArg& out = call.out[0];
  if (!lies_as(*out.geometry, region.base)) return not_on_device("a base with another layout");
  if (region.view.overlaps_itself()) return not_on_device("a view that overlaps itself");
  const TensorArg sum = seen_as(out, out.first(), region.view);
  const TensorArg in[2] = {sum, call.in[1]};
  LoopStep step;
  step.op = &add;
  step.in = in;
  step.out = sum;
  step.attributes = &kOnce;
  return describe_loop({&step, 1}, call.parallel, call.scratch, work);
}

// If the check fails, the copied result is never used.
Status require(KernelCall& call, Work& work) {
  TT_RETURN_IF_ERROR(describe_check(call, call.in[1], /*zero=*/true, 0, 0, work));
  return describe_copy(call, call.in[0], call.out[0], work);
}

}  // namespace

void add_copy_kernels(DeviceTable& table) {
  constexpr Skeleton kLoop = Skeleton::kLoop;
  table.add("relayout", kLoop, relayout);
  table.add("real", kLoop, relayout);
  table.add("conj", kLoop, conj);
  table.add("reshape", kLoop, reshape);
  table.add("bitcast", kLoop, bitcast);
  table.add("view_as_real", kLoop, view_as_real);
  table.add("view_as_complex", kLoop, view_as_complex);
  table.add("full", kLoop, full);
  table.add("empty", kLoop, empty);
  table.add("eye", kLoop, eye);
  table.add("diag", kLoop, diag);
  table.add("cat", kLoop, cat);
  table.add("stack", kLoop, stack);
  table.add("index_region", kLoop, index_region);
  table.add("scatter_region", kLoop, scatter_region);
  table.add("add_region", kLoop, add_region);
  table.add("update_region", kLoop, update_region);
  table.add("require", kLoop, require);
}

}  // namespace teletensor::backends::cuda
