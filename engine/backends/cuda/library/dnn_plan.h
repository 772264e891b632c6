// DnnPlan: an execution plan of cuDNN, which runs a graph on a device with an engine of the
// required precision.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/backends/cuda/driver/dnn.h"
#include "engine/backends/cuda/library/convolution.h"

namespace teletensor::backends::cuda {

// The target of a plan: an actual device or, in tests, the description of one.
struct DnnTarget {
  DnnHandle handle = nullptr;
  DnnDescriptor properties = nullptr;
};

// A descriptor of the library. After the first error it is not ok, and all later calls do nothing.
class DnnObject {
 public:
  DnnObject(const Dnn& dnn, DnnKind kind);
  ~DnnObject();
  DnnObject(DnnObject&& other) noexcept;
  DnnObject& operator=(DnnObject&&) = delete;

  DnnObject& set(DnnAttribute attribute, DnnType type, std::int64_t count, const void* values);
  template <class T>
  DnnObject& set(DnnAttribute attribute, DnnType type, const T& value) {
    return set(attribute, type, 1, &value);
  }
  DnnObject& set(DnnAttribute attribute, const DnnObject& other) {
    ok_ = ok_ && other.ok_;
    return set(attribute, DnnType::kDescriptor, 1, &other.descriptor_);
  }
  // Returns how many values the attribute has; at most `count` of them are stored.
  std::int64_t get(DnnAttribute attribute, DnnType type, std::int64_t count, void* values);
  DnnObject& finalize();
  bool ok() const { return ok_; }
  DnnDescriptor descriptor() const { return descriptor_; }

 private:
  const Dnn* dnn_;
  DnnDescriptor descriptor_ = nullptr;
  bool ok_;
};

struct DnnPlan {
  // The descriptors that the plan was made from, and the plan itself at the end.
  std::vector<DnnObject> parts;
  std::size_t workspace = 0;
  mutable std::atomic<bool> started{false};  // set once the plan has been started successfully
  DnnDescriptor descriptor() const { return parts.back().descriptor(); }
};

// Identifiers of the tensors in graphs and variant packs.
enum DnnName : std::int64_t { kNameX = 1, kNameWeight, kNameY, kNameBias, kNameBiased };

// The largest power of two, up to 16, that divides the address; a plan may rely on this alignment.
std::int64_t dnn_alignment(const void* data);

// Maximum temporary memory of a plan.
inline constexpr std::size_t kMaxDnnWorkspace = std::size_t{1} << 30;

// Returns true if an engine with these notes computes in the requested precision and always gives
// the same bits.
bool engine_allowed(core::DType dtype, bool tf32, std::span<const int> notes);

// Returns null if the library has no engine that may be used for this convolution.
std::unique_ptr<DnnPlan> plan_convolution(const Dnn& dnn, const DnnTarget& target,
                                          const Convolution& convolution);

}  // namespace teletensor::backends::cuda
