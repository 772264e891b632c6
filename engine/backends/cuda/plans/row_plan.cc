#include "engine/backends/cuda/plans/row_plan.h"

#include <algorithm>

#include "engine/backends/cpu/access/block_io.h"
#include "engine/backends/cuda/codegen/key.h"
#include "engine/backends/cuda/codegen/names.h"
#include "engine/backends/cuda/codegen/params.h"
#include "engine/backends/cuda/codegen/shapes.h"
#include "engine/backends/cuda/describe.h"

namespace teletensor::backends::cuda {
namespace {

using core::DType;
using core::Geometry;
using core::Status;

constexpr std::int64_t kShortRow = 512;
constexpr int kFewHeld = 4, kMaxHeld = 16;  // maximum number of elements that a thread keeps

constexpr bool two_operands(RowRecipe recipe) {
  return recipe == RowRecipe::kSoftmaxBackward || recipe == RowRecipe::kLogSoftmaxBackward;
}

template <RowRecipe kRecipe>
Status rows(KernelCall& call, Work& work) {
  constexpr int kOperands = two_operands(kRecipe) ? 2 : 1, kTensors = kOperands + 1;
  const TensorArg* tensors[3] = {&call.in[0], &call.in[kOperands - 1], &call.out[0]};
  if (kOperands == 1) tensors[1] = &call.out[0];
  const Geometry& shape = *call.out[0].geometry;
  const std::int64_t count = shape.numel();
  if (count == 0) return {};
  const int rank = shape.rank(), dim = dim_of(call, call.attributes.integer(0), rank);
  const std::int64_t length = rank == 0 ? 1 : shape.shape[dim];
  // The other dimensions; adjacent ones are merged if all tensors traverse them uniformly.
  int axes = 0;
  std::int64_t sizes[core::kMaxRank], strides[3][core::kMaxRank], row[3] = {};
  for (int d = 0; d < rank; ++d) {
    if (d == dim) {
      for (int i = 0; i < kTensors; ++i) row[i] = tensors[i]->geometry->strides[d];
      continue;
    }
    if (shape.shape[d] == 1) continue;
    bool one = axes > 0;
    for (int i = 0; one && i < kTensors; ++i) {
      one = strides[i][axes - 1] == tensors[i]->geometry->strides[d] * shape.shape[d];
    }
    if (!one) sizes[axes++] = 1;
    sizes[axes - 1] *= shape.shape[d];
    for (int i = 0; i < kTensors; ++i) strides[i][axes - 1] = tensors[i]->geometry->strides[d];
  }
  RowGraph graph;
  graph.recipe = kRecipe;
  graph.in[0] = call.in[0].dtype;
  graph.in[1] = call.in[kOperands - 1].dtype;
  graph.out = call.out[0].dtype;
  graph.short_rows = length <= kShortRow;
  graph.dense = std::all_of(row, row + kTensors, [](std::int64_t stride) { return stride == 1; });
  const std::int64_t lanes = graph.short_rows ? 32 : 256;
  graph.held = length <= lanes * kFewHeld ? kFewHeld : length <= lanes * kMaxHeld ? kMaxHeld : 0;
  graph.whole = length == lanes * graph.held;
  graph.axes = static_cast<std::uint8_t>(axes);
  const std::int64_t number = count / length;
  Launch launch;
  if (!threads_for(number * lanes, 1, launch.shape)) {
    return not_on_device("too many rows");
  }
  Params params;
  for (int i = 0; i < kTensors; ++i) params.put(tensors[i]->first());
  params.put(number);
  params.put(length);
  for (int i = 0; i < kTensors; ++i) params.put(row[i]);
  for (int d = 0; d < std::max(axes, 1); ++d) params.put(axes == 0 ? std::int64_t{1} : sizes[d]);
  for (int i = 0; i < kTensors; ++i) {
    for (int d = 0; d < std::max(axes, 1); ++d) {
      params.put(axes == 0 ? std::int64_t{0} : strides[i][d]);
    }
  }
  launch.key = graph.key();
  launch.params = params.take();
  work.launches.push_back(std::move(launch));
  return {};
}

}  // namespace

KernelSource print_rows(const RowGraph& g) {
  static constexpr const char* kNames[] = {"softmax", "log_softmax", "softmax_backward",
                                           "log_softmax_backward"};
  const bool two = two_operands(g.recipe);
  DType compute = DType::kF32;
  cpu::with_float_type(g.out, [&](auto a) { compute = cpu::kDTypeOf<decltype(a)>; });
  const std::string axes = std::to_string(std::max<int>(g.axes, 1)),
                    lanes = g.short_rows ? "32" : "256", out = type_name_of(g.out);
  KernelSource source;
  source.name = std::string("tt_rows_") + kNames[static_cast<int>(g.recipe)];
  const auto per_tensor = [&](const char* field, const std::string& tail) {
    return "  std::int64_t " + std::string(field) + "0" + tail +
           (two ? ", " + std::string(field) + "1" + tail : "") + ", " + field + "_out" + tail +
           ";\n";
  };
  std::string text = "namespace s = teletensor::ops::scalar;\nusing A = " + compute_name(compute) +
                     ";\nstruct Params {\n  const " + type_name_of(g.in[0]) + "* in0;\n" +
                     (two ? "  const " + type_name_of(g.in[1]) + "* in1;\n" : std::string()) +
                     "  " + out + "* out;\n  std::int64_t rows, length;\n" + per_tensor("row", "") +
                     "  std::int64_t size[" + axes + "];\n" +
                     per_tensor("stride", "[" + axes + "]") +
                     "};\nextern \"C\" __global__ void __launch_bounds__(256) " + source.name +
                     "(const Params p) {\n  constexpr int kLanes = " + lanes +
                     ", kHeld = " + std::to_string(g.held) +
                     ";\n  __shared__ A acc[256];\n"
                     "  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * (256 / "
                     "kLanes) + threadIdx.x / kLanes;\n"
                     "  const std::int64_t n = index < p.rows ? p.length : 0;\n"
                     "  const int lane = threadIdx.x % kLanes;\n"
                     "  std::int64_t rest = n > 0 ? index : 0;\n"
                     "  const auto* x = p.in0;\n  auto* to = p.out;\n";
  if (two) text += "  const auto* z = p.in1;\n";
  for (int d = g.axes - 1; d >= 0; --d) {
    const std::string i = std::to_string(d);
    text += "  { const std::int64_t at = rest % p.size[" + i + "]; rest /= p.size[" + i +
            "]; x += at * p.stride0[" + i + "]; to += at * p.stride_out[" + i + "];" +
            (two ? " z += at * p.stride1[" + i + "];" : "") + " }\n";
  }
  const auto at = [&](const char* tensor) {
    return g.dense ? std::string("[e]") : "[e * p.row" + std::string(tensor) + "]";
  };
  text += std::string("  struct Element {\n    A x") + (two ? ", z" : "") +
          ";\n  };\n"
          "  const auto load = [&](std::int64_t e) -> Element {\n"
          "    return {s::to_compute<A>(x" +
          at("0") + ")" + (two ? ", s::to_compute<A>(z" + at("1") + ")" : "") +
          "};\n  };\n"
          "  tt::Row<Element, kLanes, kHeld, " +
          (g.whole ? "true" : "false") + ", decltype(load)> row(load, n, lane, " +
          (two ? "{A(0), A(0)}" : "{tt::Largest<A>::identity()}") + ");\n";
  const auto read = [](const std::string& body) {
    return "  row.read([&](Element& v) { " + body + " });\n";
  };
  const auto store = [&](const std::string& value) {
    return "  row.store([&](std::int64_t e, Element& v) {\n    to" + at("_out") +
           " = s::from_compute<" + out + ">(" + value + ");\n  });\n";
  };
  const std::string sum = "  A sum = 0;\n",
                    folded = "  sum = tt::fold_row<tt::Sum<A>, kLanes>(acc, sum);\n";
  switch (g.recipe) {
    case RowRecipe::kSoftmax:
    case RowRecipe::kLogSoftmax:
      text += "  A most = tt::Largest<A>::identity();\n" +
              read("most = tt::Largest<A>::one(most, v.x);") +
              "  most = tt::fold_row<tt::Largest<A>, kLanes>(acc, most);\n" + sum;
      if (g.recipe == RowRecipe::kSoftmax) {  // replaces each kept element by its exponential
        text += read("v.x = s::exp(v.x - most); sum += v.x;") + folded +
                "  const A inverse = A(1) / sum;\n" +
                store("(kHeld > 0 ? v.x : s::exp(v.x - most)) * inverse");
      } else {
        text += read("sum += s::exp(v.x - most);") + folded + "  const A log_sum = s::log(sum);\n" +
                store("(v.x - most) - log_sum");
      }
      break;
    case RowRecipe::kSoftmaxBackward:
      text += sum + read("sum += v.x * v.z;") + folded + store("v.z * (v.x - sum)");
      break;
    case RowRecipe::kLogSoftmaxBackward:
      text += sum + read("sum += v.x;") + folded + store("v.x - s::exp(v.z) * sum");
      break;
  }
  source.text = text + "}\nTT_KERNEL_WITH_BARRIERS(" + source.name + ")\n";
  return source;
}

std::string RowGraph::key() const {
  KeyWriter key(KernelKind::kRows);
  key.put(recipe);
  key.put(in[0]);
  key.put(in[1]);
  key.put(out);
  key.put(static_cast<char>(short_rows));
  key.put(held);
  key.put(static_cast<char>(whole));
  key.put(static_cast<char>(dense));
  key.put(axes);
  return key.take();
}

RowGraph RowGraph::of_key(std::string_view text) {
  KeyReader key(text);
  key.get<KernelKind>();
  RowGraph g;
  g.recipe = key.get<RowRecipe>();
  g.in[0] = key.get<DType>();
  g.in[1] = key.get<DType>();
  g.out = key.get<DType>();
  g.short_rows = key.get<char>() != 0;
  g.held = key.get<std::uint8_t>();
  g.whole = key.get<char>() != 0;
  g.dense = key.get<char>() != 0;
  g.axes = key.get<std::uint8_t>();
  return g;
}

void add_row_kernels(DeviceTable& table) {
  table.add("softmax", Skeleton::kRows, rows<RowRecipe::kSoftmax>);
  table.add("log_softmax", Skeleton::kRows, rows<RowRecipe::kLogSoftmax>);
  table.add("softmax_backward", Skeleton::kRows, rows<RowRecipe::kSoftmaxBackward>);
  table.add("log_softmax_backward", Skeleton::kRows, rows<RowRecipe::kLogSoftmaxBackward>);
}

}  // namespace teletensor::backends::cuda
