// The graph API of cuDNN, on the host: strict about types, counts, the order in which descriptors
// are finalized, shapes, memory and alignments. The engines that it lists first can be used only by
// callers that read their notes.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "engine/backends/cuda/driver/dnn.h"
#include "engine/core/half.h"
#include "fake.h"

using namespace fake;
namespace cuda = teletensor::backends::cuda;
namespace core = teletensor::core;
using cuda::DnnAttribute;
using cuda::DnnKind;
using cuda::DnnType;

#define EXPORT extern "C" __attribute__((visibility("default"))) int

namespace {

enum Status : int {
  kNotInitialized = 1001,
  kBadParameter = 2000,
  kBadPointer = 2003,
  kNotFinalized = 2004,
  kNotSupported = 3000,
  kExecutionFailed = 5000,
};

struct Handle {
  Device* device;
  Stream* stream = nullptr;
};

struct Node;
using NodePtr = std::shared_ptr<Node>;
struct Value {
  std::vector<std::byte> bytes;
  std::vector<NodePtr> nodes;
  std::int64_t count = 0;
};
// The object of a descriptor; other objects keep it alive after the descriptor is destroyed.
struct Node {
  DnnKind kind;
  bool finalized = false;
  std::map<DnnAttribute, Value> values;
  int engine = -1;  // for descriptors of engines and of their configurations
  NodePtr graph;    // for descriptors of engines, configurations and plans

  template <class T>
  std::vector<T> all(DnnAttribute attribute) const {
    const Value& value = values.at(attribute);
    std::vector<T> made(static_cast<std::size_t>(value.count));
    std::memcpy(made.data(), value.bytes.data(), value.bytes.size());
    return made;
  }
  template <class T>
  T one(DnnAttribute attribute) const {
    T made = {};
    std::memcpy(&made, values.at(attribute).bytes.data(), sizeof made);
    return made;
  }
  const NodePtr& node(DnnAttribute attribute) const { return values.at(attribute).nodes[0]; }
  bool has(DnnAttribute attribute) const { return values.contains(attribute); }
};
struct Descriptor {
  NodePtr node;
};
Node* of(void* descriptor) { return static_cast<Descriptor*>(descriptor)->node.get(); }

struct Rule {
  DnnKind kind;
  DnnAttribute attribute;
  DnnType type;
  std::int64_t least = 1, most = 1;
  bool needed = true;
};
using enum DnnAttribute;
using enum DnnKind;
constexpr DnnType kOf = DnnType::kDescriptor;
constexpr Rule kRules[] = {
    {kTensor, kTensorName, DnnType::kInt64},
    {kTensor, kTensorType, DnnType::kDataType},
    {kTensor, kTensorSizes, DnnType::kInt64, 3, 8},
    {kTensor, kTensorStrides, DnnType::kInt64, 3, 8},
    {kTensor, kTensorAlignment, DnnType::kInt64},
    {kTensor, kTensorVirtual, DnnType::kBoolean, 1, 1, false},
    {kConvolution, kConvolutionRank, DnnType::kInt64},
    {kConvolution, DnnAttribute::kConvolutionMode, DnnType::kConvolutionMode},
    {kConvolution, kConvolutionCompute, DnnType::kDataType},
    {kConvolution, kConvolutionStrides, DnnType::kInt64, 1, 3},
    {kConvolution, kConvolutionBefore, DnnType::kInt64, 1, 3},
    {kConvolution, kConvolutionAfter, DnnType::kInt64, 1, 3},
    {kConvolution, kConvolutionDilations, DnnType::kInt64, 1, 3},
    {kPointwise, DnnAttribute::kPointwiseMode, DnnType::kPointwiseMode},
    {kPointwise, kPointwiseCompute, DnnType::kDataType},
    {kConvolve, kConvolveX, kOf},
    {kConvolve, kConvolveWeight, kOf},
    {kConvolve, kConvolveY, kOf},
    {kConvolve, kConvolveBy, kOf},
    {kConvolveBack, kBackX, kOf},
    {kConvolveBack, kBackWeight, kOf},
    {kConvolveBack, kBackY, kOf},
    {kConvolveBack, kBackBy, kOf},
    {kConvolveToWeight, kToWeightX, kOf},
    {kConvolveToWeight, kToWeightWeight, kOf},
    {kConvolveToWeight, kToWeightY, kOf},
    {kConvolveToWeight, kToWeightBy, kOf},
    {kPointwiseOperation, kPointwiseBy, kOf},
    {kPointwiseOperation, kPointwiseX, kOf},
    {kPointwiseOperation, kPointwiseB, kOf},
    {kPointwiseOperation, kPointwiseY, kOf},
    {kGraph, kGraphHandle, DnnType::kHandle},
    {kGraph, kGraphOperations, kOf, 1, 2},
    {kHeuristics, kHeuristicsGraph, kOf},
    {kHeuristics, kHeuristicsMode, DnnType::kHeuristicMode},
    {kPlan, kPlanHandle, DnnType::kHandle},
    {kPlan, kPlanConfig, kOf},
    {kVariantPack, kPackNames, DnnType::kInt64, 1, 16},
    {kVariantPack, kPackPointers, DnnType::kPointer, 1, 16},
    {kVariantPack, kPackWorkspace, DnnType::kPointer},
};
// The scale factors of sums and of the tensors to which they are added, in the type of the sums.
constexpr std::array kScales = {std::array{kConvolveAlpha, kConvolveBeta},
                                std::array{kBackAlpha, kBackBeta},
                                std::array{kToWeightAlpha, kToWeightBeta}};

std::size_t size_of(DnnType type) {
  switch (type) {
    case DnnType::kInt64:
    case DnnType::kDouble:
    case DnnType::kHandle:
    case DnnType::kPointer:
    case DnnType::kDescriptor:
      return 8;
    case DnnType::kBoolean:
    case DnnType::kChar:
      return 1;
    default:
      return 4;
  }
}

int pass_of(const Node& operation) {
  switch (operation.kind) {
    case kConvolve:
      return 0;
    case kConvolveBack:
      return 1;
    case kConvolveToWeight:
      return 2;
    default:
      return -1;
  }
}

struct Tensor {
  explicit Tensor(const Node& node)
      : name(node.one<std::int64_t>(kTensorName)),
        type(node.one<int>(kTensorType)),
        alignment(node.one<std::int64_t>(kTensorAlignment)),
        sizes(node.all<std::int64_t>(kTensorSizes)),
        strides(node.all<std::int64_t>(kTensorStrides)),
        is_virtual(node.has(kTensorVirtual) && node.one<bool>(kTensorVirtual)) {}

  std::int64_t bytes() const {
    return type == cuda::kDnnReal64 ? 8 : type == cuda::kDnnReal32 ? 4 : 2;
  }
  bool sound() const {
    if (sizes.size() != strides.size()) return false;
    if (alignment < bytes() || (alignment & (alignment - 1)) != 0) return false;
    if (type != cuda::kDnnReal64 && type != cuda::kDnnReal32 && type != cuda::kDnnReal16 &&
        type != cuda::kDnnBrain16) {
      return false;
    }
    const auto positive = [](std::int64_t x) { return x > 0; };
    return std::ranges::all_of(sizes, positive) && std::ranges::all_of(strides, positive);
  }
  // Returns whether the tensor has no gaps and is row-major or channels last.
  bool dense() const {
    const auto fits = [&](bool last) {
      std::int64_t step = 1;
      const auto next = [&](std::size_t d) {
        const bool ok = sizes[d] == 1 || strides[d] == step;
        step *= sizes[d];
        return ok;
      };
      bool ok = !last || next(1);
      for (std::size_t d = sizes.size(); d-- > 2;) ok = next(d) && ok;
      if (!last) ok = next(1) && ok;
      return next(0) && ok;
    };
    return fits(false) || fits(true);
  }
  std::int64_t count() const {
    std::int64_t made = 1;
    for (const std::int64_t size : sizes) made *= size;
    return made;
  }

  std::int64_t name;
  int type;
  std::int64_t alignment;
  std::vector<std::int64_t> sizes, strides;
  bool is_virtual;
};

// A graph in the form in which it is computed.
struct Problem {
  explicit Problem(const Node& graph)
      : operation(*graph.values.at(kGraphOperations).nodes[0]),
        pass(pass_of(operation)),
        x(*operation.node(names()[0])),
        weight(*operation.node(names()[1])),
        y(*operation.node(names()[2])),
        by(*operation.node(names()[3])) {
    if (graph.values.at(kGraphOperations).count < 2) return;
    const Node& add = *graph.values.at(kGraphOperations).nodes[1];
    bias.emplace_back(*add.node(kPointwiseB));
    biased.emplace_back(*add.node(kPointwiseY));
  }
  std::array<DnnAttribute, 4> names() const {
    switch (pass) {
      case 0:
        return {kConvolveX, kConvolveWeight, kConvolveY, kConvolveBy};
      case 1:
        return {kBackX, kBackWeight, kBackY, kBackBy};
      default:
        return {kToWeightX, kToWeightWeight, kToWeightY, kToWeightBy};
    }
  }
  std::vector<const Tensor*> tensors() const {
    std::vector<const Tensor*> made = {&x, &weight, bias.empty() ? &y : &biased[0]};
    if (!bias.empty()) made.push_back(&bias[0]);
    return made;
  }
  const Tensor& result() const {
    return pass == 1 ? x : pass == 2 ? weight : bias.empty() ? y : biased[0];
  }
  std::size_t workspace() const { return x.sizes[1] * weight.sizes[2] >= 9 ? 4096 : 0; }

  const Node& operation;
  int pass;
  Tensor x, weight, y;
  const Node& by;
  std::vector<Tensor> bias, biased;
};

bool sound_convolution(const Node& operation, const std::array<DnnAttribute, 4>& names,
                       const std::array<DnnAttribute, 2>& scales) {
  const Node& by = *operation.node(names[3]);
  for (int i = 0; i < 3; ++i) {
    if (operation.node(names[static_cast<std::size_t>(i)])->kind != kTensor) return false;
  }
  if (by.kind != kConvolution) return false;
  const Tensor x(*operation.node(names[0])), w(*operation.node(names[1])),
      y(*operation.node(names[2]));
  const bool wide = x.type == cuda::kDnnReal64;
  const int compute = by.one<int>(kConvolutionCompute);
  if (w.type != x.type || compute != (wide ? cuda::kDnnReal64 : cuda::kDnnReal32)) return false;
  if (y.type != (y.is_virtual ? compute : x.type) || x.is_virtual || w.is_virtual) return false;
  for (const DnnAttribute scale : scales) {  // wide if the sums are wide
    if (!operation.has(scale)) return false;
    if (operation.values.at(scale).bytes.size() != (wide ? 8u : 4u)) return false;
  }
  const std::size_t rank = x.sizes.size();
  if (w.sizes.size() != rank || y.sizes.size() != rank) return false;
  if (by.one<std::int64_t>(kConvolutionRank) != static_cast<std::int64_t>(rank) - 2) return false;
  if (x.sizes[1] % w.sizes[1] != 0 || w.sizes[0] % (x.sizes[1] / w.sizes[1]) != 0) return false;
  if (y.sizes[0] != x.sizes[0] || y.sizes[1] != w.sizes[0]) return false;
  const auto stride = by.all<std::int64_t>(kConvolutionStrides),
             before = by.all<std::int64_t>(kConvolutionBefore),
             after = by.all<std::int64_t>(kConvolutionAfter),
             dilation = by.all<std::int64_t>(kConvolutionDilations);
  for (std::size_t d = 2; d < rank; ++d) {
    const std::int64_t span = dilation[d - 2] * (w.sizes[d] - 1) + 1;
    const std::int64_t room = x.sizes[d] + before[d - 2] + after[d - 2] - span;
    if (room < 0 || room / stride[d - 2] + 1 != y.sizes[d]) return false;
  }
  return true;
}

// The checks of finalization in addition to the rules.
bool sound(const Node& node) {
  switch (node.kind) {
    case kTensor:
      return Tensor(node).sound();
    case kConvolution: {
      const std::int64_t rank = node.one<std::int64_t>(kConvolutionRank);
      for (const DnnAttribute each :
           {kConvolutionStrides, kConvolutionBefore, kConvolutionAfter, kConvolutionDilations}) {
        const bool padding = each == kConvolutionBefore || each == kConvolutionAfter;
        if (node.values.at(each).count != rank) return false;
        for (const std::int64_t x : node.all<std::int64_t>(each)) {
          if (x < (padding ? 0 : 1)) return false;
        }
      }
      return node.one<int>(DnnAttribute::kConvolutionMode) == cuda::kDnnCrossCorrelation;
    }
    case kPointwise:
      return node.one<int>(DnnAttribute::kPointwiseMode) == cuda::kDnnAdd;
    case kConvolve:
      return sound_convolution(node, {kConvolveX, kConvolveWeight, kConvolveY, kConvolveBy},
                               kScales[0]);
    case kConvolveBack:
      return sound_convolution(node, {kBackX, kBackWeight, kBackY, kBackBy}, kScales[1]);
    case kConvolveToWeight:
      return sound_convolution(node, {kToWeightX, kToWeightWeight, kToWeightY, kToWeightBy},
                               kScales[2]);
    case kPointwiseOperation: {
      const Tensor x(*node.node(kPointwiseX)), b(*node.node(kPointwiseB)),
          y(*node.node(kPointwiseY));
      if (x.sizes != y.sizes || x.sizes.size() != b.sizes.size() || b.type != y.type) return false;
      for (std::size_t d = 0; d < b.sizes.size(); ++d) {
        if (b.sizes[d] != (d == 1 ? x.sizes[d] : 1)) return false;
      }
      return node.node(kPointwiseBy)->kind == kPointwise;
    }
    case kGraph: {
      const Value& operations = node.values.at(kGraphOperations);
      if (pass_of(*operations.nodes[0]) < 0) return false;
      const Problem problem(node);
      if (operations.count == 1) return !problem.y.is_virtual;
      const Node& add = *operations.nodes[1];
      return add.kind == kPointwiseOperation && problem.y.is_virtual &&
             Tensor(*add.node(kPointwiseX)).name == problem.y.name;
    }
    case kPlan:
      return node.node(kPlanConfig)->kind == kEngineConfig;
    case kVariantPack:
      return node.values.at(kPackNames).count == node.values.at(kPackPointers).count;
    default:
      return true;
  }
}

// Engines: 0 computes as requested; the narrow one rounds factors of type f32; the hasty one
// destroys its result.
constexpr int kNarrowEngine = 1, kHastyEngine = 2;
std::vector<int> engines_of(const Node& heuristics) {
  const Problem p(*heuristics.node(kHeuristicsGraph));
  if (config().dnn_refuses || (p.pass != 0 && !p.bias.empty())) return {};
  for (const Tensor* each : {&p.x, &p.weight, &p.y}) {
    if (!each->dense() || each->alignment < each->bytes()) return {};
  }
  if (heuristics.one<int>(kHeuristicsMode) == cuda::kDnnFallbacks) return {0};
  if (p.x.type == cuda::kDnnReal32) return {kHastyEngine, kNarrowEngine};
  return {kHastyEngine, 0};
}

std::vector<int> notes_of(int engine) {
  if (engine == kNarrowEngine) return {cuda::kNoteTensorCore};
  if (engine == kHastyEngine) return {cuda::kNoteTensorCore, cuda::kNoteNotRepeatable};
  return {};
}

// Calls `each` with the positions of x, weight and y of every product, in elements.
template <class Each>
void for_products(const Problem& p, const Each& each) {
  const std::size_t spatial = p.x.sizes.size() - 2;
  const auto stride = p.by.all<std::int64_t>(kConvolutionStrides),
             padding = p.by.all<std::int64_t>(kConvolutionBefore),
             dilation = p.by.all<std::int64_t>(kConvolutionDilations);
  const std::int64_t groups = p.x.sizes[1] / p.weight.sizes[1];
  const std::int64_t inner = p.weight.sizes[1], outer = p.weight.sizes[0] / groups;
  std::int64_t places = 1, taps = 1;
  for (std::size_t d = 2; d < spatial + 2; ++d) {
    places *= p.y.sizes[d];
    taps *= p.weight.sizes[d];
  }
  for (std::int64_t n = 0; n < p.x.sizes[0]; ++n) {
    for (std::int64_t k = 0; k < p.weight.sizes[0]; ++k) {
      for (std::int64_t place = 0; place < places; ++place) {
        for (std::int64_t tap = 0; tap < taps; ++tap) {
          std::int64_t at_x = n * p.x.strides[0], at_w = k * p.weight.strides[0],
                       at_y = n * p.y.strides[0] + k * p.y.strides[1];
          std::int64_t rest_y = place, rest_w = tap;
          bool inside = true;
          for (std::size_t d = spatial + 1; d >= 2; --d) {
            const std::int64_t o = rest_y % p.y.sizes[d], w = rest_w % p.weight.sizes[d];
            rest_y /= p.y.sizes[d];
            rest_w /= p.weight.sizes[d];
            const std::int64_t i = o * stride[d - 2] - padding[d - 2] + w * dilation[d - 2];
            inside = inside && i >= 0 && i < p.x.sizes[d];
            at_x += i * p.x.strides[d];
            at_w += w * p.weight.strides[d];
            at_y += o * p.y.strides[d];
          }
          if (!inside) continue;
          for (std::int64_t c = 0; c < inner; ++c) {
            each(at_x + (k / outer * inner + c) * p.x.strides[1], at_w + c * p.weight.strides[1],
                 at_y, k);
          }
        }
      }
    }
  }
}

template <class T, class A, class Factor, class To, class From>
void convolve(const Problem& p, const std::map<std::int64_t, void*>& data, Factor&& factor,
              To&& wide, From&& narrow) {
  const auto at = [&](const Tensor& tensor) { return static_cast<T*>(data.at(tensor.name)); };
  T* const result = at(p.result());
  // Both layouts of a dense tensor use all of its memory.
  std::vector<A> sums(static_cast<std::size_t>(p.result().count()), A{0});
  const T* const x = p.pass == 1 ? nullptr : at(p.x);
  const T* const w = p.pass == 2 ? nullptr : at(p.weight);
  const T* const y = p.pass == 0 ? nullptr : at(p.y);
  for_products(p, [&](std::int64_t i, std::int64_t j, std::int64_t k, std::int64_t) {
    A& sum = sums[static_cast<std::size_t>(p.pass == 0 ? k : p.pass == 1 ? i : j)];
    sum = std::fma(factor(p.pass == 1 ? w[j] : x[i]), factor(p.pass == 0 ? w[j] : y[k]), sum);
  });
  if (!p.bias.empty()) {
    const T* const bias = at(p.bias[0]);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const std::int64_t channel = static_cast<std::int64_t>(i) / p.y.strides[1] % p.y.sizes[1];
      sums[i] += wide(bias[channel]);
    }
  }
  for (std::size_t i = 0; i < sums.size(); ++i) result[i] = narrow(sums[i]);
}

void compute(const Problem& p, const std::map<std::int64_t, void*>& data, int engine) {
  const auto same = [](auto x) { return x; };
  const auto wide = [](auto x) { return static_cast<float>(x); };
  switch (p.x.type) {
    case cuda::kDnnReal64:
      return convolve<double, double>(p, data, same, same, same);
    case cuda::kDnnReal32:
      if (engine == kNarrowEngine) return convolve<float, float>(p, data, tf32, same, same);
      return convolve<float, float>(p, data, same, same, same);
    case cuda::kDnnReal16:
      return convolve<core::Half, float>(p, data, wide, wide,
                                         [](float x) { return core::Half(x); });
    default:
      return convolve<core::BFloat16, float>(p, data, wide, wide,
                                             [](float x) { return core::BFloat16(x); });
  }
}

bool fill(DnnAttribute attribute, void* const* descriptors, std::int64_t count, Node& node) {
  const auto give = [&](std::int64_t i, int engine, const NodePtr& graph) {
    Node* to = of(descriptors[i]);
    to->engine = engine;
    to->graph = graph;
    to->finalized = true;
  };
  if (attribute == kConfigEngine) {
    if (count != 1 || of(descriptors[0])->kind != kEngine) return false;
    give(0, node.engine, node.graph);
    return true;
  }
  const std::vector<int> engines = engines_of(node);
  for (std::int64_t i = 0; i < std::min<std::int64_t>(count, std::ssize(engines)); ++i) {
    if (of(descriptors[i])->kind != kEngineConfig) return false;
    give(i, engines[static_cast<std::size_t>(i)], node.node(kHeuristicsGraph));
  }
  return true;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) std::size_t cudnnGetVersion() {
  return config().dnn ? 91900 : 0;
}
extern "C" __attribute__((visibility("default"))) std::size_t cudnnGetCudartVersion() {
  return 13000;
}
EXPORT cudnnCreate(void** handle) {
  std::unique_lock<std::mutex> lock;
  int error = kSuccess;
  Device* device = enter(lock, &error);
  if (device == nullptr) return kNotInitialized;
  *handle = new Handle{device};
  return kSuccess;
}
EXPORT cudnnDestroy(void* handle) {
  delete static_cast<Handle*>(handle);
  return kSuccess;
}
EXPORT cudnnSetStream(void* handle, void* stream) {
  std::unique_lock<std::mutex> lock;
  int error = kSuccess;
  Device* device = enter(lock, &error);
  if (device == nullptr) return kNotInitialized;
  const auto found = state().streams.find(static_cast<Stream*>(stream));
  auto& to = *static_cast<Handle*>(handle);
  if (found == state().streams.end() || found->first->device != to.device || to.device != device) {
    return kBadParameter;
  }
  to.stream = found->first;
  return kSuccess;
}
EXPORT cudnnBackendCreateDescriptor(int kind, void** made) {
  *made = new Descriptor{std::make_shared<Node>(Node{static_cast<DnnKind>(kind), {}, {}, -1, {}})};
  return kSuccess;
}
EXPORT cudnnBackendDestroyDescriptor(void* descriptor) {
  delete static_cast<Descriptor*>(descriptor);
  return kSuccess;
}
EXPORT cudnnBackendSetAttribute(void* descriptor, int name, int type_number, std::int64_t count,
                                const void* from) {
  Node& node = *of(descriptor);
  const auto attribute = static_cast<DnnAttribute>(name);
  const auto type = static_cast<DnnType>(type_number);
  if (node.finalized || from == nullptr) return kBadParameter;
  const auto rule = std::ranges::find_if(kRules, [&](const Rule& each) {
    return each.kind == node.kind && each.attribute == attribute;
  });
  const int pass = pass_of(node);
  const bool scale =
      pass >= 0 && std::ranges::count(kScales[static_cast<std::size_t>(pass)], attribute) > 0;
  if (rule == std::end(kRules) && !scale) return kBadParameter;
  if (scale && ((type != DnnType::kFloat && type != DnnType::kDouble) || count != 1)) {
    return kBadParameter;
  }
  if (!scale && (type != rule->type || count < rule->least || count > rule->most)) {
    return kBadParameter;
  }
  Value value;
  value.count = count;
  value.bytes.resize(static_cast<std::size_t>(count) * size_of(type));
  std::memcpy(value.bytes.data(), from, value.bytes.size());
  if (type == DnnType::kDescriptor) {
    for (std::int64_t i = 0; i < count; ++i) {
      const NodePtr& part = static_cast<Descriptor*>(static_cast<void* const*>(from)[i])->node;
      if (!part->finalized) return kNotFinalized;
      value.nodes.push_back(part);
    }
  }
  node.values[attribute] = std::move(value);
  return kSuccess;
}
EXPORT cudnnBackendFinalize(void* descriptor) {
  Node& node = *of(descriptor);
  for (const Rule& rule : kRules) {
    if (rule.kind == node.kind && rule.needed && !node.has(rule.attribute)) return kBadParameter;
  }
  if (!sound(node)) return kBadParameter;
  if (node.kind == kPlan) {
    node.engine = node.node(kPlanConfig)->engine;
    node.graph = node.node(kPlanConfig)->graph;
  }
  node.finalized = true;
  return kSuccess;
}
EXPORT cudnnBackendGetAttribute(void* descriptor, int name, int type, std::int64_t wanted,
                                std::int64_t* count, void* to) {
  Node& node = *of(descriptor);
  if (!node.finalized) return kNotFinalized;
  const auto attribute = static_cast<DnnAttribute>(name);
  const auto is = [&](DnnKind kind, DnnAttribute each, DnnType of_type) {
    return node.kind == kind && attribute == each && static_cast<DnnType>(type) == of_type;
  };
  if (is(kHeuristics, kHeuristicsResults, kOf) || is(kEngineConfig, kConfigEngine, kOf)) {
    const bool all = node.kind == kHeuristics;
    const auto there = all ? std::ssize(engines_of(node)) : 1;
    *count = wanted == 0 ? there : std::min<std::int64_t>(there, wanted);
    if (!fill(attribute, static_cast<void* const*>(to), wanted, node)) return kBadParameter;
    return kSuccess;
  }
  if (is(kEngine, kEngineNotes, DnnType::kNumericalNote)) {
    const std::vector<int> notes = notes_of(node.engine);
    *count = std::ssize(notes);
    if (!notes.empty()) {
      std::memcpy(to, notes.data(),
                  static_cast<std::size_t>(std::min(wanted, *count)) * sizeof(int));
    }
    return kSuccess;
  }
  if (is(kPlan, kPlanWorkspace, DnnType::kInt64) && wanted == 1) {
    const auto bytes = static_cast<std::int64_t>(Problem(*node.graph).workspace());
    std::memcpy(to, &bytes, sizeof bytes);
    *count = 1;
    return kSuccess;
  }
  return kBadParameter;
}
EXPORT cudnnBackendExecute(void* handle_pointer, void* plan_descriptor, void* pack_descriptor) {
  std::unique_lock<std::mutex> lock;
  int error = kSuccess;
  Device* device = enter(lock, &error);
  if (device == nullptr) return kExecutionFailed;
  const Handle& handle = *static_cast<Handle*>(handle_pointer);
  if (handle.device != device || handle.stream == nullptr) return kNotInitialized;
  const NodePtr plan = static_cast<Descriptor*>(plan_descriptor)->node;
  const Node& pack = *of(pack_descriptor);
  if (plan->kind != kPlan || !plan->finalized || pack.kind != kVariantPack || !pack.finalized) {
    return kNotFinalized;
  }
  const auto names = pack.all<std::int64_t>(kPackNames);
  const auto pointers = pack.all<void*>(kPackPointers);
  std::map<std::int64_t, void*> data;
  for (std::size_t i = 0; i < names.size(); ++i) data[names[i]] = pointers[i];
  const Problem problem(*plan->graph);
  const std::vector<const Tensor*> tensors = problem.tensors();
  if (data.size() != tensors.size()) return kBadParameter;
  Task task;
  bool inside = true;
  const auto touches = [&](const void* pointer, std::size_t bytes) {
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    std::uintptr_t start = 0;
    task.touched.push_back(address);
    inside = block_of(*device, address, bytes, &start) != nullptr && inside;
  };
  for (const Tensor* each : tensors) {
    const auto found = data.find(each->name);
    if (found == data.end()) return kBadParameter;
    if (reinterpret_cast<std::intptr_t>(found->second) % each->alignment != 0) return kBadPointer;
    touches(found->second, static_cast<std::size_t>(each->count() * each->bytes()));
  }
  const std::size_t bytes = problem.workspace();
  void* const workspace = pack.one<void*>(kPackWorkspace);
  if (bytes > 0) {
    if (reinterpret_cast<std::uintptr_t>(workspace) % 16 != 0) return kBadPointer;
    touches(workspace, bytes);
  }
  if (!inside) {
    device->error = kIllegalAddress;
    return kExecutionFailed;
  }
  task.run = [=] {
    if (config().empty) return static_cast<int>(kSuccess);
    if (bytes > 0) std::memset(workspace, 0xAB, bytes);
    const Problem p(*plan->graph);
    compute(p, data, plan->engine);
    if (plan->engine == kHastyEngine) {
      const Tensor& result = p.result();
      std::memset(data.at(result.name), 0xAB, static_cast<std::size_t>(result.bytes()));
    }
    return static_cast<int>(kSuccess);
  };
  const int refused = push(handle.stream, std::move(task), kLibraryNode);
  return refused == 0 ? 0 : static_cast<int>(kExecutionFailed);
}
