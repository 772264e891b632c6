// Device kernels for pooling: windows are computed by formulas, with one thread for each result.
#include "engine/backends/cuda/codegen/recipes.h"
#include "engine/backends/cuda/describe.h"
#include "engine/backends/cuda/plans/index_plan.h"
#include "engine/backends/cuda/text/base/calls.h"

namespace teletensor::backends::cuda {
namespace {

using core::Dims;
using core::DType;
using core::Status;

// The number of elements per image and channel.
std::int64_t plane_of(const Dims& shape) {
  std::int64_t n = 1;
  for (int d = 2; d < shape.size(); ++d) n *= shape[d];
  return n;
}

// `x` is the shape that windows read, and `y` has one result for each window. dilation < 0 means
// that the op has no such attribute; adaptive windows have no attributes at all.
Status windows(KernelCall& call, const Dims& x, const Dims& y, bool adaptive, int dilation,
               calls::PoolCall& p) {
  const int n = x.size() - 2;
  for (int d = 0; d < 3; ++d) p.axes[d] = {1, 1, 1, 1, 0, 1};
  for (int d = 0; d < n; ++d) {
    const auto at = static_cast<std::size_t>(d);
    calls::PoolAxis& axis = p.axes[3 - n + d];
    axis.in = x[d + 2];
    axis.out = y[d + 2];
    if (adaptive) {
      std::int64_t product;
      if (__builtin_mul_overflow(axis.in + 1, axis.out + 1, &product))
        return not_on_device("sizes whose product overflows");
      continue;
    }
    axis.kernel = call.attributes.ints(0)[at];
    axis.stride = call.attributes.ints(1)[at];
    axis.padding = call.attributes.ints(2)[at];
    if (dilation >= 0) {
      axis.dilation = call.attributes.ints(static_cast<std::size_t>(dilation))[at];
    }
  }
  p.include_padding = true;
  p.divisor = 0;
  p.places = nullptr;
  return {};
}

template <bool kAdaptive>
Status max_pool(KernelCall& call, Work& work) {
  const TensorArg &x = call.in[0], &y = call.out[0];
  if (y.geometry->numel() == 0) return {};
  calls::PoolCall p;
  TT_RETURN_IF_ERROR(windows(call, x.geometry->shape, y.geometry->shape, kAdaptive, 3, p));
  RowMajorCall memory(call, work);
  p.n = y.geometry->numel();
  p.x = memory.read(x);
  p.y = memory.write(y);
  p.places = static_cast<std::int64_t*>(memory.write(call.out[1]));
  TT_RETURN_IF_ERROR(memory.status());
  const RecipeGraph graph{Recipe::kMaxPool, {x.dtype, modular_of(x.dtype)}, kAdaptive};
  return memory.finish(graph, p);
}

template <bool kAdaptive, bool kBack>
Status mean_pool(KernelCall& call, Work& work) {
  const TensorArg &in = call.in[0], &out = call.out[0];
  if (out.geometry->numel() == 0) return {};
  calls::PoolCall p;
  const Dims &x = (kBack ? out : in).geometry->shape, &y = (kBack ? in : out).geometry->shape;
  TT_RETURN_IF_ERROR(windows(call, x, y, kAdaptive, -1, p));
  if (!kAdaptive) {
    p.include_padding = call.attributes.boolean(4);
    p.divisor = call.attributes.has(5) ? call.attributes.integer(5) : 0;
  }
  RowMajorCall memory(call, work);
  p.n = out.geometry->numel();
  p.x = memory.read(in, out.dtype);
  p.y = memory.write(out);
  TT_RETURN_IF_ERROR(memory.status());
  const Recipe recipe = kBack ? Recipe::kMeanPoolBackward : Recipe::kMeanPool;
  const RecipeGraph graph{recipe, {out.dtype, modular_of(out.dtype)}, kAdaptive};
  return memory.finish(graph, p);
}

Status max_unpool(KernelCall& call, Work& work) {
  const TensorArg &x = call.in[0], &y = call.out[0];
  if (y.geometry->numel() == 0) return {};
  const Dims& shape = y.geometry->shape;
  calls::UnpoolCall p;
  p.in = plane_of(x.geometry->shape);
  p.out = plane_of(shape);
  p.n = shape[0] * shape[1];
  p.accumulate = call.attributes.boolean(1);
  TT_RETURN_IF_ERROR(describe_check(call, call.in[1], false, 0, p.out - 1, work));
  const DType compute = modular_of(y.dtype);
  RowMajorCall memory(call, work);
  p.x = memory.read(x);
  p.places = static_cast<const std::int64_t*>(memory.read(call.in[1], DType::kI64));
  p.y = memory.write(y, compute);
  p.flag = static_cast<const int*>(work.flag);
  return memory.finish({Recipe::kMaxUnpool, {x.dtype, compute}}, p);
}

}  // namespace

void add_pool_kernels(DeviceTable& table) {
  constexpr Skeleton kCell = Skeleton::kCell;
  table.add("max_pool", kCell, max_pool<false>);
  table.add("adaptive_max_pool", kCell, max_pool<true>);
  table.add("avg_pool", kCell, mean_pool<false, false>);
  table.add("avg_pool_backward", kCell, mean_pool<false, true>);
  table.add("adaptive_avg_pool", kCell, mean_pool<true, false>);
  table.add("adaptive_avg_pool_backward", kCell, mean_pool<true, true>);
  table.add("max_unpool", kCell, max_unpool);
}

}  // namespace teletensor::backends::cuda
