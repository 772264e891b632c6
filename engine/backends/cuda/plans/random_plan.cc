#include "engine/backends/cuda/plans/random_plan.h"

#include <cmath>

#include "engine/backends/cuda/codegen/key.h"
#include "engine/backends/cuda/codegen/names.h"
#include "engine/backends/cuda/codegen/params.h"
#include "engine/backends/cuda/codegen/shapes.h"
#include "engine/backends/cuda/describe.h"

namespace teletensor::backends::cuda {
namespace {

using core::DType;
using core::Status;

bool two_words(const RandomGraph& g) {
  if (g.recipe == RandomRecipe::kIntegers) return true;
  return g.dtype == DType::kF64 &&
         (g.recipe == RandomRecipe::kUniform || g.recipe == RandomRecipe::kNormal);
}

struct Numbers {
  double a = 0, b = 1;
  std::int64_t low = 0;
  std::uint64_t span = 0;
  std::uint64_t least = 0;
};

Status random(KernelCall& call, Work& work, RandomRecipe recipe, const Numbers& numbers) {
  const TensorArg& out = call.out[0];
  const bool drops = recipe == RandomRecipe::kDropout;
  if (!out.geometry->contiguous()) return not_on_device("a result that is not row-major");
  if (drops && !(call.in[0].geometry->contiguous() && call.out[1].geometry->contiguous())) {
    return not_on_device("an operand that is not row-major");
  }
  const std::int64_t n = out.geometry->numel();
  if (n == 0) return {};
  const RandomGraph graph{recipe, out.dtype};
  const int width = two_words(graph) ? 2 : 4;
  Launch launch;
  if (!threads_for((n + width - 1) / width, 1, launch.shape))
    return not_on_device("too many numbers");
  const core::Attributes& a = call.attributes;
  Params params;
  params.put(static_cast<std::uint64_t>(a.integer(a.size() - 2)));
  params.put(static_cast<std::uint64_t>(a.integer(a.size() - 1)));
  params.put(n);
  params.put(out.first());
  params.put(drops ? call.in[0].first() : nullptr);
  params.put(drops ? call.out[1].first() : nullptr);
  params.put(numbers);
  launch.key = graph.key();
  launch.params = params.take();
  work.launches.push_back(std::move(launch));
  return {};
}

Status rand(KernelCall& call, Work& work) {
  return random(call, work, RandomRecipe::kUniform, {.a = 0, .b = 1});
}
Status randn(KernelCall& call, Work& work) {
  return random(call, work, RandomRecipe::kNormal, {.a = 0, .b = 1});
}
template <RandomRecipe kRecipe>
Status of_two(KernelCall& call, Work& work) {
  return random(call, work, kRecipe, {.a = call.attributes.real(0), .b = call.attributes.real(1)});
}
Status integers(KernelCall& call, Work& work) {
  const std::int64_t low = call.attributes.integer(0), high = call.attributes.integer(1);
  const std::uint64_t span = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
  return random(call, work, RandomRecipe::kIntegers, {.low = low, .span = span});
}
Status bernoulli_p(KernelCall& call, Work& work) {
  return random(call, work, RandomRecipe::kBernoulli, {.a = call.attributes.real(0)});
}
Status dropout(KernelCall& call, Work& work) {
  const double p = call.attributes.real(0);
  // An element is kept if its random word is at least p times the range of words; if that bound
  // exceeds every word, none is kept.
  const auto least = static_cast<std::uint64_t>(std::ceil(p * 0x1p32));
  return random(call, work, RandomRecipe::kDropout, {.a = p < 1 ? 1 / (1 - p) : 0, .least = least});
}

}  // namespace

KernelSource print_random(const RandomGraph& g) {
  static constexpr const char* kNames[] = {"uniform", "normal", "integers", "bernoulli", "dropout"};
  KernelSource source;
  source.name = std::string("tt_random_") + kNames[static_cast<int>(g.recipe)];
  const std::string t = type_name_of(g.dtype), count = two_words(g) ? "2" : "4";
  const bool wide = g.dtype == DType::kF64, integers = g.recipe == RandomRecipe::kIntegers;
  const std::string a = integers ? "std::int64_t" : wide ? "double" : "float";
  std::string text =
      "namespace s = teletensor::ops::scalar;\nusing T = " + t + ";\nusing A = " + a +
      ";\nstruct Params {\n  std::uint64_t seed, ordinal;\n  std::int64_t n;\n  T* out;\n"
      "  const T* x;\n  tt::Bool* mask;\n  double a, b;\n  std::int64_t low;\n"
      "  std::uint64_t span, least;\n};\nextern \"C\" __global__ void __launch_bounds__(256) " +
      source.name +
      "(const Params p) {\n"
      "  const std::int64_t block = static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x;\n"
      "  constexpr int kCount = " +
      count +
      ";\n  const std::int64_t at = block * kCount;\n"
      "  if (at >= p.n) return;\n"
      "  const tt::Words words = tt::random_block(p.seed, p.ordinal, block);\n";
  if (g.recipe == RandomRecipe::kNormal) {
    text += "  A normal[kCount];\n  tt::normal_numbers(words, normal);\n";
  }
  text += "#pragma unroll\n  for (int i = 0; i < kCount; ++i) {\n    if (at + i >= p.n) break;\n";
  switch (g.recipe) {
    case RandomRecipe::kUniform:
      if (wide) {
        text +=
            "    const double y = p.a + (p.b - p.a) * (static_cast<double>(tt::word_pair(words, i) "
            ">> 11) * 0x1p-53);\n    const A v = y >= p.b ? p.a : y;\n";
      } else {
        const int bits = g.dtype == DType::kF16 ? 11 : g.dtype == DType::kBF16 ? 8 : 24;
        text +=
            "    const float from = static_cast<float>(p.a), wide = static_cast<float>(p.b - "
            "p.a);\n    const float y = from + wide * (static_cast<float>(static_cast<int>("
            "words.w[i] >> " +
            std::to_string(32 - bits) + ")) * 0x1p-" + std::to_string(bits) +
            "f);\n    const A v = tt::rounded<T>(y) >= static_cast<float>(p.b) ? from : y;\n";
      }
      break;
    case RandomRecipe::kNormal:
      text += "    const A v = static_cast<A>(p.a) + static_cast<A>(p.b) * normal[i];\n";
      break;
    case RandomRecipe::kIntegers:
      text +=
          "    const A v = static_cast<A>(static_cast<std::uint64_t>(p.low) + "
          "__umul64hi(tt::word_pair(words, i), p.span));\n";
      break;
    case RandomRecipe::kBernoulli:
      text += "    const A v = static_cast<double>(words.w[i]) * 0x1p-32 < p.a;\n";
      break;
    case RandomRecipe::kDropout:
      text +=
          "    const bool kept = words.w[i] >= p.least;\n    p.mask[at + i].byte = kept;\n"
          "    const A v = kept ? s::to_compute<A>(p.x[at + i]) * static_cast<A>(p.a) : A(0);\n";
      break;
  }
  source.text =
      text + "    p.out[at + i] = s::from_compute<T>(v);\n  }\n}\nTT_KERNEL(" + source.name + ")\n";
  return source;
}

std::string RandomGraph::key() const {
  KeyWriter key(KernelKind::kRandom);
  key.put(recipe);
  key.put(dtype);
  return key.take();
}

RandomGraph RandomGraph::of_key(std::string_view text) {
  KeyReader key(text);
  key.get<KernelKind>();
  RandomGraph g;
  g.recipe = key.get<RandomRecipe>();
  g.dtype = key.get<DType>();
  return g;
}

void add_random_kernels(DeviceTable& table) {
  constexpr Skeleton kRandom = Skeleton::kRandom;
  table.add("rand", kRandom, rand);
  table.add("randn", kRandom, randn);
  table.add("uniform", kRandom, of_two<RandomRecipe::kUniform>);
  table.add("normal", kRandom, of_two<RandomRecipe::kNormal>);
  table.add("randint", kRandom, integers);
  table.add("random_from", kRandom, integers);
  table.add("bernoulli_p", kRandom, bernoulli_p);
  table.add("dropout", kRandom, dropout);
}

}  // namespace teletensor::backends::cuda
