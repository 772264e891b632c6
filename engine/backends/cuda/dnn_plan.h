// Plans: graphs of cuDNN, finalized for a device by an engine that computes what we asked for.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/backends/cuda/convolution.h"
#include "engine/backends/cuda/dnn.h"

namespace teletensor::backends::cuda {

// What a plan is made for: a device that is there, or (in tests) one that is only described.
struct DnnTarget {
  DnnHandle handle = nullptr;
  DnnDescriptor properties = nullptr;
};

// A descriptor of the library's. Whatever is refused makes it not ok, and then the rest is too.
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
  // How many there were; those beyond `count` are left out.
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
  std::vector<DnnObject> parts;  // what the plan was made from, and last the plan
  std::size_t workspace = 0;
  mutable std::atomic<bool> started{false};  // once: it can be
  DnnDescriptor descriptor() const { return parts.back().descriptor(); }
};

// Names of tensors in graphs and variant packs.
enum DnnName : std::int64_t { kNameX = 1, kNameWeight, kNameY, kNameBias, kNameBiased };

// The largest power of two, up to 16, that the address is a multiple of: what a plan may rely on.
std::int64_t dnn_alignment(const void* data);

// Most temporary memory of a plan.
inline constexpr std::size_t kMaxDnnWorkspace = std::size_t{1} << 30;

// Does an engine with these notes compute in the precision that was asked for, the same each time?
bool engine_allowed(core::DType dtype, bool tf32, std::span<const int> notes);

// Null: the library has no engine for it that may be used.
std::unique_ptr<DnnPlan> plan_convolution(const Dnn& dnn, const DnnTarget& target,
                                          const Convolution& convolution);

}  // namespace teletensor::backends::cuda
