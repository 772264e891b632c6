// Prints the texts of check kernels and pick kernels from their graphs.
#include <algorithm>
#include <string>

#include "engine/backends/cuda/codegen/key.h"
#include "engine/backends/cuda/codegen/names.h"
#include "engine/backends/cuda/plans/index_plan.h"

namespace teletensor::backends::cuda {
namespace {

std::string element_name(std::uint8_t bytes) {
  switch (bytes) {
    case 1:
      return "std::uint8_t";
    case 2:
      return "std::uint16_t";
    case 4:
      return "std::uint32_t";
    case 8:
      return "std::uint64_t";
    default:
      return "tt::Complex128";
  }
}

std::string fields(bool wide) {
  return std::string("namespace s = teletensor::ops::scalar;\nusing I = ") +
         (wide ? "std::int64_t" : "unsigned") +
         ";\nstruct Params {\n  int* flag;\n  std::int64_t count;\n  " +
         (wide ? "tt::Div64" : "tt::Div32") + " divide";
}

std::string opening(const std::string& name) {
  return "};\nextern \"C\" __global__ void __launch_bounds__(256) " + name +
         "(const Params p) {\n  const I at = static_cast<I>(blockIdx.x) * 256 + threadIdx.x;\n"
         "  if (at >= static_cast<I>(p.count)) return;\n";
}

// Prints, for each axis, the computation of the coordinate `c` followed by `body(axis)`.
template <class F>
std::string walk(std::uint8_t axes, F&& body) {
  std::string text = "  I rest = at;\n";
  for (int d = axes - 1; d >= 0; --d) {
    const std::string i = str(static_cast<std::size_t>(d));
    text += d > 0
                ? "  { const I q = p.divide[" + i +
                      "](rest), c = rest - q * static_cast<I>(p.divide[" + i + "].size); rest = q;"
                : "  { const I c = rest;";
    text += body(i) + " }\n";
  }
  return text;
}

}  // namespace

KernelSource print_check(const CheckGraph& g) {
  KernelSource source;
  source.name = g.zero ? "tt_check_zero" : "tt_check_range";
  const std::string axes = str(std::max<std::size_t>(g.axes, 1));
  source.text = fields(g.wide) + "[" + axes + "];\n  const " + type_name_of(g.dtype) +
                "* x;\n  std::int64_t stride[" + axes + "], least, most;\n" + opening(source.name) +
                "  I from = 0;\n" +
                walk(g.axes,
                     [](const std::string& i) {
                       return " from += c * static_cast<I>(p.stride[" + i + "]);";
                     }) +
                "  const std::int64_t v = s::to_compute<std::int64_t>(p.x[from]);\n" +
                (g.zero ? "  if (v == 0) *p.flag = 1;\n"
                        : "  if (v < p.least || v > p.most) *p.flag = 1;\n") +
                "}\nTT_KERNEL(" + source.name + ")\n";
  return source;
}

KernelSource print_index(const IndexGraph& g) {
  KernelSource source;
  source.name = "tt_index_" + str(g.indices);
  const std::string axes = str(std::max<std::size_t>(g.axes, 1)), t = element_name(g.bytes);
  std::string text = fields(g.wide) + "[" + axes + "];\n  const " + t + "* x;\n  " + t +
                     "* out;\n  std::int64_t stride[" + axes + "];\n";
  std::string offsets, picks;
  for (std::size_t j = 0; j < g.indices; ++j) {
    const std::string n = str(j);
    text += "  const " + type_name_of(g.dtypes[j]) + "* i" + n + ";\n  std::int64_t stride" + n +
            "[" + axes + "], step" + n + ", size" + n + ";\n";
    offsets += "  I o" + n + " = 0;\n";
    picks += "  { const std::int64_t v = s::to_compute<std::int64_t>(p.i" + n + "[o" + n +
             "]); from += (v < 0 ? v + p.size" + n + " : v) * p.step" + n + "; }\n";
  }
  text +=
      opening(source.name) + "  if (*p.flag != 0) return;\n  std::int64_t from = 0;\n" + offsets;
  text += walk(g.axes, [&](const std::string& i) {
    std::string body = " from += static_cast<std::int64_t>(c) * p.stride[" + i + "];";
    for (std::size_t j = 0; j < g.indices; ++j) {
      body += " o" + str(j) + " += c * static_cast<I>(p.stride" + str(j) + "[" + i + "]);";
    }
    return body;
  });
  source.text = text + picks + "  p.out[at] = p.x[from];\n}\nTT_KERNEL(" + source.name + ")\n";
  return source;
}

std::string CheckGraph::key() const {
  KeyWriter key(KernelKind::kCheck);
  key.put(dtype);
  key.put(static_cast<char>(zero | wide << 1));
  key.put(axes);
  return key.take();
}

CheckGraph CheckGraph::of_key(std::string_view text) {
  KeyReader key(text);
  key.get<KernelKind>();
  CheckGraph g;
  g.dtype = key.get<core::DType>();
  const char flags = key.get<char>();
  g.zero = (flags & 1) != 0;
  g.wide = (flags & 2) != 0;
  g.axes = key.get<std::uint8_t>();
  return g;
}

std::string IndexGraph::key() const {
  KeyWriter key(KernelKind::kIndex);
  key.put(bytes);
  key.put(indices);
  for (int j = 0; j < indices; ++j) key.put(dtypes[j]);
  key.put(static_cast<char>(wide));
  key.put(axes);
  return key.take();
}

IndexGraph IndexGraph::of_key(std::string_view text) {
  KeyReader key(text);
  key.get<KernelKind>();
  IndexGraph g;
  g.bytes = key.get<std::uint8_t>();
  g.indices = std::min<std::uint8_t>(key.get<std::uint8_t>(), kMaxIndices);
  for (int j = 0; j < g.indices; ++j) g.dtypes[j] = key.get<core::DType>();
  g.wide = key.get<char>() != 0;
  g.axes = key.get<std::uint8_t>();
  return g;
}

}  // namespace teletensor::backends::cuda
