// Kernels of searchsorted and argsort_rows: binary search in sorted rows, and the lexicographic
// order of rows.

#include "engine/ops/scalar/search.h"

#include <algorithm>
#include <numeric>

#include "engine/backends/cpu/access/block_io.h"
#include "engine/backends/cpu/access/strided.h"
#include "engine/backends/cpu/arrangement/index_places.h"
#include "engine/backends/cpu/cpu.h"

namespace teletensor::backends::cpu {
namespace {

using core::Dims;
using core::DType;
using core::Status;

template <class A>
Status search(KernelCall& call) {
  const TensorArg &sorted = call.in[0], &values = call.in[1], &out = call.out[0];
  const Dims& shape = values.geometry->shape;
  const bool right = call.attributes.boolean(1), narrow = call.attributes.boolean(0);
  const std::int64_t count = values.geometry->numel(), n = sorted.geometry->shape.back();
  const bool rows = sorted.geometry->rank() > 1;
  const std::int64_t width = rows ? shape.back() : 1;
  const DenseCopy in = dense_copy(call, sorted, sorted.geometry->shape, kDTypeOf<A>);
  if (in.data == nullptr) return out_of_scratch(call.op.name, in.bytes);
  const DenseCopy keys = dense_copy(call, values, shape, kDTypeOf<A>);
  if (keys.data == nullptr) return out_of_scratch(call.op.name, keys.bytes);
  const auto *from = static_cast<const A*>(in.data), *wanted = static_cast<const A*>(keys.data);
  split(call.parallel, count, 20, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const A* const line = rows ? from + i / width * n : from;
      const std::int64_t at = ops::scalar::sorted_place(line, n, wanted[i], right);
      if (narrow) {
        out.first<std::int32_t>()[i] = static_cast<std::int32_t>(at);
      } else {
        out.first<std::int64_t>()[i] = at;
      }
    }
  });
  return {};
}

Status searchsorted(KernelCall& call) {
  if (call.out[0].geometry->numel() == 0) return {};
  return with_compute_type(call.in[0].dtype, [&](auto a) { return search<decltype(a)>(call); });
}

Status argsort_rows(KernelCall& call) {
  const TensorArg& x = call.in[0];
  const std::int64_t rows = x.geometry->shape[0], width = x.geometry->shape[1];
  auto* const order = call.out[0].first<std::int64_t>();
  if (rows == 0) return {};
  std::iota(order, order + rows, std::int64_t{0});
  if (width == 0) return {};
  return with_compute_type(x.dtype, [&](auto a) -> Status {
    using A = decltype(a);
    const DenseCopy all = dense_copy(call, x, x.geometry->shape, kDTypeOf<A>);
    if (all.data == nullptr) return out_of_scratch(call.op.name, all.bytes);
    const A* const from = static_cast<const A*>(all.data);
    std::sort(order, order + rows, [&](std::int64_t i, std::int64_t j) {
      return ops::scalar::row_before(from, width, i, j);
    });
    return {};
  });
}

}  // namespace

void add_search_kernels(KernelTable& table) {
  table.add("searchsorted", searchsorted);
  table.add("argsort_rows", argsort_rows);
}

}  // namespace teletensor::backends::cpu
