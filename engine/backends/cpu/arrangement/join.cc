// Kernels of cat and stack: each tensor is copied (and cast) into its slice of the result.

#include <cstring>

#include "engine/backends/cpu/access/strided.h"
#include "engine/backends/cpu/cpu.h"

namespace teletensor::backends::cpu {
namespace {

using core::Geometry;
using core::Status;

TensorArg window(const TensorArg& out, const Geometry& geometry) {
  TensorArg part = out;
  part.geometry = &geometry;
  return part;
}

int normalized(std::int64_t dim, int rank) { return static_cast<int>(dim < 0 ? dim + rank : dim); }

// Copies a row-major x to its position, with one memcpy for each index of the dimensions before
// `dim`.
void copy_rows(KernelCall& call, const TensorArg& x, const TensorArg& out, int dim,
               std::int64_t start) {
  const auto element = static_cast<std::int64_t>(core::size_of(x.dtype));
  std::int64_t rows = 1, bytes = element, inner = element;
  for (int d = 0; d < x.geometry->rank(); ++d) {
    (d < dim ? rows : bytes) *= x.geometry->shape[d];
    if (d > dim) inner *= x.geometry->shape[d];
  }
  const std::int64_t pitch = out.geometry->shape[dim] * inner;
  const char* const from = x.first<const char>();
  char* const to = out.first<char>() + start * inner;
  split(call.parallel, rows, static_cast<double>(bytes) * 0.1 + 2, 1,
        [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t r = begin; r < end; ++r) {
            std::memcpy(to + r * pitch, from + r * bytes, static_cast<std::size_t>(bytes));
          }
        });
}

Status cat(KernelCall& call) {
  const TensorArg& out = call.out[0];
  const int dim = normalized(call.attributes.integer(0), out.geometry->rank());
  std::int64_t start = 0;
  for (const TensorArg& x : call.in) {
    if (x.geometry->numel() == 0) {
      if (x.geometry->rank() == out.geometry->rank()) start += x.geometry->shape[dim];
      continue;
    }
    const std::int64_t length = x.geometry->shape[dim];
    if (x.dtype == out.dtype && x.geometry->contiguous()) {
      copy_rows(call, x, out, dim, start);
    } else {
      const Geometry geometry = out.geometry->slice(dim, start, length, 1);
      strided_copy(x, window(out, geometry), call.parallel);
    }
    start += length;
  }
  return {};
}

Status stack(KernelCall& call) {
  const TensorArg& out = call.out[0];
  if (out.geometry->numel() == 0) return {};
  const int dim = normalized(call.attributes.integer(0), out.geometry->rank());
  for (std::size_t i = 0; i < call.in.size(); ++i) {
    const Geometry geometry = out.geometry->select(dim, static_cast<std::int64_t>(i));
    strided_copy(call.in[i], window(out, geometry), call.parallel);
  }
  return {};
}

}  // namespace

void add_join_kernels(KernelTable& table) {
  table.add("cat", cat);
  table.add("stack", stack);
}

}  // namespace teletensor::backends::cpu
