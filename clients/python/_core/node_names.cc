// Names of tape nodes, as PyTorch gives them: the op's name ("mul" is "MulBackward0"), unless
// PyTorch computes the op by another function, or has several functions for it by their arguments.

#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>

#include "bindings.h"

namespace teletensor::client {
namespace {

using autograd::Node;

// Ops whose node has one other name in PyTorch.
constexpr std::pair<std::string_view, std::string_view> kRenamed[] = {
    {"batch_norm", "NativeBatchNormBackward0"},
    {"cast", "ToCopyBackward0"},
    {"contiguous", "CloneBackward0"},
    {"cross_entropy", "NllLossBackward0"},
    {"dropout", "MulBackward0"},
    {"layer_norm", "NativeLayerNormBackward0"},
    {"logsigmoid", "LogSigmoidBackward0"},
    {"max", "MaxBackward1"},
    {"max_dim", "MaxBackward0"},
    {"median_dim", "MedianBackward1"},
    {"min", "MinBackward1"},
    {"min_dim", "MinBackward0"},
    {"nan_sum", "NansumBackward0"},
    {"norm", "LinalgVectorNormBackward0"},
    {"outer", "MulBackward0"},
    {"relu6", "HardtanhBackward0"},
    {"reshape", "ViewBackward0"},
    {"square", "PowBackward0"},
};

bool is_number(const Node& node, std::size_t i) {
  return i < node.operands.size() && node.operands[i].is_number;
}
int rank(const Node& node, std::size_t i) {
  return i < node.operands.size() ? node.operands[i].layout.geometry.shape.size() : 0;
}

std::string matmul_name(const Node& node) {
  const int a = rank(node, 0), b = rank(node, 1);
  if (a == 1 && b == 1) return "DotBackward0";
  if (a == 2 && b == 1) return "MvBackward0";
  if (a == 2 && b == 2) return "MmBackward0";
  return a == 1 && b == 2 ? "SqueezeBackward4" : "UnsafeViewBackward0";
}

std::string linear_name(const Node& node) {
  const bool bias = node.operands.size() > 2 && !(node.operands[2].layout == core::Layout());
  if (rank(node, 0) == 2) return bias ? "AddmmBackward0" : "MmBackward0";
  return rank(node, 0) == 1 && !bias ? "SqueezeBackward4" : "UnsafeViewBackward0";
}

// "MaxPool2DWithIndicesBackward0" for windows of two dimensions.
std::string pool_name(const Node& node, std::string_view kind, std::string_view end) {
  const std::size_t dims = node.attributes.ints(0).size();
  if (dims == 1) return "SqueezeBackward1";
  return std::string(kind) + std::to_string(dims) + "D" + std::string(end) + "Backward0";
}

// The name of an op that has several by its arguments, or "".
std::string name_by_arguments(std::string_view op, const Node& node) {
  const auto either = [](bool which, const char* yes, const char* no) -> std::string {
    return which ? yes : no;
  };
  if (op == "matmul") return matmul_name(node);
  if (op == "linear") return linear_name(node);
  if (op == "max_pool") return pool_name(node, "MaxPool", "WithIndices");
  if (op == "avg_pool") return pool_name(node, "AvgPool", "");
  if (op == "sum" || op == "mean" || op == "prod" || op == "squeeze") {
    if (!node.attributes.has(0)) return "";  // over all dimensions
    return op == "sum"    ? "SumBackward1"
           : op == "mean" ? "MeanBackward1"
           : op == "prod" ? "ProdBackward1"
                          : "SqueezeBackward1";
  }
  if (op == "div" && node.attributes.has(0)) return "DivBackward2";
  if (op == "sub" && is_number(node, 0)) return "RsubBackward1";
  if (op == "clamp") {
    const bool tensors = rank(node, 1) + rank(node, 2) > 0;
    return either(tensors, "ClampBackward0", "ClampBackward1");
  }
  if (op == "pow" && is_number(node, 0)) return "PowBackward2";
  if (op == "pow") return either(is_number(node, 1), "PowBackward0", "PowBackward1");
  if (op == "lerp") return either(is_number(node, 2), "LerpBackward0", "LerpBackward1");
  if (op == "scatter") return either(is_number(node, 2), "ScatterBackward1", "ScatterBackward0");
  if (op == "remainder") {
    return either(is_number(node, 1), "RemainderBackward0", "RemainderBackward1");
  }
  // The method t() transposes by (1, 0), transpose() usually by (0, 1).
  if (op == "transpose" && node.attributes.integer(0) == 1 && node.attributes.integer(1) == 0) {
    return "TBackward0";
  }
  return "";
}

}  // namespace

std::string node_name(const PySession& session, const Node& node) {
  if (node.extra != nullptr) {
    const std::string& own = static_cast<const NodeExtra*>(node.extra.get())->name;
    if (!own.empty()) return own;
  }
  const std::string_view op = session.catalog().at(node.label).name;
  // A view that is recorded as a region has other operands and attributes than the call.
  if (node.op == node.label) {
    std::string name = name_by_arguments(op, node);
    if (!name.empty()) return name;
  }
  for (const auto& [own, theirs] : kRenamed) {
    if (own == op) return std::string(theirs);
  }
  std::string out;
  bool upper = true;
  for (char c : op) {
    if (c == '_' || c == '.') {
      upper = true;
      continue;
    }
    out += upper ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
    upper = false;
  }
  return out + "Backward0";
}

}  // namespace teletensor::client
