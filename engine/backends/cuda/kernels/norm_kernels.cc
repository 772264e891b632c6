// Device kernels for layer_norm and batch_norm; group_norm, instance_norm and rms_norm consist of
// these or of reductions and loops.
#include <algorithm>

#include "engine/backends/cuda/codegen/recipes.h"
#include "engine/backends/cuda/describe.h"
#include "engine/backends/cuda/text/base/calls.h"

namespace teletensor::backends::cuda {
namespace {

using core::Dims;
using core::DType;
using core::Status;

// The dtype in which two operands of a derivative are read: their own dtype if they have the same.
DType shared_dtype(const TensorArg& a, const TensorArg& b) {
  return a.dtype == b.dtype ? a.dtype : float_of(b.dtype);
}

// Operands and results that both norms have in common, forward and backward. Call is the parameter
// struct of either norm.
template <class Call>
void forward_of(const KernelCall& call, RowMajorCall& memory, Call& p) {
  const DType dtype = call.out[0].dtype, compute = float_of(dtype);
  p.x = memory.read(call.in[0], dtype);
  p.weight = memory.read(call.in[1], compute);
  p.bias = memory.read(call.in[2], compute);
  p.y = memory.write(call.out[0]);
  p.means = memory.write(call.out[1], compute);
  p.scales = memory.write(call.out[2], compute);
}
template <class Call>
void backward_of(const KernelCall& call, RowMajorCall& memory, DType dtype, Call& p) {
  const DType compute = float_of(call.out[0].dtype);
  p.g = memory.read(call.in[0], dtype);
  p.x = memory.read(call.in[1], dtype);
  p.weight = memory.read(call.in[2], compute);
  p.means = const_cast<void*>(memory.read(call.in[3], compute));
  p.scales = const_cast<void*>(memory.read(call.in[4], compute));
  p.y = memory.write(call.out[0], dtype);
  p.dweight = memory.write(call.out[1]);
  p.dbias = memory.write(call.out[2], call.out[1].dtype);
}

calls::LayerNormCall rows_of(const KernelCall& call, const Dims& shape) {
  calls::LayerNormCall p = {};
  p.length = p.rows = 1;
  const int first = shape.size() - static_cast<int>(call.attributes.ints(0).size());
  for (int d = 0; d < shape.size(); ++d) (d < first ? p.rows : p.length) *= shape[d];
  p.eps = call.attributes.real(1);
  p.n = p.rows;
  return p;
}

Status layer_norm(KernelCall& call, Work& work) {
  const TensorArg& x = call.in[0];
  if (x.geometry->numel() == 0) return not_on_device("an empty tensor");
  calls::LayerNormCall p = rows_of(call, x.geometry->shape);
  RowMajorCall memory(call, work);
  forward_of(call, memory, p);
  const DType dtype = call.out[0].dtype;
  return memory.finish({Recipe::kLayerNorm, {dtype, float_of(dtype)}}, p);
}

Status layer_norm_backward(KernelCall& call, Work& work) {
  const TensorArg &g = call.in[0], &x = call.in[1], &dx = call.out[0];
  if (x.geometry->numel() == 0) return not_on_device("an empty tensor");
  calls::LayerNormCall p = rows_of(call, x.geometry->shape);
  const DType dtype = shared_dtype(g, dx), compute = float_of(dx.dtype);
  p.group = std::max<std::int64_t>(16, 200'000 / p.length);  // as the CPU's
  p.groups = (p.rows + p.group - 1) / p.group;
  RowMajorCall memory(call, work);
  backward_of(call, memory, dtype, p);
  p.sums = memory.room(p.groups * 2 * p.length, core::size_of(compute));
  TT_RETURN_IF_ERROR(memory.status());
  TT_RETURN_IF_ERROR(add_recipe(work, {Recipe::kLayerNormInput, {dtype, compute}}, p));
  p.n = p.groups * p.length;
  TT_RETURN_IF_ERROR(add_recipe(work, {Recipe::kLayerNormSums, {dtype, compute}}, p));
  p.n = 2 * p.length;
  return memory.finish({Recipe::kLayerNormWeights, {call.out[1].dtype, compute}}, p);
}

// As ChannelRuns on the CPU: the leaves of a channel are those of the CPU's sums.
calls::ChannelCall channels_of(const Dims& shape, double eps) {
  calls::ChannelCall p = {};
  p.batch = shape[0];
  p.channels = shape[1];
  p.area = 1;
  for (int d = 2; d < shape.size(); ++d) p.area *= shape[d];
  p.gathered = p.area < 16;
  const std::int64_t length = p.gathered ? p.batch * p.area : p.area;
  p.leaves = (length + 2047) / 2048 * (p.gathered ? 1 : p.batch);
  p.eps = eps;
  return p;
}

// Same values as in text/norms.cuh.
enum ChannelSum : std::uint8_t { kOfX, kOfSquares, kOfGradients };

// Adds the launches for the leaves of the sums and for the results that follow from the sums.
Status add_sums(Work& work, calls::ChannelCall p, ChannelSum what, DType dtype, DType compute,
                DType result) {
  p.n = p.channels * p.leaves;
  TT_RETURN_IF_ERROR(add_recipe(work, {Recipe::kChannelLeaves, {dtype, compute}, what}, p));
  p.n = p.channels;
  return add_recipe(work, {Recipe::kChannelSums, {result, compute}, what}, p);
}

Status batch_norm(KernelCall& call, Work& work) {
  const TensorArg &x = call.in[0], &y = call.out[0];
  if (x.geometry->numel() == 0) return not_on_device("an empty tensor");
  calls::ChannelCall p = channels_of(x.geometry->shape, call.attributes.real(0));
  const DType compute = float_of(y.dtype);
  RowMajorCall memory(call, work);
  forward_of(call, memory, p);
  p.variances = memory.write(call.out[3], compute);
  p.partial = memory.room(p.channels * p.leaves, core::size_of(compute));
  TT_RETURN_IF_ERROR(memory.status());
  TT_RETURN_IF_ERROR(add_sums(work, p, kOfX, y.dtype, compute, compute));
  TT_RETURN_IF_ERROR(add_sums(work, p, kOfSquares, y.dtype, compute, compute));
  p.n = x.geometry->numel();
  return memory.finish({Recipe::kChannelApply, {y.dtype, compute}}, p);
}

Status batch_norm_backward(KernelCall& call, Work& work) {
  const TensorArg &g = call.in[0], &x = call.in[1], &dx = call.out[0];
  if (x.geometry->numel() == 0) return not_on_device("an empty tensor");
  calls::ChannelCall p = channels_of(x.geometry->shape, call.attributes.real(0));
  const DType dtype = shared_dtype(g, dx), compute = float_of(dx.dtype);
  RowMajorCall memory(call, work);
  backward_of(call, memory, dtype, p);
  p.partial = memory.room(2 * p.channels * p.leaves, core::size_of(compute));
  p.terms = memory.room(2 * p.channels, core::size_of(compute));
  TT_RETURN_IF_ERROR(memory.status());
  TT_RETURN_IF_ERROR(add_sums(work, p, kOfGradients, dtype, compute, call.out[1].dtype));
  p.n = x.geometry->numel();
  return memory.finish({Recipe::kChannelGradient, {dtype, compute}}, p);
}

}  // namespace

void add_norm_kernels(DeviceTable& table) {
  constexpr Skeleton kRows = Skeleton::kRows;
  table.add("layer_norm", kRows, layer_norm);
  table.add("layer_norm_backward", kRows, layer_norm_backward);
  table.add("batch_norm", kRows, batch_norm);
  table.add("batch_norm_backward", kRows, batch_norm_backward);
}

}  // namespace teletensor::backends::cuda
