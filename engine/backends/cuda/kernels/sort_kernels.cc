// Device kernels for sorting lines: blocks sort runs of 512 elements, which are then merged. If few
// elements of a line are wanted, only that number of elements is kept of each run.
#include <utility>

#include "engine/backends/cuda/codegen/recipes.h"
#include "engine/backends/cuda/describe.h"
#include "engine/backends/cuda/text/base/calls.h"

namespace teletensor::backends::cuda {
namespace {

using core::DType;
using core::Status;

constexpr std::int64_t kRun = 512;  // same value as in text/sort.cuh
constexpr std::int64_t kFew = 256;  // maximum number of elements that are kept of a run
constexpr std::int64_t kMaxLength = (std::int64_t{1} << 32) - 1;

DType key_type(DType dtype) {
  return core::is_floating(dtype) ? float_of(dtype)
         : dtype == DType::kU64   ? DType::kU64
                                  : DType::kI64;
}

std::int64_t runs_of(std::int64_t length) { return (length + kRun - 1) / kRun; }

// The part of each sorted line that is wanted: `taken` elements from position `first` on.
struct Wanted {
  std::int64_t dim = 0;
  bool whole = false;  // all elements are one line
  bool descending = false, nan_wins = false;
  std::int64_t first = 0, taken = 0;
  const TensorArg *values = nullptr, *places = nullptr;
};

// Adds the launches that turn the elements of the lines into items: all of them sorted, or with
// `few` (p.keep) only the first ones. Afterwards p.from contains p.kept items of each line.
Status order(RowMajorCall& memory, Work& work, const RecipeGraph& runs, bool few,
             calls::SortCall& p) {
  const std::int64_t lines = p.n, length = p.length;
  const std::size_t size = core::size_of(runs.types[0]) > 4 ? 16 : 8;
  void* room[2] = {memory.room(lines * length, size), memory.room(lines * length, size)};
  TT_RETURN_IF_ERROR(memory.status());
  const auto turn = [&] {
    p.from = std::exchange(room[0], room[1]);
    room[1] = const_cast<void*>(p.from);
  };
  RecipeGraph graph = runs;
  std::int64_t left = length;
  while (true) {
    p.length = left;
    p.n = lines * runs_of(left);
    p.to = room[0];
    TT_RETURN_IF_ERROR(add_recipe(work, graph, p));
    turn();
    graph.option = 0;  // later passes read items and not the elements themselves
    const std::int64_t last = left - (runs_of(left) - 1) * kRun;
    const bool one = runs_of(left) == 1;
    left = (runs_of(left) - 1) * p.keep + std::min(last, p.keep);
    if (one || !few) break;
  }
  p.length = left;
  p.n = lines * left;
  for (p.width = kRun; !few && p.width < left; p.width *= 2) {
    p.to = room[0];
    TT_RETURN_IF_ERROR(add_recipe(work, {Recipe::kSortMerge, {graph.types[0]}}, p));
    turn();
  }
  p.kept = left;
  p.length = length;
  return {};
}

Status put_in_order(KernelCall& call, Work& work, Wanted wanted) {
  const TensorArg& x = call.in[0];
  const core::Dims& shape = x.geometry->shape;
  const std::int64_t count = x.geometry->numel();
  const int rank = shape.size();
  const int dim = dim_of(call, wanted.dim, rank);
  if (count == 0 || core::is_complex(x.dtype)) return not_on_device("an empty or complex tensor");
  calls::SortCall p = {};
  p.length = wanted.whole ? count : rank == 0 ? 1 : shape[dim];
  if (p.length >= kMaxLength) return not_on_device("a line that is too long");
  p.step = 1;
  for (int d = wanted.whole ? rank : dim + 1; d < rank; ++d) p.step *= shape[d];
  p.n = count / p.length;
  p.descending = wanted.descending;
  p.nan_wins = wanted.nan_wins && core::is_floating(x.dtype);
  p.first = wanted.first;
  p.taken = wanted.taken;
  if (p.taken == 0) return {};
  const bool few = p.first == 0 && p.taken <= kFew && p.taken < p.length && !p.nan_wins;
  p.keep = few ? p.taken : kRun;
  const std::int64_t lines = p.n;
  RowMajorCall memory(call, work);
  p.x = memory.read(x);
  if (wanted.values) p.y = memory.write(*wanted.values);
  if (wanted.places) p.places = static_cast<std::int64_t*>(memory.write(*wanted.places));
  const DType compute = key_type(x.dtype);
  TT_RETURN_IF_ERROR(order(memory, work, {Recipe::kSortRuns, {x.dtype, compute}, 1}, few, p));
  p.n = lines * p.taken;
  return memory.finish({Recipe::kSortTake, {x.dtype, compute}}, p);
}

std::int64_t length_of(const KernelCall& call, std::int64_t dim) {
  const core::Dims& shape = call.in[0].geometry->shape;
  if (shape.empty()) return 1;
  return shape[dim_of(call, dim, shape.size())];
}

Status sort(KernelCall& call, Work& work) {
  const bool with_values = call.out.size() == 2;
  const std::int64_t dim = call.attributes.integer(0);
  return put_in_order(call, work,
                      {.dim = dim,
                       .descending = call.attributes.boolean(1),
                       .taken = length_of(call, dim),
                       .values = with_values ? &call.out[0] : nullptr,
                       .places = &call.out[with_values ? 1 : 0]});
}

Status topk(KernelCall& call, Work& work) {
  return put_in_order(call, work,
                      {.dim = call.attributes.integer(1),
                       .descending = call.attributes.boolean(2),
                       .taken = call.attributes.integer(0),
                       .values = &call.out[0],
                       .places = &call.out[1]});
}

Status kthvalue(KernelCall& call, Work& work) {
  return put_in_order(call, work,
                      {.dim = call.attributes.integer(1),
                       .first = call.attributes.integer(0) - 1,
                       .taken = 1,
                       .values = &call.out[0],
                       .places = &call.out[1]});
}

Status median_dim(KernelCall& call, Work& work) {
  const std::int64_t dim = call.attributes.integer(0);
  return put_in_order(call, work,
                      {.dim = dim,
                       .nan_wins = true,
                       .first = (length_of(call, dim) - 1) / 2,
                       .taken = 1,
                       .values = &call.out[0],
                       .places = &call.out[1]});
}

Status median(KernelCall& call, Work& work) {
  return put_in_order(call, work,
                      {.whole = true,
                       .nan_wins = true,
                       .first = (call.in[0].geometry->numel() - 1) / 2,
                       .taken = 1,
                       .values = &call.out[0]});
}

}  // namespace

void add_sort_kernels(DeviceTable& table) {
  constexpr Skeleton kScan = Skeleton::kScan;
  table.add("sort", kScan, sort);
  table.add("argsort", kScan, sort);
  table.add("topk", kScan, topk);
  table.add("kthvalue", kScan, kthvalue);
  table.add("median_dim", kScan, median_dim);
  table.add("median", kScan, median);
}

}  // namespace teletensor::backends::cuda
