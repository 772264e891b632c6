// Device kernels for writes by index. Equal indices are linked into a chain, or processed by one
// thread, so that sums are added in the order of the indices regardless of scheduling.
#include <algorithm>

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

// Chains are built by searching ahead, which takes a few milliseconds for this many indices.
constexpr std::int64_t kMaxChained = std::int64_t{1} << 19;
// One thread per line of an index pays off if there are at least this many lines, or if the lines
// are short.
constexpr std::int64_t kManyLines = 256, kShortLine = 4096;

// Same values as in text/scatter.cuh.
enum class Write : std::uint8_t { kCopy, kAdd, kProduct, kMax, kMin };

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

// Adds the launches for writes along chains. The caller has set x, y, alpha, fill and skipped, and
// has checked p.index, p.count and p.size.
Status chains(KernelCall& call, Work& work, RowMajorCall& memory, std::int64_t before, Write write,
              DType dtype, calls::ChainCall p) {
  p.n = before * p.count * p.after;
  if (p.n == 0) return {};
  if (p.count > kMaxChained) return not_on_device("too many indices");
  p.flag = static_cast<const int*>(work.flag);
  p.next = static_cast<std::int64_t*>(memory.room(p.count, sizeof(std::int64_t)));
  p.later = static_cast<int*>(memory.room(p.count, sizeof(int)));
  TT_RETURN_IF_ERROR(memory.status());
  TT_RETURN_IF_ERROR(fill_zero(call, work, p.later, p.count, DType::kI32));
  calls::ChainCall links = p;
  links.n = p.count;
  TT_RETURN_IF_ERROR(add_recipe(work, {Recipe::kChainLinks}, links));
  if (write == Write::kCopy) return add_recipe(work, {Recipe::kChainCopy, {dtype}}, p);
  return add_recipe(work, {Recipe::kChainAdd, {dtype}, static_cast<std::uint8_t>(write)}, p);
}

// Checks one tensor of indices and then calls the chains() above. `wrap` means that negative
// indices count from the end.
Status chains(KernelCall& call, Work& work, RowMajorCall& memory, const TensorArg& index,
              std::int64_t before, bool wrap, Write write, DType dtype, calls::ChainCall p) {
  p.count = index.geometry->numel();
  TT_RETURN_IF_ERROR(describe_check(call, index, false, wrap ? -p.size : 0, p.size - 1, work));
  p.index = static_cast<const std::int64_t*>(memory.read(index, DType::kI64));
  return chains(call, work, memory, before, write, dtype, p);
}

// The values to write: one element (sets `fill`), or all of them in row-major order.
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

// The sizes before and after a dimension.
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
  if (shape.empty() || !out.geometry->contiguous()) {
    return not_on_device("a 0-d result, or one that is not row-major");
  }
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

// Combines the indices of adjacent dimensions into one index over all of them.
Status index_put(KernelCall& call, Work& work) {
  const TensorArg &out = call.out[0], &values = call.in[1];
  const Dims& shape = out.geometry->shape;
  const auto dims = call.attributes.ints(0);
  const auto indices = call.in.subspan(2);
  if (dims.empty() || dims.size() != indices.size() || dims.size() > kMaxIndices) {
    return not_on_device("too many indices");
  }
  if (shape.empty() || !out.geometry->contiguous()) {
    return not_on_device("a 0-d result, or one that is not row-major");
  }
  Dims broad;
  calls::JoinCall join = {};
  for (std::size_t j = 0; j < dims.size(); ++j) {
    if (dims[j] != dims[0] + static_cast<std::int64_t>(j)) {
      return not_on_device("indices of dimensions that are not adjacent");
    }
    const auto both = core::broadcast_shapes(broad, indices[j].geometry->shape, call.op.name);
    if (!both.ok()) return both.status();
    broad = *both;
    join.size[j] = shape[static_cast<int>(dims[j])];
  }
  const int first = static_cast<int>(dims[0]), last = static_cast<int>(dims.back());
  calls::ChainCall p = {};
  std::int64_t before = 1, unused;
  around(shape, first, before, unused);
  around(shape, last, unused, p.after);
  p.size = 1;
  for (int d = first; d <= last; ++d) p.size *= shape[d];
  p.skipped = -p.size - 1;
  p.alpha = 1;
  Dims indexed;
  for (int d = 0; d < shape.size(); ++d) {
    if (d < first || d > last) indexed.push_back(shape[d]);
    for (int i = 0; d == first && i < broad.size(); ++i) indexed.push_back(broad[i]);
  }
  RowMajorCall memory(call, work);
  p.x = written(memory, values, indexed, out.dtype, p.fill);
  p.y = out.first();
  TT_RETURN_IF_ERROR(memory.status());
  const Write write = call.attributes.boolean(1) ? Write::kAdd : Write::kCopy;
  if (indices.size() == 1) {
    return chains(call, work, memory, indices[0], before, true, write, out.dtype, p);
  }
  const auto places = core::checked_numel(broad.span());
  if (!places.ok()) return not_on_device("too many positions");
  p.count = join.n = *places;
  if (join.n == 0) return {};
  for (std::size_t j = 0; j < indices.size(); ++j) {
    TT_RETURN_IF_ERROR(
        describe_check(call, indices[j], false, -join.size[j], join.size[j] - 1, work));
    bool one;
    join.index[j] =
        static_cast<const std::int64_t*>(written(memory, indices[j], broad, DType::kI64, one));
    join.step[j] = one ? 0 : 1;
  }
  join.indices = static_cast<int>(indices.size());
  join.to = static_cast<std::int64_t*>(memory.room(join.n, sizeof(std::int64_t)));
  p.index = join.to;
  TT_RETURN_IF_ERROR(memory.status());
  TT_RETURN_IF_ERROR(add_recipe(work, {Recipe::kJoinPlaces}, join));
  return chains(call, work, memory, before, write, out.dtype, p);
}

struct Reduction {
  Write write = Write::kCopy;
  bool fresh = false, mean = false;  // the same flags as in calls::ScatterCall
};

Status scatter(KernelCall& call, Work& work, Reduction reduction) {
  const TensorArg &out = call.out[0], &index = call.in[1], &source = call.in[2];
  const Dims &shape = index.geometry->shape, &y = out.geometry->shape;
  const bool number = source.kind == TensorArg::Kind::kNumber;
  if (shape.empty() || shape.size() != y.size() || shape.size() > calls::kScatterRank ||
      (!number && source.geometry->rank() != shape.size())) {
    return not_on_device("different or too large ranks");
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
    p.fresh = reduction.fresh;
    p.mean = reduction.mean;
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
    return chains(call, work, memory, index, 1, false, reduction.write, out.dtype, p);
  }
  calls::ScatterCall p = {};
  p.n = index.geometry->numel() / shape[dim];
  if (p.n < kManyLines && shape[dim] > kShortLine) return not_on_device("a few long lines");
  if (out.geometry->overlaps_itself()) return not_on_device("a result that overlaps itself");
  TT_RETURN_IF_ERROR(describe_check(call, index, false, 0, y[dim] - 1, work));
  p.flag = static_cast<const int*>(work.flag);
  p.index = static_cast<const std::int64_t*>(memory.read(index, DType::kI64));
  p.fill = number;
  // Sums and products of 16-bit floats are computed in float32 and rounded once.
  const bool wide = core::is_floating(out.dtype) && core::size_of(out.dtype) == 2 &&
                    (reduction.write == Write::kAdd || reduction.write == Write::kProduct);
  const DType dtype = wide ? DType::kF32 : out.dtype;
  p.x = memory.read(source, dtype);
  p.y = wide ? memory.write(out, dtype) : out.first();
  TT_RETURN_IF_ERROR(memory.status());
  const Geometry row_major(y);
  const Geometry& of_y = wide ? row_major : *out.geometry;
  if (wide && row_major.numel() > 0) {
    TensorArg copy = out;
    copy.data = p.y;
    copy.dtype = dtype;
    copy.geometry = &row_major;
    TT_RETURN_IF_ERROR(describe_copy(call, out, copy, work));
  }
  p.rank = shape.size();
  p.dim = dim;
  const Geometry of_index(shape), of_x(number ? shape : source.geometry->shape);
  for (int d = 0; d < p.rank; ++d) {
    p.shape[d] = shape[d];
    p.index_strides[d] = of_index.strides[d];
    p.x_strides[d] = of_x.strides[d];
    p.y_strides[d] = of_y.strides[d];
  }
  p.fresh = reduction.fresh;
  p.mean = reduction.mean;
  if (p.fresh || p.mean) {
    if (!of_y.contiguous()) return not_on_device("a result that is not row-major");
    const std::int64_t n = out.geometry->numel();
    p.counts = static_cast<std::int64_t*>(memory.room(n, sizeof(std::int64_t)));
    TT_RETURN_IF_ERROR(memory.status());
    TT_RETURN_IF_ERROR(fill_zero(call, work, p.counts, n, DType::kI64));
  }
  const auto write = static_cast<std::uint8_t>(reduction.write);
  TT_RETURN_IF_ERROR(add_recipe(work, {Recipe::kScatterLine, {dtype}, write}, p));
  return memory.store();
}

template <Write kWrite>
Status scatter_as(KernelCall& call, Work& work) {
  return scatter(call, work, {kWrite});
}

Status scatter_reduce(KernelCall& call, Work& work) {
  const std::string_view how = call.attributes.text(1);
  Reduction reduction;
  reduction.write = how == "prod"   ? Write::kProduct
                    : how == "amax" ? Write::kMax
                    : how == "amin" ? Write::kMin
                                    : Write::kAdd;
  reduction.fresh = !call.attributes.boolean(2);
  reduction.mean = how == "mean";
  return scatter(call, work, reduction);
}

}  // namespace

void add_scatter_kernels(DeviceTable& table) {
  constexpr Skeleton kIndex = Skeleton::kIndex;
  table.add("embedding_backward", kIndex, embedding_backward);
  table.add("index_add", kIndex, index_write<Write::kAdd, false>);
  table.add("index_copy", kIndex, index_write<Write::kCopy, false>);
  table.add("index_fill", kIndex, index_write<Write::kCopy, true>);
  table.add("index_put", kIndex, index_put);
  table.add("scatter", kIndex, scatter_as<Write::kCopy>);
  table.add("scatter_add", kIndex, scatter_as<Write::kAdd>);
  table.add("scatter_reduce", kIndex, scatter_reduce);
}

}  // namespace teletensor::backends::cuda
