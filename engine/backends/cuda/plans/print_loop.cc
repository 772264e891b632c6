// Prints the text of a loop kernel from its graph.
#include <string>

#include "engine/backends/cuda/codegen/names.h"
#include "engine/backends/cuda/plans/loop_plan.h"

namespace teletensor::backends::cuda {
namespace {

using core::DType;
using Kind = LoopOperand::Kind;

// Prints the offsets of the tensors that are addressed by coordinates.
std::string coordinates(const LoopGraph& graph) {
  bool used = false;
  for (const LoopSlot& slot : graph.slots) used = used || by_coordinates(slot.access);
  if (!used) return {};
  std::string text = "  I q0 = at;\n";
  for (std::size_t d = 0; d < graph.rank; ++d) {
    const std::string i = str(d), next = str(d + 1);
    if (d + 1 < graph.rank) {
      text += "  const I q" + next + " = p.divide[" + i + "](q" + i + "), c" + i + " = q" + i +
              " - q" + next + " * static_cast<I>(p.divide[" + i + "].size);\n";
    } else {
      text += "  const I c" + i + " = q" + i + ";\n";
    }
  }
  for (std::size_t s = 0; s < graph.slots.size(); ++s) {
    if (!by_coordinates(graph.slots[s].access)) continue;
    text += "  const I o" + str(s) + " = 0";
    for (std::size_t d = 0; d < graph.rank; ++d) {
      text += " + c" + str(d) + " * static_cast<I>(p.stride" + str(s) + "[" + str(d) + "])";
    }
    text += ";\n";
  }
  return text;
}

std::string load(const LoopGraph& graph, std::size_t s) {
  const std::string at = "p.p" + str(s), w = "<" + str(graph.width) + ">(";
  switch (graph.slots[s].access) {
    case Access::kLinear:
      return "tt::read" + w + at + " + at, m)";
    case Access::kUnaligned:
      return "tt::pick" + w + at + " + at, I(1), m)";
    case Access::kConstant:
      return "tt::repeat" + w + at + ")";
    case Access::kRun:
      return "tt::read" + w + at + " + o" + str(s) + ", m)";
    case Access::kRepeated:
      return "tt::repeat" + w + at + " + o" + str(s) + ")";
    case Access::kStrided:
      break;
  }
  return "tt::pick" + w + at + " + o" + str(s) + ", static_cast<I>(p.stride" + str(s) + "[0]), m)";
}

std::string store(const LoopGraph& graph, std::size_t s, const std::string& value) {
  const std::string at = "p.p" + str(s);
  switch (graph.slots[s].access) {
    case Access::kLinear:
      return "tt::write(" + at + " + at, " + value + ", m)";
    case Access::kRun:
      return "tt::write(" + at + " + o" + str(s) + ", " + value + ", m)";
    case Access::kStrided:
      return "tt::place(" + at + " + o" + str(s) + ", static_cast<I>(p.stride" + str(s) + "[0]), " +
             value + ", m)";
    default:
      return "tt::place(" + at + " + at, I(1), " + value + ", m)";
  }
}

// Prints the computation of step n for element `e`.
std::string step(const LoopGraph& graph, std::size_t n) {
  const LoopNode& node = graph.nodes[n];
  const std::string i = str(n), a = compute_name(node.compute), t = type_name_of(node.result);
  const auto element = [&](const LoopOperand& in) {
    return in.kind == Kind::kSlot ? "x" + str(in.index) + ".v[e]" : "v" + str(in.index);
  };
  if (node.loops == nullptr) {
    if (node.in[0].kind == Kind::kNumber)
      return "    const " + t + " v" + i + " = p.k" + i + "_0;\n";
    if (node.in[0].dtype == node.result) {
      return "    const " + t + " v" + i + " = " + element(node.in[0]) + ";\n";
    }
    return "    const " + t + " v" + i + " = s::from_compute<" + t + ">(s::to_compute<" + a + ">(" +
           element(node.in[0]) + "));\n";
  }
  std::string arguments;
  for (std::size_t k = 0; k < node.operands; ++k) {
    const LoopOperand& in = node.in[k];
    std::string value;
    if (in.kind == Kind::kNumber) {
      value = "p.k" + i + "_" + str(k);
    } else if (node.condition && k == 0) {
      value = element(in) + ".byte != 0";
    } else {
      value = "s::to_compute<" + a + ">(" + element(in) + ")";
      if (in.round) value = "tt::rounded<" + type_name_of(node.dtype) + ">(" + value + ")";
    }
    arguments += (k > 0 ? ", " : "") + value;
  }
  const std::string functor = node.empty ? std::string(node.loops->functor) + "()" : "p.f" + i;
  std::string value = functor + "(" + arguments + ")";
  if (node.loops->bool_result) {
    value = "static_cast<std::int64_t>(" + value + ")";
  } else {
    value = "static_cast<" + a + ">(" + value + ")";
    if (node.dtype != node.result && node.dtype != node.compute) {
      value = "tt::rounded<" + type_name_of(node.dtype) + ">(" + value + ")";
    }
  }
  return "    const " + t + " v" + i + " = s::from_compute<" + t + ">(" + value + ");\n";
}

// For example "tt_loop_3_Add": the number of steps and the functor of the last one.
std::string name_of_loop(const LoopGraph& graph) {
  std::string name = "tt_loop_" + str(graph.nodes.size());
  const LoopNode& last = graph.nodes.back();
  std::string_view functor = last.loops == nullptr ? "copy" : last.loops->functor;
  functor = functor.substr(0, functor.find('<'));
  return name + "_" + std::string(functor.substr(functor.rfind(':') + 1));
}

}  // namespace

KernelSource print_loop(const LoopGraph& graph) {
  KernelSource source;
  source.name = name_of_loop(graph);
  const std::string rank = str(graph.rank), width = str(graph.width);
  std::string text = "namespace s = teletensor::ops::scalar;\nstruct Params {\n  std::int64_t n;\n";
  if (graph.guarded) text += "  const int* flag;\n";
  for (std::size_t s = 0; s < graph.slots.size(); ++s) {
    text += "  " + type_name_of(graph.slots[s].dtype) + "* p" + str(s) + ";\n";
  }
  if (graph.rank > 1) {
    text += std::string("  tt::Div") + (graph.wide ? "64" : "32") + " divide[" +
            str(graph.rank - 1u) + "];\n";
  }
  for (std::size_t s = 0; s < graph.slots.size(); ++s) {
    if (!by_coordinates(graph.slots[s].access)) continue;
    text += "  std::int64_t stride" + str(s) + "[" + rank + "];\n";
  }
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const LoopNode& node = graph.nodes[n];
    if (!node.empty) {
      text += "  alignas(8) " + std::string(node.loops->functor) + " f" + str(n) + ";\n";
    }
    for (std::size_t k = 0; k < node.operands; ++k) {
      if (node.in[k].kind != Kind::kNumber) continue;
      const std::string type =
          node.loops == nullptr ? type_name_of(node.result) : compute_name(node.compute);
      text += "  alignas(8) " + type + " k" + str(n) + "_" + str(k) + ";\n";
    }
  }
  const std::string index = graph.wide ? "std::int64_t" : "unsigned";
  text += "};\nextern \"C\" __global__ void __launch_bounds__(256) " + source.name +
          "(const Params p) {\n  using I = " + index + ";\n" +
          "  const I n = static_cast<I>(p.n), at = (static_cast<I>(blockIdx.x) * 256 + "
          "threadIdx.x) * " +
          width + "" +
          (graph.guarded ? ";\n  if (at >= n || *p.flag != 0) return;\n"
                         : ";\n  if (at >= n) return;\n") +
          "  const int m = n - at < " + width + " ? static_cast<int>(n - at) : " + width + ";\n" +
          coordinates(graph);
  std::vector<bool> read(graph.slots.size());
  for (const LoopNode& node : graph.nodes) {
    for (std::size_t k = 0; k < node.operands; ++k) {
      if (node.in[k].kind == Kind::kSlot) read[node.in[k].index] = true;
    }
  }
  for (std::size_t s = 0; s < graph.slots.size(); ++s) {
    if (read[s]) text += "  const auto x" + str(s) + " = " + load(graph, s) + ";\n";
  }
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    if (!graph.nodes[n].stored) continue;
    text +=
        "  tt::Vec<" + type_name_of(graph.nodes[n].result) + ", " + width + "> y" + str(n) + ";\n";
  }
  text += "#pragma unroll\n  for (int e = 0; e < " + width + "; ++e) {\n";
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    text += step(graph, n);
    if (graph.nodes[n].stored) text += "    y" + str(n) + ".v[e] = v" + str(n) + ";\n";
  }
  text += "  }\n";
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    if (!graph.nodes[n].stored) continue;
    text += "  " + store(graph, graph.nodes[n].slot, "y" + str(n)) + ";\n";
  }
  source.text = text + "}\nTT_KERNEL(" + source.name + ")\n";
  return source;
}

}  // namespace teletensor::backends::cuda
