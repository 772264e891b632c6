#include "engine/backends/cuda/codegen/recipes.h"

#include <algorithm>

#include "engine/backends/cuda/codegen/key.h"
#include "engine/backends/cuda/codegen/names.h"
#include "engine/backends/cuda/describe.h"
#include "engine/backends/scratch_bytes.h"

namespace teletensor::backends::cuda {
namespace {

using core::DType;
using core::Status;

// How the tasks of a recipe are distributed: one thread each, one block each, as many threads each
// as the CPU's sums have lanes, or as many such groups of threads as the option says.
enum class Spread : std::uint8_t { kThreads, kBlocks, kLanes, kGroups };
struct Facts {
  const char* name;    // name of the function, in namespace tt
  const char* params;  // name of the parameter struct, in namespace calls
  int types = 0;
  bool option = false;
  Spread spread = Spread::kThreads;
};

Facts facts_of(Recipe recipe) {
  switch (recipe) {
    case Recipe::kMaxPool:
      return {"max_pool", "PoolCall", 2, true};
    case Recipe::kMeanPool:
      return {"mean_pool", "PoolCall", 2, true};
    case Recipe::kMeanPoolBackward:
      return {"mean_pool_backward", "PoolCall", 2, true};
    case Recipe::kMaxUnpool:
      return {"max_unpool", "UnpoolCall", 2, false, Spread::kBlocks};
    case Recipe::kLstmGates:
      return {"lstm_gates", "GateCall", 2};
    case Recipe::kLstmGatesBackward:
      return {"lstm_gates_backward", "GateCall", 2};
    case Recipe::kGruGates:
      return {"gru_gates", "GateCall", 2};
    case Recipe::kGruGatesBackward:
      return {"gru_gates_backward", "GateCall", 2};
    case Recipe::kRange:
      return {"range", "RangeCall", 1, true};
    case Recipe::kTriangle:
      return {"triangle", "TriangleCall", 1, true};
    case Recipe::kOneHot:
      return {"one_hot", "OneHotCall"};
    case Recipe::kStep:
      return {"optimizer_step", "StepCall", 2, true, Spread::kBlocks};
    case Recipe::kHyper:
      return {"make_hyper", "HyperCall"};
    case Recipe::kFound:
      return {"found_to", "FoundCall", 1};
    case Recipe::kLayerNorm:
      return {"layer_norm", "LayerNormCall", 2, false, Spread::kLanes};
    case Recipe::kLayerNormInput:
      return {"layer_norm_input", "LayerNormCall", 2, false, Spread::kLanes};
    case Recipe::kLayerNormSums:
      return {"layer_norm_sums", "LayerNormCall", 2};
    case Recipe::kLayerNormWeights:
      return {"layer_norm_weights", "LayerNormCall", 2};
    case Recipe::kChannelLeaves:
      return {"channel_leaves", "ChannelCall", 2, true, Spread::kLanes};
    case Recipe::kChannelSums:
      return {"channel_sums", "ChannelCall", 2, true};
    case Recipe::kChannelApply:
      return {"channel_apply", "ChannelCall", 2};
    case Recipe::kChannelGradient:
      return {"channel_gradient", "ChannelCall", 2};
    case Recipe::kLosses:
      return {"losses", "LossCall", 2, true};
    case Recipe::kLossLeaves:
      return {"loss_leaves", "LossCall", 2, true, Spread::kLanes};
    case Recipe::kArrayLeaves:
      return {"array_leaves", "LossCall", 2, false, Spread::kLanes};
    case Recipe::kPartSums:
      return {"part_sums", "LossCall", 2};
    case Recipe::kLossTotal:
      return {"loss_total", "LossCall", 2};
    case Recipe::kCheckUnit:
      return {"check_unit", "LossCall", 1};
    case Recipe::kMseGradient:
      return {"mse_gradient", "LossCall", 2};
    case Recipe::kCheckClasses:
      return {"check_classes", "ClassCall"};
    case Recipe::kClassDivisor:
      return {"class_divisor", "ClassCall", 1, false, Spread::kBlocks};
    case Recipe::kCrossEntropyLines:
      return {"cross_entropy_lines", "ClassCall", 2, true, Spread::kGroups};
    case Recipe::kCrossEntropyGradient:
      return {"cross_entropy_gradient", "ClassCall", 2, true, Spread::kGroups};
    case Recipe::kNllLines:
      return {"nll_lines", "ClassCall", 2};
    case Recipe::kNllGradient:
      return {"nll_gradient", "ClassCall", 2};
    case Recipe::kChainLinks:
      return {"chain_links", "ChainCall"};
    case Recipe::kChainAdd:
      return {"chain_add", "ChainCall", 1, true};
    case Recipe::kChainCopy:
      return {"chain_copy", "ChainCall", 1};
    case Recipe::kScatterLine:
      return {"scatter_line", "ScatterCall", 1, true};
    case Recipe::kJoinPlaces:
      return {"join_places", "JoinCall"};
    case Recipe::kConvTile:
      return {"conv_tile", "ConvCall", 2, true, Spread::kBlocks};
    case Recipe::kSliceSums:
      return {"slice_sums", "ConvCall", 2};
    case Recipe::kImageColumns:
      return {"image_columns", "ConvCall", 1};
    case Recipe::kColumnsImage:
      return {"columns_image", "ConvCall", 2};
    case Recipe::kAttention:
      return {"attention", "AttentionCall", 1, true, Spread::kBlocks};
    case Recipe::kAttentionDots:
      return {"attention_dots", "AttentionCall", 1};
    case Recipe::kAttentionKeys:
      return {"attention_keys", "AttentionCall", 1, true, Spread::kBlocks};
    case Recipe::kAttentionQueries:
      return {"attention_queries", "AttentionCall", 1, true, Spread::kBlocks};
    case Recipe::kTensorAttention:
      return {"tensor_attention", "AttentionCall", 1, true, Spread::kBlocks};
    case Recipe::kTensorAttentionLines:
      return {"tensor_attention_lines", "AttentionCall", 1, false, Spread::kBlocks};
    case Recipe::kTensorAttentionKeys:
      return {"tensor_attention_keys", "AttentionCall", 1, true, Spread::kBlocks};
    case Recipe::kTensorAttentionQueries:
      return {"tensor_attention_queries", "AttentionCall", 1, true, Spread::kBlocks};
    case Recipe::kScanLine:
      return {"scan_line", "ScanCall", 2, true};
    case Recipe::kSortRuns:
      return {"sort_runs", "SortCall", 2, true, Spread::kBlocks};
    case Recipe::kSortMerge:
      return {"sort_merge", "SortCall", 1};
    case Recipe::kSortTake:
      return {"sort_take", "SortCall", 2};
    case Recipe::kScanPieces:
      return {"scan_pieces", "ScanCall", 2, true};
    case Recipe::kScanCarries:
      return {"scan_carries", "ScanCall", 1, true};
    case Recipe::kSelectCounts:
      return {"select_counts", "SelectCall", 0, false, Spread::kBlocks};
    case Recipe::kSelectStarts:
      return {"select_starts", "SelectCall", 0, true, Spread::kBlocks};
    case Recipe::kSelectPlaces:
      return {"select_places", "SelectCall", 0, false, Spread::kBlocks};
    case Recipe::kSelectPack:
      return {"select_pack", "SelectCall", 1, false, Spread::kBlocks};
    case Recipe::kSelectSpread:
      return {"select_spread", "SelectCall", 1, false, Spread::kBlocks};
    case Recipe::kSearchPlace:
      return {"search_place", "SearchCall", 2};
    case Recipe::kRowsMerge:
      return {"rows_merge", "RowsCall", 1};
  }
  return {};
}

// Threads of a block and minimum number of blocks per multiprocessor. The latter bounds the
// registers of a thread; without it the compiler aims at more blocks and spills a register or two.
std::string bounds_of(const RecipeGraph& graph) {
  bool large = false;
  switch (graph.recipe) {
    case Recipe::kAttention:
    case Recipe::kAttentionKeys:
    case Recipe::kAttentionQueries:
      large = graph.option > 1;  // heads of more than 64 columns have two tiles of sums
      break;
    case Recipe::kTensorAttention:
      large = graph.option > 2;
      break;
    case Recipe::kTensorAttentionQueries:
      large = graph.option > 1;
      break;
    case Recipe::kTensorAttentionKeys:
      large = true;
      break;
    case Recipe::kCrossEntropyLines:
    // For long lines more threads hide the latency of the memory.
    case Recipe::kCrossEntropyGradient:
      if (graph.option > 1 && graph.types[1] == DType::kF32) return "__launch_bounds__(256, 5) ";
      break;
    default:
      break;
  }
  return large ? "__launch_bounds__(256, 1) " : "__launch_bounds__(256, 2) ";
}

// Lanes of the CPU's sums in a leaf.
std::int64_t lanes_of(const RecipeGraph& graph) {
  return static_cast<std::int64_t>(256 / core::size_of(graph.types[1]));
}

std::int64_t threads_of(const RecipeGraph& graph, Spread spread) {
  switch (spread) {
    case Spread::kThreads:
      return 1;
    case Spread::kBlocks:
      return kBlockThreads;
    case Spread::kLanes:
      return lanes_of(graph);
    case Spread::kGroups:
      return lanes_of(graph) * graph.option;
  }
  return 1;
}

}  // namespace

Status recipe_shape(const RecipeGraph& graph, std::int64_t tasks, LaunchShape& shape) {
  const std::int64_t threads = threads_of(graph, facts_of(graph.recipe).spread);
  if (tasks > (kMaxBlocks * kBlockThreads) / threads || !threads_for(tasks * threads, 1, shape)) {
    return not_on_device("too many tasks");
  }
  return {};
}

KernelSource print_recipe(const RecipeGraph& graph) {
  const Facts facts = facts_of(graph.recipe);
  KernelSource source;
  source.name = std::string("tt_") + facts.name;
  std::string arguments;
  for (int i = 0; i < facts.types; ++i) {
    arguments += (i > 0 ? ", " : "") + type_name_of(graph.types[i]);
  }
  if (facts.option) {
    arguments += (facts.types > 0 ? ", " : "") + std::to_string(graph.option);
  }
  if (!arguments.empty()) arguments = "<" + arguments + ">";
  const bool threads = facts.spread == Spread::kThreads;
  source.text = std::string("using Params = tt::calls::") + facts.params +
                ";\nextern \"C\" __global__ void " + bounds_of(graph) + source.name +
                "(const Params p) {\n";
  if (threads) {
    source.text +=
        "  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x;\n"
        "  if (at >= p.n) return;\n";
  }
  source.text += std::string("  tt::") + facts.name + arguments + (threads ? "(p, at);" : "(p);") +
                 "\n}\n" + (threads ? "TT_KERNEL(" : "TT_KERNEL_WITH_BARRIERS(") + source.name +
                 ")\n";
  return source;
}

std::string RecipeGraph::key() const {
  const Facts facts = facts_of(recipe);
  KeyWriter key(KernelKind::kRecipe);
  key.put(recipe);
  for (int i = 0; i < facts.types; ++i) key.put(types[i]);
  key.put(facts.option ? option : std::uint8_t{0});
  return key.take();
}

RecipeGraph RecipeGraph::of_key(std::string_view text) {
  KeyReader key(text);
  key.get<KernelKind>();
  RecipeGraph graph;
  graph.recipe = key.get<Recipe>();
  const Facts facts = facts_of(graph.recipe);
  for (int i = 0; i < facts.types; ++i) graph.types[i] = key.get<DType>();
  graph.option = key.get<std::uint8_t>();
  return graph;
}

void* RowMajorCall::room(std::int64_t elements, std::size_t size) {
  const std::size_t bytes = scratch_bytes(std::max<std::int64_t>(elements, 1), size);
  void* const memory = call_.scratch.allocate(bytes);
  if (memory == nullptr && status_.ok()) status_ = out_of_scratch(call_.op.name, bytes);
  return memory;
}

const void* RowMajorCall::read(const TensorArg& arg, DType dtype) {
  if (arg.kind == TensorArg::Kind::kAbsent) return nullptr;
  const bool tensor = arg.kind == TensorArg::Kind::kTensor;
  if (tensor && arg.dtype == dtype && arg.geometry->contiguous()) return arg.first<const void>();
  const core::Geometry dense(tensor ? arg.geometry->shape : core::Dims());
  TensorArg copy;
  copy.kind = TensorArg::Kind::kTensor;
  copy.data = room(dense.numel(), core::size_of(dtype));
  copy.dtype = dtype;
  copy.geometry = &dense;
  if (status_.ok() && dense.numel() > 0) status_ = describe_copy(call_, arg, copy, work_);
  return copy.data;
}

void* RowMajorCall::write(const TensorArg& arg, DType dtype) {
  if (arg.dtype == dtype && arg.geometry->contiguous()) return arg.first();
  void* const memory = room(arg.geometry->numel(), core::size_of(dtype));
  away_.push_back({&arg, dtype, memory});
  return memory;
}

Status RowMajorCall::store() {
  for (const Away& each : away_) {
    const core::Geometry dense(each.home->geometry->shape);
    if (dense.numel() == 0) continue;
    TensorArg from = *each.home;
    from.data = each.memory;
    from.dtype = each.dtype;
    from.geometry = &dense;
    TT_RETURN_IF_ERROR(describe_copy(call_, from, *each.home, work_));
  }
  return {};
}

DType modular_of(DType dtype) {
  return dtype == DType::kF64 ? DType::kF64 : core::is_floating(dtype) ? DType::kF32 : DType::kI64;
}
DType float_of(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

}  // namespace teletensor::backends::cuda
