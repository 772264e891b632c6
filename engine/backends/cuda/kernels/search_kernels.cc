// Device kernels for searches in sorted lines, and for sorting rows.
#include <utility>

#include "engine/backends/cpu/access/block_io.h"
#include "engine/backends/cuda/codegen/recipes.h"
#include "engine/backends/cuda/describe.h"
#include "engine/backends/cuda/text/base/calls.h"

namespace teletensor::backends::cuda {
namespace {

using core::DType;
using core::Status;

// The dtype in which elements are compared.
DType compared_as(DType dtype) {
  cpu::with_compute_type(dtype, [&](auto a) { dtype = cpu::kDTypeOf<decltype(a)>; });
  return dtype;
}

Status searchsorted(KernelCall& call, Work& work) {
  const TensorArg &sorted = call.in[0], &values = call.in[1], &out = call.out[0];
  calls::SearchCall p = {};
  p.n = out.geometry->numel();
  if (p.n == 0) return {};
  p.length = sorted.geometry->shape.back();
  p.width = sorted.geometry->rank() > 1 ? values.geometry->shape.back() : 0;
  p.right = call.attributes.boolean(1);
  const DType compute = compared_as(sorted.dtype);
  RowMajorCall memory(call, work);
  p.sorted = memory.read(sorted, compute);
  p.values = memory.read(values, compute);
  p.places = memory.write(out);
  return memory.finish({Recipe::kSearchPlace, {compute, out.dtype}}, p);
}

Status argsort_rows(KernelCall& call, Work& work) {
  const TensorArg &x = call.in[0], &out = call.out[0];
  calls::RowsCall p = {};
  p.n = x.geometry->shape[0];
  p.columns = x.geometry->shape[1];
  if (p.n == 0) return {};
  const DType compute = compared_as(x.dtype);
  RowMajorCall memory(call, work);
  p.x = memory.read(x, compute);
  auto* to = static_cast<std::int64_t*>(memory.write(out));
  auto* other = static_cast<std::int64_t*>(memory.room(p.n, sizeof(std::int64_t)));
  TT_RETURN_IF_ERROR(memory.status());
  // Chooses the buffers so that the last pass writes to the result.
  for (std::int64_t width = 2; width < p.n; width *= 2) std::swap(to, other);
  p.width = 1;
  do {
    p.to = to;
    TT_RETURN_IF_ERROR(add_recipe(work, {Recipe::kRowsMerge, {compute}}, p));
    p.from = to;
    std::swap(to, other);
    p.width *= 2;
  } while (p.width < p.n);
  return memory.store();
}

}  // namespace

void add_search_kernels(DeviceTable& table) {
  table.add("searchsorted", Skeleton::kScan, searchsorted);
  table.add("argsort_rows", Skeleton::kScan, argsort_rows);
}

}  // namespace teletensor::backends::cuda
