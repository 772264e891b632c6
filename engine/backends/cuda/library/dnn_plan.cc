#include "engine/backends/cuda/library/dnn_plan.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace teletensor::backends::cuda {

using core::DType;

namespace {

int dnn_type(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return kDnnReal16;
    case DType::kBF16:
      return kDnnBrain16;
    case DType::kF64:
      return kDnnReal64;
    default:
      return kDnnReal32;
  }
}

int compute_type(DType dtype) { return dtype == DType::kF64 ? kDnnReal64 : kDnnReal32; }

DnnObject tensor_of(const Dnn& dnn, DnnName name, int type, int rank,
                    const Convolution::Side& side) {
  DnnObject made(dnn, DnnKind::kTensor);
  made.set(DnnAttribute::kTensorName, DnnType::kInt64, static_cast<std::int64_t>(name))
      .set(DnnAttribute::kTensorType, DnnType::kDataType, type)
      .set(DnnAttribute::kTensorSizes, DnnType::kInt64, rank, side.sizes)
      .set(DnnAttribute::kTensorStrides, DnnType::kInt64, rank, side.strides)
      .set(DnnAttribute::kTensorAlignment, DnnType::kInt64, dnn_alignment(side.data));
  return made;
}

struct Operation {
  DnnKind kind;
  DnnAttribute alpha, beta, by, x, weight, y;
};
using enum DnnAttribute;
constexpr Operation kOperations[] = {
    // indexed by ConvolutionPass
    {DnnKind::kConvolve, kConvolveAlpha, kConvolveBeta, kConvolveBy, kConvolveX, kConvolveWeight,
     kConvolveY},
    {DnnKind::kConvolveBack, kBackAlpha, kBackBeta, kBackBy, kBackX, kBackWeight, kBackY},
    {DnnKind::kConvolveToWeight, kToWeightAlpha, kToWeightBeta, kToWeightBy, kToWeightX,
     kToWeightWeight, kToWeightY},
};

// The descriptors of the graph; the last one is the graph itself.
std::vector<DnnObject> graph_of(const Dnn& dnn, const DnnTarget& target, const Convolution& c) {
  const int type = dnn_type(c.dtype), compute = compute_type(c.dtype);
  const std::int64_t spatial = c.rank - 2;
  std::vector<DnnObject> parts;
  const auto keep = [&](DnnObject object) -> DnnObject& {
    return parts.emplace_back(std::move(object));
  };
  parts.reserve(9);
  const bool biased = c.bias != nullptr;
  const DnnObject& x = keep(tensor_of(dnn, kNameX, type, c.rank, c.x)).finalize();
  const DnnObject& weight = keep(tensor_of(dnn, kNameWeight, type, c.rank, c.weight)).finalize();
  DnnObject& y = keep(tensor_of(dnn, kNameY, biased ? compute : type, c.rank, c.y));
  if (biased) y.set(kTensorVirtual, DnnType::kBoolean, true);
  y.finalize();
  const DnnObject& by =
      keep(DnnObject(dnn, DnnKind::kConvolution))
          .set(kConvolutionRank, DnnType::kInt64, spatial)
          .set(DnnAttribute::kConvolutionMode, DnnType::kConvolutionMode, kDnnCrossCorrelation)
          .set(kConvolutionCompute, DnnType::kDataType, compute)
          .set(kConvolutionStrides, DnnType::kInt64, spatial, c.stride)
          .set(kConvolutionBefore, DnnType::kInt64, spatial, c.padding)
          .set(kConvolutionAfter, DnnType::kInt64, spatial, c.padding)
          .set(kConvolutionDilations, DnnType::kInt64, spatial, c.dilation)
          .finalize();
  const Operation& names = kOperations[static_cast<std::size_t>(c.pass)];
  DnnObject& convolve = keep(DnnObject(dnn, names.kind));
  convolve.set(names.x, x).set(names.weight, weight).set(names.y, y).set(names.by, by);
  if (c.dtype == DType::kF64) {
    convolve.set(names.alpha, DnnType::kDouble, 1.0).set(names.beta, DnnType::kDouble, 0.0);
  } else {
    convolve.set(names.alpha, DnnType::kFloat, 1.0f).set(names.beta, DnnType::kFloat, 0.0f);
  }
  convolve.finalize();
  DnnDescriptor operations[2] = {convolve.descriptor(), nullptr};
  if (biased) {
    Convolution::Side each;  // one number for each channel
    each.data = c.bias;
    std::fill_n(each.sizes, c.rank, 1);
    std::fill_n(each.strides, c.rank, 1);
    each.sizes[1] = each.strides[0] = c.y.sizes[1];
    const DnnObject& bias = keep(tensor_of(dnn, kNameBias, type, c.rank, each)).finalize();
    const DnnObject& result = keep(tensor_of(dnn, kNameBiased, type, c.rank, c.y)).finalize();
    const DnnObject& add = keep(DnnObject(dnn, DnnKind::kPointwise))
                               .set(DnnAttribute::kPointwiseMode, DnnType::kPointwiseMode, kDnnAdd)
                               .set(kPointwiseCompute, DnnType::kDataType, compute)
                               .finalize();
    operations[1] = keep(DnnObject(dnn, DnnKind::kPointwiseOperation))
                        .set(kPointwiseBy, add)
                        .set(kPointwiseX, y)
                        .set(kPointwiseB, bias)
                        .set(kPointwiseY, result)
                        .finalize()
                        .descriptor();
  }
  const bool ok = std::ranges::all_of(parts, [](const DnnObject& each) { return each.ok(); });
  if (!ok) return {};
  DnnObject graph(dnn, DnnKind::kGraph);
  if (target.handle != nullptr) graph.set(kGraphHandle, DnnType::kHandle, target.handle);
  graph.set(kGraphOperations, DnnType::kDescriptor, biased ? 2 : 1, operations).finalize();
  if (!graph.ok()) return {};
  parts.push_back(std::move(graph));
  return parts;
}

// The engines that the library suggests for a graph, best first.
std::vector<DnnObject> configs_of(const Dnn& dnn, const DnnTarget& target, const DnnObject& graph,
                                  int mode) {
  DnnObject heuristics(dnn, DnnKind::kHeuristics);
  heuristics.set(kHeuristicsGraph, graph).set(kHeuristicsMode, DnnType::kHeuristicMode, mode);
  if (target.properties != nullptr) {
    heuristics.set(kHeuristicsDevice, DnnType::kDescriptor, target.properties);
  }
  heuristics.finalize();
  const std::int64_t count = heuristics.get(kHeuristicsResults, DnnType::kDescriptor, 0, nullptr);
  std::vector<DnnObject> configs;
  std::vector<DnnDescriptor> raw;
  for (std::int64_t i = 0; i < count; ++i) {
    configs.emplace_back(dnn, DnnKind::kEngineConfig);
    if (!configs.back().ok()) return {};
    raw.push_back(configs.back().descriptor());
  }
  std::int64_t filled = 0;
  if (count > 0) {
    filled = heuristics.get(kHeuristicsResults, DnnType::kDescriptor, count, raw.data());
  }
  while (static_cast<std::int64_t>(configs.size()) > filled) configs.pop_back();
  return configs;
}

bool allowed(const Dnn& dnn, DnnObject& config, const Convolution& c) {
  DnnObject engine(dnn, DnnKind::kEngine);
  DnnDescriptor raw = engine.descriptor();
  if (config.get(kConfigEngine, DnnType::kDescriptor, 1, &raw) != 1) return false;
  int notes[32];
  const std::int64_t count =
      engine.get(kEngineNotes, DnnType::kNumericalNote, std::size(notes), notes);
  return engine.ok() && count <= std::int64_t{std::size(notes)} &&
         engine_allowed(c.dtype, c.tf32, std::span(notes, static_cast<std::size_t>(count)));
}

}  // namespace

std::int64_t dnn_alignment(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data) | 16;
  return std::int64_t{1} << std::countr_zero(address);
}

DnnObject::DnnObject(const Dnn& dnn, DnnKind kind)
    : dnn_(&dnn),
      ok_(dnn.cudnnBackendCreateDescriptor(static_cast<int>(kind), &descriptor_) == 0) {}

DnnObject::~DnnObject() {
  if (descriptor_ != nullptr) dnn_->cudnnBackendDestroyDescriptor(descriptor_);
}

DnnObject::DnnObject(DnnObject&& other) noexcept
    : dnn_(other.dnn_), descriptor_(std::exchange(other.descriptor_, nullptr)), ok_(other.ok_) {}

DnnObject& DnnObject::set(DnnAttribute attribute, DnnType type, std::int64_t count,
                          const void* values) {
  ok_ = ok_ && dnn_->cudnnBackendSetAttribute(descriptor_, static_cast<int>(attribute),
                                              static_cast<int>(type), count, values) == 0;
  return *this;
}

std::int64_t DnnObject::get(DnnAttribute attribute, DnnType type, std::int64_t count,
                            void* values) {
  std::int64_t found = 0;
  ok_ = ok_ && dnn_->cudnnBackendGetAttribute(descriptor_, static_cast<int>(attribute),
                                              static_cast<int>(type), count, &found, values) == 0;
  return ok_ ? found : 0;
}

DnnObject& DnnObject::finalize() {
  ok_ = ok_ && dnn_->cudnnBackendFinalize(descriptor_) == 0;
  return *this;
}

// Engines that use Winograd or Fourier transforms are refused: they sum other numbers than the
// products, so their errors are larger, and one infinity spoils neighbouring elements.
bool engine_allowed(DType dtype, bool tf32, std::span<const int> notes) {
  return std::ranges::none_of(notes, [&](int note) {
    switch (note) {
      case kNoteTensorCore:
        return dtype == DType::kF32 && !tf32;
      case kNoteNarrowInputs:
      case kNoteNarrowSums:
      case kNoteFft:
      case kNoteNotRepeatable:
      case kNoteWinograd:
      case kNoteWinograd4:
      case kNoteWinograd6:
      case kNoteWinograd13:
        return true;
      default:
        return false;
    }
  });
}

std::unique_ptr<DnnPlan> plan_convolution(const Dnn& dnn, const DnnTarget& target,
                                          const Convolution& convolution) {
  auto made = std::make_unique<DnnPlan>();
  made->parts = graph_of(dnn, target, convolution);
  if (made->parts.empty()) return nullptr;
  for (const int mode : {kDnnBestFirst, kDnnFallbacks}) {
    for (DnnObject& config : configs_of(dnn, target, made->parts.back(), mode)) {
      if (!allowed(dnn, config, convolution)) continue;
      DnnObject plan(dnn, DnnKind::kPlan);
      plan.set(kPlanConfig, config);
      if (target.handle != nullptr) {
        plan.set(kPlanHandle, DnnType::kHandle, target.handle);
      } else {
        plan.set(kPlanDevice, DnnType::kDescriptor, target.properties);
      }
      plan.finalize();
      std::int64_t workspace = -1;
      plan.get(kPlanWorkspace, DnnType::kInt64, 1, &workspace);
      if (!plan.ok() || workspace < 0 || workspace > std::int64_t{kMaxDnnWorkspace}) continue;
      made->workspace = static_cast<std::size_t>(workspace);
      made->parts.push_back(std::move(config));
      made->parts.push_back(std::move(plan));
      return made;
    }
  }
  return nullptr;
}

}  // namespace teletensor::backends::cuda
