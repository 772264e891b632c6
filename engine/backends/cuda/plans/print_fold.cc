// Prints the text of a reduction kernel from its graph.
#include <string>

#include "engine/backends/cuda/codegen/key.h"
#include "engine/backends/cuda/codegen/names.h"
#include "engine/backends/cuda/plans/fold_plan.h"

namespace teletensor::backends::cuda {
namespace {

using Stage = FoldGraph::Stage;

// The number of elements that a thread loads before it uses the first of them. Many hide the
// latency of the memory, but need registers and code.
int loads_at_once(const FoldGraph& g) {
  if (g.map == FoldMap::kAbsPower) return 1;
  if (g.map == FoldMap::kExpDifference) return 4;
  return finds(g.op) || core::size_of(g.compute) > 4 ? 8 : 16;
}

std::string op_name(FoldOp op) {
  switch (op) {
    case FoldOp::kSum:
      return "tt::Sum<A>";
    case FoldOp::kProd:
      return "tt::Prod<A>";
    case FoldOp::kMax:
      return "tt::Max<A>";
    case FoldOp::kMin:
      return "tt::Min<A>";
    case FoldOp::kFirstMax:
      return "tt::FirstBest<A, true>";
    case FoldOp::kFirstMin:
      break;
  }
  return "tt::FirstBest<A, false>";
}

// The expression for an element x of type A; `center` has type A too.
std::string mapped(FoldMap map) {
  switch (map) {
    case FoldMap::kSquaredDifference:
      return "(x - center) * (x - center)";
    case FoldMap::kExpDifference:
      return "s::exp(x - center)";
    case FoldMap::kAbs:
      return "s::abs(x)";
    case FoldMap::kSquare:
      return "x * x";
    case FoldMap::kAbsPower:
      return "s::pow(s::abs(x), static_cast<A>(p.power))";
    case FoldMap::kNonZero:
      return "static_cast<A>(x != A(0))";
    case FoldMap::kNumber:
      return "x == x ? x : A(0)";
    default:
      return "x";
  }
}

std::string finished(FoldFinish finish) {
  switch (finish) {
    case FoldFinish::kDivide:
      return "v / A(p.number)";
    case FoldFinish::kDivideRoot:
      return "s::sqrt(v / A(p.number))";
    case FoldFinish::kRoot:
      return "s::sqrt(v)";
    case FoldFinish::kPower:
      return "s::pow(v, static_cast<A>(p.number))";
    case FoldFinish::kFinite:
      return "std::isinf(v) ? A(0) : v";
    case FoldFinish::kLogAdd:
      return "s::log(v) + p.center[output]";
    default:
      return "v";
  }
}

// A function that computes the position in memory for an index in the plan's order, from the
// strides.
std::string position(const char* name, int axes, const char* stride) {
  std::string text =
      "  const auto " + std::string(name) + "_" + stride + " = [&](I e) {\n    I at = 0;\n";
  for (int i = axes - 1; i >= 1; --i) {
    const std::string n = std::to_string(i);
    text += "    { const I q = p." + std::string(name) + "_divide[" + n + "](e); at += (e - q * " +
            "static_cast<I>(p." + name + "_divide[" + n + "].size)) * static_cast<I>(p." + name +
            "_" + stride + "[" + n + "]); e = q; }\n";
  }
  if (axes > 0)
    text += "    at += e * static_cast<I>(p." + std::string(name) + "_" + stride + "[0]);\n";
  return text + "    return at;\n  };\n";
}

}  // namespace

KernelSource print_fold(const FoldGraph& g) {
  static constexpr const char* kStages[] = {"along", "across", "merge_thread", "merge_block"};
  static constexpr const char* kOps[] = {"sum", "prod", "max", "min", "argmax", "argmin"};
  const bool merges = g.stage == Stage::kMergeThread || g.stage == Stage::kMergeBlock;
  KernelSource source;
  source.name = std::string("tt_fold_") + kOps[static_cast<int>(g.op)] + "_" +
                kStages[static_cast<int>(g.stage)];
  const std::string a = compute_name(g.compute), div = g.wide ? "tt::Div64" : "tt::Div32";
  const std::string kept = std::to_string(std::max<int>(g.kept, 1)),
                    reduced = std::to_string(std::max<int>(g.reduced, 1));
  std::string text = "namespace s = teletensor::ops::scalar;\nusing A = " + a + ";\nusing V = " +
                     (finds(g.op) ? "tt::Found<A>" : "A") + ";\nusing Op = " + op_name(g.op) +
                     ";\nusing I = " + (g.wide ? "std::int64_t" : "unsigned") + ";\n" +
                     "struct Params {\n  const " + type_name_of(g.in) + "* in;\n  " +
                     type_name_of(g.out) + "* out;\n  V* partial;\n  const A* center;\n" +
                     "  std::int64_t* places;\n" +
                     "  std::int64_t outputs, count, leaves, leaf_step, output_step;\n" + +
                     "  std::int64_t inner, from_leaf, from_output;\n  V* merged;\n"
                     "  double number, power;\n  " + div + " kept_divide[" + kept + "];\n" +
                     "  std::int64_t kept_in[" + kept + "], kept_out[" + kept + "];\n  " + div +
                     " reduced_divide[" + reduced + "];\n  std::int64_t reduced_in[" + reduced +
                     "];\n};\nextern \"C\" __global__ void __launch_bounds__(256) " + source.name +
                     "(const Params p) {\n";
  // The code that stores or passes on a value that a thread has computed.
  if (g.last) text += position("kept", g.kept, "out");
  text += "  const auto emit = [&](I output, I leaf, V value) {\n";
  if (!g.last) {
    text +=
        "    p.partial[leaf * static_cast<I>(p.leaf_step) + output * "
        "static_cast<I>(p.output_step)] = value;\n    (void)leaf;\n";
  } else if (finds(g.op)) {
    text += "    const I to = kept_out(output);\n";
    if (g.finish == FoldFinish::kBoth) {
      text += "    p.out[to] = s::from_compute<" + type_name_of(g.out) + ">(value.value);\n";
    }
    text += "    p.places[to] = value.at;\n";
  } else {
    text += "    const A v = value;\n    p.out[kept_out(output)] = s::from_compute<" +
            type_name_of(g.out) + ">(" + finished(g.finish) + ");\n";
  }
  text += "  };\n";
  if (!merges) {
    text += position("kept", g.kept, "in") + position("reduced", g.reduced, "in");
    text +=
        "  const auto element = [&](I at, I e, A center) -> V {\n    const auto y = p.in[at + "
        "reduced_in(e)];\n";
    if (g.map == FoldMap::kTruth) {
      text += g.in == core::DType::kBool ? "    return A(y.byte != 0);\n"
              : core::is_complex(g.in)
                  ? "    return A(!(y == std::remove_const_t<decltype(y)>(0)));\n"
              : g.in == core::DType::kF16 || g.in == core::DType::kBF16
                  ? "    return A((y.bits & 0x7fffu) != 0);\n"
                  : "    return A(y != 0);\n";
    } else {
      text += "    const A x = s::to_compute<A>(y);\n";
      text += finds(g.op) ? "    return {x, static_cast<std::int64_t>(e)};\n"
                          : "    return " + mapped(g.map) + ";\n";
    }
    text += "  };\n";
  }
  const bool centered = g.map == FoldMap::kSquaredDifference || g.map == FoldMap::kExpDifference;
  const std::string center = centered ? "p.center[output]" : "A(0)";
  switch (g.stage) {
    case Stage::kAlong:
      // A leaf has as many lanes as the CPU has partial results; the threads of a block work on
      // several leaves.
      text +=
          "  constexpr int kWidth = 256 / sizeof(A);\n"
          "  __shared__ V acc[256];\n"
          "  const int lane = threadIdx.x % kWidth;\n"
          "  const std::int64_t task = static_cast<std::int64_t>(blockIdx.x) * (256 / kWidth) + "
          "threadIdx.x / kWidth;\n"
          "  const bool live = task < p.outputs * p.leaves;\n"
          "  const I output = live ? static_cast<I>(task / p.leaves) : 0;\n"
          "  const I leaf = live ? static_cast<I>(task % p.leaves) : 0;\n"
          "  const std::int64_t left = p.count - static_cast<std::int64_t>(leaf) * 2048;\n"
          "  const int n = left < 2048 ? static_cast<int>(left) : 2048;\n"
          "  const I at = kept_in(output), first = leaf * 2048;\n"
          "  const A center = " +
          center +
          ";\n"
          "  const V mine = tt::fold_strided<Op, kWidth, " +
          std::to_string(loads_at_once(g)) +
          ", V>(lane, live ? n : 0, [&](int e) { return element(at, first + e, center); });\n"
          "  const V value = tt::fold_lanes<Op, kWidth>(acc, mine, lane, n);\n"
          "  if (live && lane == 0) emit(output, leaf, value);\n";
      break;
    case Stage::kAcross:
      // One thread per result: it reduces 64 rows, four at a time, and a whole row of the innermost
      // axis at once.
      text +=
          "  const std::int64_t task = static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x;\n"
          "  if (task >= p.outputs * p.leaves) return;\n"
          "  const I leaf = static_cast<I>(task / p.outputs);\n"
          "  const I output = static_cast<I>(task % p.outputs), at = kept_in(output);\n"
          "  const std::int64_t left = p.count - static_cast<std::int64_t>(leaf) * 64;\n"
          "  const int n = left < 64 ? static_cast<int>(left) : 64;\n"
          "  const A center = " +
          center +
          ";\n"
          "  const std::int64_t inner = p.inner;\n"
          "  V acc = Op::identity();\n"
          "  std::int64_t in_row = static_cast<std::int64_t>(leaf) * 64 % inner;\n"
          "  for (int r = 0; r < n;) {\n"
          "    const I e = leaf * 64 + r;\n"
          "    if (r + 4 <= n && in_row + 4 <= inner) {\n"
          "      const V low = Op::one(element(at, e, center), element(at, e + 1, center));\n"
          "      const V high = Op::one(element(at, e + 2, center), element(at, e + 3, center));\n"
          "      acc = Op::one(acc, Op::one(low, high));\n"
          "      r += 4;\n      in_row += 4;\n"
          "    } else {\n"
          "      acc = Op::one(acc, element(at, e, center));\n"
          "      ++r;\n      ++in_row;\n    }\n"
          "    if (in_row >= inner) in_row = 0;\n  }\n"
          "  emit(output, leaf, acc);\n";
      break;
    case Stage::kMergeThread:
      text +=
          "  const std::int64_t task = static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x;\n"
          "  if (task >= p.outputs) return;\n"
          "  V* const from = p.merged + task * p.from_output;\n"
          "  emit(static_cast<I>(task), 0, tt::fold_tree<Op>(from, p.count, p.from_leaf));\n";
      break;
    case Stage::kMergeBlock:
      text += "  constexpr int kMax = " + std::to_string(merge_block(g.op, g.compute)) +
              ";\n"
              "  __shared__ V shared[256];\n"
              "  const std::int64_t groups = (p.count + kMax - 1) / kMax, task = blockIdx.x;\n"
              "  const I output = static_cast<I>(task / groups), group = static_cast<I>(task % "
              "groups);\n"
              "  const std::int64_t first = static_cast<std::int64_t>(group) * kMax;\n"
              "  const int n = p.count - first < kMax ? static_cast<int>(p.count - first) : kMax;\n"
              "  const V* const from = p.merged + output * p.from_output + first * p.from_leaf;\n"
              "  const V value = tt::fold_tree_together<Op, kMax / 256>(shared, from, n, "
              "p.from_leaf);\n"
              "  if (threadIdx.x == 0) emit(output, group, value);\n";
      break;
  }
  text += "}\n" +
          std::string(g.stage == Stage::kAlong || g.stage == Stage::kMergeBlock
                          ? "TT_KERNEL_WITH_BARRIERS("
                          : "TT_KERNEL(") +
          source.name + ")\n";
  source.text = text;
  return source;
}

std::string FoldGraph::key() const {
  KeyWriter key(KernelKind::kFold);
  key.put(stage);
  key.put(in);
  key.put(compute);
  key.put(out);
  key.put(op);
  key.put(map);
  key.put(finish);
  key.put(static_cast<char>(last));
  key.put(static_cast<char>(wide));
  key.put(kept);
  key.put(reduced);
  return key.take();
}

FoldGraph FoldGraph::of_key(std::string_view text) {
  KeyReader key(text);
  key.get<KernelKind>();
  FoldGraph g;
  g.stage = key.get<Stage>();
  g.in = key.get<core::DType>();
  g.compute = key.get<core::DType>();
  g.out = key.get<core::DType>();
  g.op = key.get<FoldOp>();
  g.map = key.get<FoldMap>();
  g.finish = key.get<FoldFinish>();
  g.last = key.get<char>() != 0;
  g.wide = key.get<char>() != 0;
  g.kept = key.get<std::uint8_t>();
  g.reduced = key.get<std::uint8_t>();
  return g;
}

}  // namespace teletensor::backends::cuda
