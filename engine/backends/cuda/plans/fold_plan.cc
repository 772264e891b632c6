#include "engine/backends/cuda/plans/fold_plan.h"

#include <algorithm>
#include <cmath>

#include "engine/backends/cpu/reduction/reduce_simd.h"
#include "engine/backends/cuda/codegen/params.h"
#include "engine/backends/cuda/codegen/shapes.h"
#include "engine/backends/cuda/describe.h"
#include "engine/backends/scratch_bytes.h"

namespace teletensor::backends::cuda {
namespace {

using core::Status;
using cpu::Axis;
using cpu::ReducePlan;
using Stage = FoldGraph::Stage;

// With so many results one thread for each is enough.
constexpr std::int64_t kManyOutputs = 1 << 12;
constexpr std::int64_t kFewLeaves = 4;

bool far(const Axis* axes, int n, std::int64_t Axis::*stride) {
  std::int64_t last = 0;
  for (int i = 0; i < n; ++i) {
    if (axes[i].*stride < 0) return true;
    last += (axes[i].size - 1) * (axes[i].*stride);
  }
  return last >= kNarrowLimit;
}

bool wide(const ReducePlan& plan) {
  return plan.count >= kNarrowLimit || plan.outputs >= kNarrowLimit ||
         far(plan.kept, plan.kept_count, &Axis::in) ||
         far(plan.kept, plan.kept_count, &Axis::out) ||
         far(plan.reduced, plan.reduced_count, &Axis::in);
}

// Decides as Reduction does on the CPU, because the order of the additions determines the bits.
bool goes_across(const ReducePlan& plan) {
  if (plan.kept_count == 0) return false;
  const Axis& columns = plan.kept[plan.kept_count - 1];
  if (columns.size < 4) return false;
  return plan.count <= 32 ||
         std::abs(columns.in) < std::abs(plan.reduced[plan.reduced_count - 1].in);
}

// The start of the kernel's parameters, in the layout that print_fold.cc declares.
struct FoldParams {
  const void* in = nullptr;
  void* out = nullptr;
  void* partial = nullptr;
  const void* center = nullptr;
  void* places = nullptr;
  std::int64_t outputs = 0, count = 0, leaves = 1, leaf_step = 0, output_step = 0;
  std::int64_t inner = 1, from_leaf = 0, from_output = 0;
  void* merged = nullptr;
  double number = 0, power = 0;
};

void put_divisors(Params& params, const Axis* axes, int n, bool wide) {
  for (int i = 0; i < std::max(n, 1); ++i) {
    const std::int64_t size = n == 0 ? 1 : axes[i].size;
    if (wide) {
      params.put(size);
      params.put(std::int64_t{0});
    } else {
      params.put(divisor_of(size));
    }
  }
}
void put_strides(Params& params, const Axis* axes, int n, std::int64_t Axis::*stride) {
  for (int i = 0; i < std::max(n, 1); ++i) params.put(n == 0 ? std::int64_t{0} : axes[i].*stride);
}

std::vector<std::byte> pack(const FoldParams& p, const ReducePlan& plan, bool wide) {
  Params params;
  params.put(p);
  put_divisors(params, plan.kept, plan.kept_count, wide);
  put_strides(params, plan.kept, plan.kept_count, &Axis::in);
  put_strides(params, plan.kept, plan.kept_count, &Axis::out);
  put_divisors(params, plan.reduced, plan.reduced_count, wide);
  put_strides(params, plan.reduced, plan.reduced_count, &Axis::in);
  return params.take();
}

}  // namespace

Status describe_fold(const TensorArg& in, const TensorArg& out, const ReducePlan& plan,
                     const FoldPass& pass, Scratch& scratch, Work& work) {
  if (plan.outputs == 0) return {};
  if (plan.count == 0) return not_on_device("an empty tensor");
  ReducePlan layout = plan;
  FoldGraph graph;
  graph.in = in.dtype;
  graph.compute = pass.compute;
  graph.out = pass.to != nullptr ? pass.compute : out.dtype;
  graph.op = pass.op;
  graph.map = pass.map;
  graph.finish = pass.finish;
  if (pass.to != nullptr) {  // results are in the plan's order
    std::int64_t stride = 1;
    for (int i = layout.kept_count - 1; i >= 0; --i) {
      layout.kept[i].out = stride;
      stride *= layout.kept[i].size;
    }
  }
  graph.wide = wide(layout);
  graph.kept = static_cast<std::uint8_t>(layout.kept_count);
  graph.reduced = static_cast<std::uint8_t>(layout.reduced_count);
  const std::size_t element = size_of_value(pass.op, pass.compute);
  const std::int64_t merged_at_once = merge_block(pass.op, pass.compute);
  const bool across = goes_across(layout);
  graph.stage = across ? Stage::kAcross : Stage::kAlong;
  const std::int64_t leaf = across ? cpu::kLeafRows : cpu::kLeaf;

  FoldParams p;
  p.in = in.first();
  p.out = pass.to != nullptr ? pass.to : out.first();
  p.center = pass.center;
  p.places = pass.places;
  p.outputs = layout.outputs;
  p.count = layout.count;
  p.leaves = (layout.count + leaf - 1) / leaf;
  p.leaf_step = across ? layout.outputs : 1;
  p.output_step = across ? 1 : p.leaves;
  p.inner = layout.reduced_count > 0 ? layout.reduced[layout.reduced_count - 1].size : 1;
  p.number = pass.number;
  p.power = pass.power;
  graph.last = p.leaves == 1;
  const auto room = [&](std::int64_t leaves) -> Status {
    const std::size_t bytes = scratch_bytes(p.outputs, leaves, element);
    p.partial = scratch.allocate(bytes);
    return p.partial == nullptr ? out_of_scratch("fold", bytes) : Status();
  };
  if (!graph.last) TT_RETURN_IF_ERROR(room(p.leaves));
  const auto launch = [&](std::int64_t threads) -> Status {
    Launch one;
    if (!threads_for(threads, 1, one.shape)) return not_on_device("too many results");
    one.key = graph.key();
    one.params = pack(p, layout, graph.wide);
    work.launches.push_back(std::move(one));
    return {};
  };
  const std::int64_t tasks = p.outputs * p.leaves;
  const auto lanes = static_cast<std::int64_t>(256 / core::size_of(pass.compute));
  TT_RETURN_IF_ERROR(launch(across ? tasks : tasks * lanes));
  // Adds launches that merge the values of leaves until there is one value for each result.
  while (!graph.last) {
    p.merged = p.partial;
    p.from_leaf = p.leaf_step;
    p.from_output = p.output_step;
    p.count = p.leaves;
    const bool by_threads = p.outputs >= kManyOutputs || p.leaves <= kFewLeaves;
    graph.stage = by_threads ? Stage::kMergeThread : Stage::kMergeBlock;
    graph.map = FoldMap::kNone;
    graph.reduced = 1;
    layout.reduced_count = 0;
    p.leaves = by_threads ? 1 : (p.count + merged_at_once - 1) / merged_at_once;
    graph.last = p.leaves == 1;
    const std::int64_t groups = p.leaves;
    p.leaf_step = 1;
    p.output_step = groups;
    if (!graph.last) TT_RETURN_IF_ERROR(room(groups));
    TT_RETURN_IF_ERROR(
        launch(by_threads ? p.outputs : p.outputs * groups * std::int64_t{kBlockThreads}));
  }
  return {};
}

}  // namespace teletensor::backends::cuda
