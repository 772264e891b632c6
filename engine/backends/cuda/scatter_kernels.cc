// Rows of the table for writes by index. Equal indices are chained, or walked by one thread, so
// that sums have the order of the indices, whatever else runs.
#include <algorithm>

#include "engine/backends/cuda/describe.h"
#include "engine/backends/cuda/index_plan.h"
#include "engine/backends/cuda/recipes.h"
#include "engine/backends/cuda/text/calls.h"

namespace teletensor::backends::cuda {
namespace {

using core::Dims;
using core::DType;
using core::Geometry;
using core::Number;
using core::Status;

// Chains are found by looking ahead: of so many indices in a few milliseconds.
constexpr std::int64_t kMostChained = std::int64_t{1} << 19;
// A thread for each line of an index pays off from so many lines, or for short ones.
constexpr std::int64_t kManyLines = 256, kShortLine = 4096;

enum class Write { kAdd, kCopy };

Status fill_zero(KernelCall& call, Work& work, void* memory, std::int64_t elements, DType dtype) {
  TensorArg zero, to;
  zero.kind = TensorArg::Kind::kNumber;
  zero.number = Number::of_int(0);
  const Geometry geometry(Dims{elements});
  to.kind = TensorArg::Kind::kTensor;
  to.data = memory;
  to.dtype = dtype;
  to.geometry = &geometry;
  return describe_copy(call, zero, to, work);
}

// What is left to say: x, y, alpha, fill, skipped. `wrap`: negative indices count from the end.
Status chains(KernelCall& call, Work& work, RowMajorCall& memory, const TensorArg& index,
              std::int64_t before, bool wrap, Write write, DType dtype, calls::ChainCall p) {
  p.count = index.geometry->numel();
  p.n = before * p.count * p.after;
  if (p.n == 0) return {};
  if (p.count > kMostChained) return not_here("so many indices");
  TT_RETURN_IF_ERROR(describe_check(call, index, false, wrap ? -p.size : 0, p.size - 1, work));
  p.flag = static_cast<const int*>(work.flag);
  p.index = static_cast<const std::int64_t*>(memory.read(index, DType::kI64));
  p.next = static_cast<std::int64_t*>(memory.room(p.count, sizeof(std::int64_t)));
  p.later = static_cast<int*>(memory.room(p.count, sizeof(int)));
  TT_RETURN_IF_ERROR(memory.status());
  TT_RETURN_IF_ERROR(fill_zero(call, work, p.later, p.count, DType::kI32));
  calls::ChainCall links = p;
  links.n = p.count;
  TT_RETURN_IF_ERROR(add_recipe(work, {Recipe::kChainLinks}, links));
  const Recipe recipe = write == Write::kAdd ? Recipe::kChainAdd : Recipe::kChainCopy;
  return add_recipe(work, {recipe, {dtype}}, p);
}

// What is written: one element, or all of them row-major.
const void* written(RowMajorCall& memory, const TensorArg& from, const Dims& shape, DType dtype,
                    bool& fill) {
  fill = from.kind == TensorArg::Kind::kNumber || from.geometry->numel() == 1;
  if (fill) return memory.read(from, dtype);
  const auto view = from.geometry->expand(shape);
  TensorArg arg = from;
  if (view.ok()) arg.geometry = &*view;
  return memory.read(arg, dtype);
}

Status embedding_backward(KernelCall& call, Work& work) {
  const TensorArg &g = call.in[0], &out = call.out[0];
  if (out.geometry->numel() == 0) return {};
  const DType compute = float_of(out.dtype);
  calls::ChainCall p = {};
  p.size = call.attributes.integer(0);
  p.skipped = call.attributes.integer(1);
  p.after = out.geometry->shape[1];
  p.alpha = 1;
  RowMajorCall memory(call, work);
  p.x = memory.read(g, compute);
  p.y = memory.write(out, compute);
  TT_RETURN_IF_ERROR(memory.status());
  TT_RETURN_IF_ERROR(fill_zero(call, work, p.y, out.geometry->numel(), compute));
  TT_RETURN_IF_ERROR(chains(call, work, memory, call.in[1], 1, false, Write::kAdd, compute, p));
  return memory.store();
}

// Of a dimension: sizes before and after it.
void around(const Dims& shape, int dim, std::int64_t& before, std::int64_t& after) {
  before = after = 1;
  for (int d = 0; d < shape.size(); ++d) {
    if (d < dim) before *= shape[d];
    if (d > dim) after *= shape[d];
  }
}

template <Write kWrite, bool kFills>
Status index_write(KernelCall& call, Work& work) {
  const TensorArg &out = call.out[0], &index = call.in[1], &source = call.in[2];
  const Dims& shape = out.geometry->shape;
  if (shape.empty() || !out.geometry->contiguous()) return not_here("a result like this");
  const int dim = dim_of(call, call.attributes.integer(0), shape.size());
  calls::ChainCall p = {};
  std::int64_t before = 1;
  around(shape, dim, before, p.after);
  p.size = shape[dim];
  p.skipped = -p.size - 1;
  p.alpha = kWrite == Write::kAdd ? call.attributes.real(1) : 1;
  Dims indexed = shape;
  indexed[dim] = index.geometry->numel();
  RowMajorCall memory(call, work);
  p.x = written(memory, source, indexed, out.dtype, p.fill);
  p.y = out.first();
  TT_RETURN_IF_ERROR(memory.status());
  return chains(call, work, memory, index, before, kFills, kWrite, out.dtype, p);
}

// One tensor of indices, for one dimension.
Status index_put(KernelCall& call, Work& work) {
  const TensorArg &out = call.out[0], &values = call.in[1];
  const Dims& shape = out.geometry->shape;
  const auto dims = call.attributes.ints(0);
  if (dims.size() != 1 || shape.empty()) return not_here("several indices");
  if (!out.geometry->contiguous()) return not_here("a result that is not row-major");
  const TensorArg& index = call.in[2];
  const int dim = static_cast<int>(dims[0]);
  calls::ChainCall p = {};
  std::int64_t before = 1;
  around(shape, dim, before, p.after);
  p.size = shape[dim];
  p.skipped = -p.size - 1;
  p.alpha = 1;
  Dims indexed;
  for (int d = 0; d < shape.size(); ++d) {
    if (d != dim) indexed.push_back(shape[d]);
    for (int i = 0; d == dim && i < index.geometry->rank(); ++i) {
      indexed.push_back(index.geometry->shape[i]);
    }
  }
  RowMajorCall memory(call, work);
  p.x = written(memory, values, indexed, out.dtype, p.fill);
  p.y = out.first();
  TT_RETURN_IF_ERROR(memory.status());
  const Write write = call.attributes.boolean(1) ? Write::kAdd : Write::kCopy;
  return chains(call, work, memory, index, before, true, write, out.dtype, p);
}

template <Write kWrite>
Status scatter(KernelCall& call, Work& work) {
  const TensorArg &out = call.out[0], &index = call.in[1], &source = call.in[2];
  const Dims &shape = index.geometry->shape, &y = out.geometry->shape;
  const bool number = source.kind == TensorArg::Kind::kNumber;
  if (shape.empty() || shape.size() != y.size() || shape.size() > calls::kScatterRank ||
      (!number && source.geometry->rank() != shape.size())) {
    return not_here("ranks that differ");
  }
  const int dim = dim_of(call, call.attributes.integer(0), shape.size());
  if (index.geometry->numel() == 0) return {};
  RowMajorCall memory(call, work);
  if (shape.size() == 1 && out.geometry->contiguous()) {
    calls::ChainCall p = {};
    p.after = 1;
    p.size = y[0];
    p.skipped = -p.size - 1;
    p.alpha = 1;
    p.fill = number;
    TensorArg part = source;
    Geometry window;
    if (!number) {
      window = *source.geometry;
      window.shape = shape;
      part.geometry = &window;
    }
    p.x = memory.read(part, out.dtype);
    p.y = out.first();
    TT_RETURN_IF_ERROR(memory.status());
    return chains(call, work, memory, index, 1, false, kWrite, out.dtype, p);
  }
  calls::ScatterCall p = {};
  p.n = index.geometry->numel() / shape[dim];
  if (p.n < kManyLines && shape[dim] > kShortLine) return not_here("a few long lines");
  if (out.geometry->overlaps_itself()) return not_here("a result that overlaps itself");
  TT_RETURN_IF_ERROR(describe_check(call, index, false, 0, y[dim] - 1, work));
  p.flag = static_cast<const int*>(work.flag);
  p.index = static_cast<const std::int64_t*>(memory.read(index, DType::kI64));
  p.fill = number;
  p.x = memory.read(source, out.dtype);
  p.y = out.first();
  TT_RETURN_IF_ERROR(memory.status());
  p.rank = shape.size();
  p.dim = dim;
  const Geometry of_index(shape), of_x(number ? shape : source.geometry->shape);
  for (int d = 0; d < p.rank; ++d) {
    p.shape[d] = shape[d];
    p.index_strides[d] = of_index.strides[d];
    p.x_strides[d] = of_x.strides[d];
    p.y_strides[d] = out.geometry->strides[d];
  }
  return add_recipe(work, {Recipe::kScatterLine, {out.dtype}, kWrite == Write::kAdd}, p);
}

}  // namespace

void add_scatter_kernels(DeviceTable& table) {
  constexpr Skeleton kIndex = Skeleton::kIndex;
  table.add("embedding_backward", kIndex, embedding_backward);
  table.add("index_add", kIndex, index_write<Write::kAdd, false>);
  table.add("index_copy", kIndex, index_write<Write::kCopy, false>);
  table.add("index_fill", kIndex, index_write<Write::kCopy, true>);
  table.add("index_put", kIndex, index_put);
  table.add("scatter", kIndex, scatter<Write::kCopy>);
  table.add("scatter_add", kIndex, scatter<Write::kAdd>);
}

}  // namespace teletensor::backends::cuda
