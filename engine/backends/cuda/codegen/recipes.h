// Recipes: kernels that call one function template of the texts under text/, with types and an
// option filled in. They serve ops with a fixed formula: pooling, gates, optimizer steps, norms,
// losses.
#pragma once

#include <string>
#include <string_view>

#include "engine/backends/cuda/codegen/params.h"
#include "engine/backends/cuda/codegen/shapes.h"
#include "engine/backends/cuda/device_table.h"

namespace teletensor::backends::cuda {

enum class Recipe : std::uint8_t {
  kMaxPool,
  kMeanPool,
  kMeanPoolBackward,
  kMaxUnpool,
  kLstmGates,
  kLstmGatesBackward,
  kGruGates,
  kGruGatesBackward,
  kRange,
  kTriangle,
  kOneHot,
  kStep,
  kHyper,
  kFound,
  kLayerNorm,
  kLayerNormInput,
  kLayerNormSums,
  kLayerNormWeights,
  kChannelLeaves,
  kChannelSums,
  kChannelApply,
  kChannelGradient,
  kLosses,
  kLossLeaves,
  kArrayLeaves,
  kPartSums,
  kLossTotal,
  kCheckUnit,
  kMseGradient,
  kCheckClasses,
  kClassDivisor,
  kCrossEntropyLines,
  kCrossEntropyGradient,
  kNllLines,
  kNllGradient,
  kChainLinks,
  kChainAdd,
  kChainCopy,
  kScatterLine,
  kJoinPlaces,
  kConvTile,
  kSliceSums,
  kImageColumns,
  kColumnsImage,
  kAttention,
  kAttentionDots,
  kAttentionKeys,
  kAttentionQueries,
  kTensorAttention,
  kTensorAttentionLines,
  kTensorAttentionKeys,
  kTensorAttentionQueries,
  kScanLine,
  kSortRuns,
  kSortMerge,
  kSortTake,
  kScanPieces,
  kScanCarries,
  kSelectCounts,
  kSelectStarts,
  kSelectPlaces,
  kSelectPack,
  kSelectSpread,
  kSearchPlace,
  kRowsMerge,
};

// The properties of a launch that determine the source text of its kernel.
struct RecipeGraph {
  Recipe recipe = Recipe::kRange;
  core::DType types[3] = {core::DType::kF32, core::DType::kF32, core::DType::kF32};
  std::uint8_t option = 0;

  std::string key() const;
  static RecipeGraph of_key(std::string_view key);
};

KernelSource print_recipe(const RecipeGraph& graph);

// The launch for params.n > 0 tasks. Depending on the recipe, a task is a thread, a block, or a
// group of a block's threads.
core::Status recipe_shape(const RecipeGraph& graph, std::int64_t tasks, LaunchShape& shape);
template <class Call>
core::Status add_recipe(Work& work, const RecipeGraph& graph, const Call& params) {
  if (params.n <= 0) return {};
  static_assert(sizeof(Call) <= kMaxParameterBytes);
  Launch launch;
  TT_RETURN_IF_ERROR(recipe_shape(graph, params.n, launch.shape));
  launch.key = graph.key();
  Params bytes;
  bytes.put(params);
  launch.params = bytes.take();
  work.launches.push_back(std::move(launch));
  return {};
}

// Provides the operands and results of a call as recipes need them: row-major and of a given dtype.
// Tensors with another layout or dtype are copied by loops, before and after the recipes.
class RowMajorCall {
 public:
  RowMajorCall(KernelCall& call, Work& work) : call_(call), work_(work) {}
  // Returns null for an absent operand.
  const void* read(const TensorArg& arg) { return read(arg, arg.dtype); }
  const void* read(const TensorArg& arg, core::DType dtype);
  void* write(const TensorArg& arg) { return write(arg, arg.dtype); }
  void* write(const TensorArg& arg, core::DType dtype);
  // Allocates from the call's scratch memory.
  void* room(std::int64_t elements, std::size_t size);
  const core::Status& status() const { return status_; }
  // Called after the recipes: copies the results to their destinations.
  core::Status store();
  // Adds the last recipe of a call, and then store().
  template <class Call>
  core::Status finish(const RecipeGraph& graph, const Call& params) {
    TT_RETURN_IF_ERROR(status_);
    TT_RETURN_IF_ERROR(add_recipe(work_, graph, params));
    return store();
  }

 private:
  struct Away {
    const TensorArg* home;
    core::DType dtype;
    void* memory;
  };
  KernelCall& call_;
  Work& work_;
  core::Status status_;
  std::vector<Away> away_;
};

// The dtype in which elements of `dtype` are computed if integers are only added and multiplied.
core::DType modular_of(core::DType dtype);
// The dtype for floating-point results: f64 for f64, and f32 for all other dtypes.
core::DType float_of(core::DType dtype);

}  // namespace teletensor::backends::cuda
