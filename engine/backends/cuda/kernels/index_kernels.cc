// Device kernels for ops that pick elements by index: gather, index_select, embedding, index. The
// position of a result's element in x follows from its coordinates and from the indices along the
// indexed dimensions.
#include <algorithm>

#include "engine/backends/cuda/codegen/recipes.h"
#include "engine/backends/cuda/codegen/shapes.h"
#include "engine/backends/cuda/describe.h"
#include "engine/backends/cuda/plans/index_plan.h"

namespace teletensor::backends::cuda {
namespace {

using core::Dims;
using core::Geometry;
using core::Status;

// Sizes and the strides of several tensors, for a kernel that iterates over them in row-major
// order.
struct Walked {
  static constexpr int kMax = kMaxIndices + 1;
  int tensors = 0, axes = 0;
  std::int64_t sizes[core::kMaxRank], strides[kMax][core::kMaxRank];
  std::int64_t count = 1;

  // of[t] has the strides of tensor t for each dimension of `shape`. Adjacent dimensions that all
  // tensors traverse uniformly are merged.
  Walked(const Dims& shape, std::span<const Dims> of) : tensors(static_cast<int>(of.size())) {
    for (int d = 0; d < shape.size(); ++d) {
      count *= shape[d];
      if (shape[d] == 1) continue;
      bool one = axes > 0;
      for (int t = 0; one && t < tensors; ++t) {
        one = strides[t][axes - 1] == of[static_cast<std::size_t>(t)][d] * shape[d];
      }
      if (!one) sizes[axes++] = 1;
      sizes[axes - 1] *= shape[d];
      for (int t = 0; t < tensors; ++t) {
        strides[t][axes - 1] = of[static_cast<std::size_t>(t)][d];
      }
    }
  }
  bool wide() const {
    if (count >= kNarrowLimit) return true;
    for (int t = 0; t < tensors; ++t) {
      std::int64_t last = 0;
      for (int d = 0; d < axes; ++d) {
        if (strides[t][d] < 0) return true;
        last += (sizes[d] - 1) * strides[t][d];
      }
      if (last >= kNarrowLimit) return true;
    }
    return false;
  }
  void put_divisors(Params& params) const {
    const bool far = wide();
    for (int d = 0; d < std::max(axes, 1); ++d) {
      const std::int64_t size = axes == 0 ? 1 : sizes[d];
      if (far) {
        params.put(size);
        params.put(std::int64_t{0});
      } else {
        params.put(divisor_of(size));
      }
    }
  }
  void put_strides(Params& params, int t) const {
    for (int d = 0; d < std::max(axes, 1); ++d) {
      params.put(axes == 0 ? std::int64_t{0} : strides[t][d]);
    }
  }
};

struct Pick {
  const TensorArg* index = nullptr;
  Dims strides;  // by dimension of the result
  int dim = 0;   // dimension of x
};

// Adds the launch that copies elements of x to a result in row-major order. The offset of an
// element in x is the sum of its coordinates times x_strides and of an offset for each pick, which
// is read from the pick's index tensor.
Status pick(KernelCall& call, Work& work, const TensorArg& x, const Dims& x_strides,
            std::span<const Pick> picks, bool wrap) {
  const TensorArg& out = call.out[0];
  if (picks.empty() || picks.size() > kMaxIndices) return not_on_device("no indices, or too many");
  if (!out.geometry->contiguous()) return not_on_device("a result that is not row-major");
  TT_RETURN_IF_ERROR(need_flag(call, work));
  IndexGraph graph;
  graph.bytes = static_cast<std::uint8_t>(core::size_of(x.dtype));
  graph.indices = static_cast<std::uint8_t>(picks.size());
  std::vector<Dims> strides = {x_strides};
  for (std::size_t j = 0; j < picks.size(); ++j) {
    const TensorArg& index = *picks[j].index;
    const std::int64_t size = x.geometry->rank() == 0 ? 1 : x.geometry->shape[picks[j].dim];
    TT_RETURN_IF_ERROR(describe_check(call, index, false, wrap ? -size : 0, size - 1, work));
    graph.dtypes[j] = index.dtype;
    strides.push_back(picks[j].strides);
  }
  const Walked walked(out.geometry->shape, strides);
  if (walked.count == 0) return {};
  graph.wide = walked.wide();
  graph.axes = static_cast<std::uint8_t>(walked.axes);
  Launch launch;
  if (!threads_for(walked.count, 1, launch.shape)) return not_on_device("too many elements");
  Params params;
  params.put(work.flag);
  params.put(walked.count);
  walked.put_divisors(params);
  params.put(x.first());
  params.put(out.first());
  walked.put_strides(params, 0);
  for (std::size_t j = 0; j < picks.size(); ++j) {
    const bool scalar = x.geometry->rank() == 0;
    params.put(picks[j].index->first());
    walked.put_strides(params, static_cast<int>(j) + 1);
    params.put(scalar ? std::int64_t{0} : x.geometry->strides[picks[j].dim]);
    params.put(scalar ? std::int64_t{1} : x.geometry->shape[picks[j].dim]);
  }
  launch.key = graph.key();
  launch.params = params.take();
  work.launches.push_back(std::move(launch));
  return {};
}

Status gather(KernelCall& call, Work& work) {
  const Geometry &x = *call.in[0].geometry, &index = *call.in[1].geometry;
  if (x.rank() != index.rank()) return not_on_device("tensors of different ranks");
  Pick one{&call.in[1], index.strides, dim_of(call, call.attributes.integer(0), x.rank())};
  Dims strides = x.strides;
  if (x.rank() > 0) strides[one.dim] = 0;
  return pick(call, work, call.in[0], strides, {&one, 1}, false);
}

// The result's dimensions are [before][indices][after], where the indices replace dimension `dim`
// of x.
Status select(KernelCall& call, Work& work, int dim, std::span<const TensorArg> indices,
              std::span<const std::int64_t> dims, bool wrap) {
  const Geometry& x = *call.in[0].geometry;
  Dims broad = indices[0].geometry->shape;
  for (const TensorArg& i : indices.subspan(1)) {
    const auto both = core::broadcast_shapes(broad, i.geometry->shape, call.op.name);
    if (!both.ok()) return not_on_device("indices that do not broadcast");
    broad = *both;
  }
  const int rank = call.out[0].geometry->rank();
  if (rank != x.rank() - static_cast<int>(dims.size()) + broad.size())
    return not_on_device("a result of another rank");
  Dims strides;
  for (int d = 0; d < dim; ++d) strides.push_back(x.strides[d]);
  for (int d = 0; d < broad.size(); ++d) strides.push_back(0);
  for (int d = dim + static_cast<int>(dims.size()); d < x.rank(); ++d) {
    strides.push_back(x.strides[d]);
  }
  Pick picks[kMaxIndices];
  if (indices.size() > kMaxIndices) return not_on_device("no indices, or too many");
  for (std::size_t j = 0; j < indices.size(); ++j) {
    const Geometry& index = *indices[j].geometry;
    picks[j] = {&indices[j], Dims(rank, 0), static_cast<int>(dims[j])};
    const int lead = broad.size() - index.rank();
    for (int d = 0; d < index.rank(); ++d) {
      picks[j].strides[dim + lead + d] = index.shape[d] == 1 ? 0 : index.strides[d];
    }
  }
  return pick(call, work, call.in[0], strides, {picks, indices.size()}, wrap);
}

Status index_select(KernelCall& call, Work& work) {
  if (call.in[0].geometry->rank() == 0 || call.in[1].geometry->rank() == 0)
    return not_on_device("a 0-d tensor");
  const std::int64_t dim = dim_of(call, call.attributes.integer(0), call.in[0].geometry->rank());
  return select(call, work, static_cast<int>(dim), call.in.subspan(1, 1), {&dim, 1}, false);
}

// Picks from all elements of x, taken as one line.
Status take(KernelCall& call, Work& work) {
  const TensorArg &x = call.in[0], &index = call.in[1];
  if (x.geometry->numel() == 0) return not_on_device("an empty tensor");
  RowMajorCall memory(call, work);
  const Geometry line(Dims{x.geometry->numel()});
  TensorArg flat = x;
  flat.data = const_cast<void*>(memory.read(x));
  flat.geometry = &line;
  TT_RETURN_IF_ERROR(memory.status());
  const Pick one{&index, index.geometry->strides, 0};
  return pick(call, work, flat, Dims(index.geometry->rank(), 0), {&one, 1}, true);
}

Status embedding(KernelCall& call, Work& work) {
  const std::int64_t dim = 0;
  return select(call, work, 0, call.in.subspan(1, 1), {&dim, 1}, false);
}

// Supports only indices of adjacent dimensions; for other indices the dimensions of the indices
// come first in the result.
Status index(KernelCall& call, Work& work) {
  const std::span<const std::int64_t> dims = call.attributes.ints(0);
  const auto indices = call.in.subspan(1);
  if (dims.empty() || indices.size() != dims.size()) return not_on_device("no indices");
  for (std::size_t j = 1; j < dims.size(); ++j) {
    if (dims[j] != dims[j - 1] + 1) {
      return not_on_device("indices of dimensions that are not adjacent");
    }
  }
  return select(call, work, static_cast<int>(dims[0]), indices, dims, true);
}

}  // namespace

Status need_flag(KernelCall& call, Work& work) {
  if (work.flag == nullptr) work.flag = call.scratch.allocate(sizeof(std::int32_t));
  return work.flag == nullptr ? out_of_scratch(call.op.name, sizeof(std::int32_t)) : Status();
}

Status describe_check(KernelCall& call, const TensorArg& values, bool zero, std::int64_t least,
                      std::int64_t most, Work& work) {
  if (!core::is_integral(values.dtype) && !(zero && values.dtype == core::DType::kBool)) {
    return not_on_device("an index that is no integer");
  }
  TT_RETURN_IF_ERROR(need_flag(call, work));
  const Geometry& g = *values.geometry;
  const Walked walked(g.shape, {&g.strides, 1});
  if (walked.count == 0) return {};
  if (const core::Bounds* known = values.bounds) {
    if (zero ? known->without_zero(values.dtype) : known->within(values.dtype, least, most))
      return {};
  }
  work.checks = true;
  if (!zero && values.bounds != nullptr && values.whole) {
    work.proofs.push_back({values.bounds, values.dtype, least, most});
  }
  CheckGraph graph;
  graph.dtype = values.dtype;
  graph.zero = zero;
  graph.wide = walked.wide();
  graph.axes = static_cast<std::uint8_t>(walked.axes);
  Launch launch;
  if (!threads_for(walked.count, 1, launch.shape)) return not_on_device("too many elements");
  Params params;
  params.put(work.flag);
  params.put(walked.count);
  walked.put_divisors(params);
  params.put(values.first());
  walked.put_strides(params, 0);
  params.put(least);
  params.put(most);
  launch.key = graph.key();
  launch.params = params.take();
  work.launches.push_back(std::move(launch));
  return {};
}

void add_index_kernels(DeviceTable& table) {
  table.add("gather", Skeleton::kIndex, gather);
  table.add("index_select", Skeleton::kIndex, index_select);
  table.add("embedding", Skeleton::kIndex, embedding);
  table.add("index", Skeleton::kIndex, index);
  table.add("take", Skeleton::kIndex, take);
}

}  // namespace teletensor::backends::cuda
