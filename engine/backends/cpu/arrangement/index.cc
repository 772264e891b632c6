// Kernels of index, index_put, index_select, index_add, index_copy, index_fill, take, embedding.

#include <cstring>

#include "engine/backends/cpu/access/strided.h"
#include "engine/backends/cpu/arrangement/index_places.h"
#include "engine/backends/cpu/cpu.h"
#include "engine/backends/scratch_bytes.h"

namespace teletensor::backends::cpu {
namespace {

using core::Dims;
using core::DType;
using core::Geometry;
using core::Result;
using core::Status;

// The places that one vector of indices names along the dimension given by the attribute.
Result<Places> along(KernelCall& call, const Geometry& x, const TensorArg& index, bool wrap) {
  const std::int64_t given = call.attributes.integer(0);
  const std::int64_t dim =
      x.rank() == 0 || given >= 0 ? std::max<std::int64_t>(given, 0) : given + x.rank();
  return places_of(call, x, std::span(&index, 1), std::span(&dim, 1), wrap);
}

// The shape of a result or source as a line, with its elements in the order of the places.
Dims flat(const Places& places) { return {places.count()}; }

// The values to write: a single element, or a dense tensor of the indexed shape.
struct Written {
  DenseCopy values;
  bool fill = false;
};

// Returns true if the view shows a single element many times.
bool all_one_element(const Geometry& g) {
  for (int d = 0; d < g.rank(); ++d) {
    if (g.shape[d] == 0 || (g.shape[d] > 1 && g.strides[d] != 0)) return false;
  }
  return true;
}

Written written(KernelCall& call, const TensorArg& from, const Dims& shape, DType dtype) {
  const bool one = from.kind == TensorArg::Kind::kNumber || from.geometry->numel() == 1 ||
                   all_one_element(*from.geometry);
  if (!one) return {dense_copy(call, from, shape, dtype), false};
  TensorArg scalar = from;
  const Geometry geometry{Dims()};
  if (from.kind == TensorArg::Kind::kTensor) {
    scalar.data = scalar.first();
    scalar.geometry = &geometry;
  }
  return {dense_copy(call, scalar, Dims(), dtype), true};
}

Status index(KernelCall& call) {
  const auto places =
      places_of(call, *call.in[0].geometry, call.in.subspan(1), call.attributes.ints(0), true);
  if (!places.ok()) return places.status();
  read_places(call, *places, call.in[0], call.out[0].first());
  return {};
}

// The indexed shape, computed as in infer.
Dims indexed_shape(const Geometry& x, std::span<const TensorArg> indices,
                   std::span<const std::int64_t> dims) {
  Dims broad = indices[0].geometry->shape;
  for (const TensorArg& i : indices.subspan(1)) {
    broad = *core::broadcast_shapes(broad, i.geometry->shape, "index_put");
  }
  const std::size_t n = dims.size();
  const bool neighbours = dims[n - 1] - dims[0] + 1 == static_cast<std::int64_t>(n);
  Dims out;
  std::size_t next = 0;
  if (!neighbours) out = broad;
  for (int d = 0; d < x.rank(); ++d) {
    if (next < n && dims[next] == d) {
      if (neighbours && next == 0) {
        for (const std::int64_t size : broad) out.push_back(size);
      }
      ++next;
    } else {
      out.push_back(x.shape[d]);
    }
  }
  return out;
}

Status index_put(KernelCall& call) {
  const TensorArg& out = call.out[0];
  const auto indices = call.in.subspan(2);
  const auto places = places_of(call, *out.geometry, indices, call.attributes.ints(0), true);
  if (!places.ok()) return places.status();
  const Written from = written(
      call, call.in[1], indexed_shape(*out.geometry, indices, call.attributes.ints(0)), out.dtype);
  if (from.values.data == nullptr) return out_of_scratch(call.op.name, from.values.bytes);
  if (call.attributes.boolean(1)) {
    return add_places(call, *places, out, from.values.data, from.fill, 1);
  }
  write_places(call, *places, out, from.values.data, from.fill);
  return {};
}

Status index_select(KernelCall& call) {
  const auto places = along(call, *call.in[0].geometry, call.in[1], false);
  if (!places.ok()) return places.status();
  read_places(call, *places, call.in[0], call.out[0].first());
  return {};
}

enum class Write { kAdd, kCopy, kFill };

template <Write kWrite>
Status index_write(KernelCall& call) {
  const TensorArg &out = call.out[0], &source = call.in[2];
  const auto places = along(call, *out.geometry, call.in[1], kWrite == Write::kFill);
  if (!places.ok()) return places.status();
  const bool number = source.kind == TensorArg::Kind::kNumber;
  const Written from =
      written(call, source, number ? flat(*places) : source.geometry->shape, out.dtype);
  if (from.values.data == nullptr) return out_of_scratch(call.op.name, from.values.bytes);
  if constexpr (kWrite == Write::kAdd) {
    return add_places(call, *places, out, from.values.data, from.fill, call.attributes.real(1));
  } else {
    write_places(call, *places, out, from.values.data, from.fill);
    return {};
  }
}

Status take(KernelCall& call) {
  const TensorArg& x = call.in[0];
  const DenseCopy all = dense_copy(call, x, x.geometry->shape, x.dtype);
  if (all.data == nullptr) return out_of_scratch(call.op.name, all.bytes);
  const Geometry line({x.geometry->numel()});
  TensorArg flat = x;
  flat.data = const_cast<void*>(all.data);
  flat.geometry = &line;
  const std::int64_t dim = 0;
  const auto places = places_of(call, line, call.in.subspan(1, 1), std::span(&dim, 1), true);
  if (!places.ok()) return places.status();
  read_places(call, *places, flat, call.out[0].first());
  return {};
}

Status embedding(KernelCall& call) {
  const std::int64_t dim = 0;
  const auto places =
      places_of(call, *call.in[0].geometry, call.in.subspan(1, 1), std::span(&dim, 1), false);
  if (!places.ok()) return places.status();
  read_places(call, *places, call.in[0], call.out[0].first());
  return {};
}

// Adds the rows of g in the order of the indices; 16-bit floats are summed in f32 and rounded once.
template <class T>
void sum_rows(KernelCall& call, const IndexList& index, const T* g, std::int64_t width,
              std::int64_t padding, T* out) {
  // Each part handles some of the columns, so every sum is added in one order.
  const double cost = static_cast<double>(index.count) * 0.5;
  split(call.parallel, width, cost, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = 0; i < index.count; ++i) {
      if (index.values[i] == padding) continue;
      T* const to = out + index.values[i] * width;
      const T* const from = g + i * width;
      for (std::int64_t j = begin; j < end; ++j) to[j] += from[j];
    }
  });
}

Status embedding_backward(KernelCall& call) {
  const TensorArg &g = call.in[0], &out = call.out[0];
  const std::int64_t rows = call.attributes.integer(0), padding = call.attributes.integer(1);
  const std::int64_t width = out.geometry->shape[1];
  const auto index = read_index(call, call.in[1], rows, 0, false);
  if (!index.ok()) return index.status();
  const DType dtype = out.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  const DenseCopy from = dense_copy(call, g, g.geometry->shape, dtype);
  if (from.data == nullptr) return out_of_scratch(call.op.name, from.bytes);
  const std::int64_t count = out.geometry->numel();
  if (dtype == DType::kF64) {
    std::fill_n(out.first<double>(), count, 0.0);
    sum_rows(call, *index, static_cast<const double*>(from.data), width, padding,
             out.first<double>());
    return {};
  }
  auto* to = out.first<float>();
  if (out.dtype != DType::kF32) {
    const std::size_t bytes = scratch_bytes(std::max<std::int64_t>(count, 1), sizeof(float));
    to = static_cast<float*>(call.scratch.allocate(bytes));
    if (to == nullptr) return out_of_scratch(call.op.name, bytes);
  }
  std::fill_n(to, count, 0.0f);
  sum_rows(call, *index, static_cast<const float*>(from.data), width, padding, to);
  if (out.dtype != DType::kF32) {
    TensorArg sums = out;
    const Geometry geometry(out.geometry->shape);
    sums.data = to;
    sums.dtype = DType::kF32;
    sums.geometry = &geometry;
    strided_copy(sums, out, call.parallel);
  }
  return {};
}

}  // namespace

void add_index_kernels(KernelTable& table) {
  table.add("index", index);
  table.add("index_put", index_put);
  table.add("index_select", index_select);
  table.add("index_add", index_write<Write::kAdd>);
  table.add("index_copy", index_write<Write::kCopy>);
  table.add("index_fill", index_write<Write::kFill>);
  table.add("take", take);
  table.add("embedding", embedding);
  table.add("embedding_backward", embedding_backward);
}

}  // namespace teletensor::backends::cpu
