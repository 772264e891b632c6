#include "engine/backends/cuda/library/convolutions.h"

#include <string>
#include <utility>

namespace teletensor::backends::cuda {

using core::Code;
using core::MutexLock;
using core::Status;

Convolutions::Convolutions(const Dnn& dnn, Gpu& gpu) : dnn_(dnn), gpu_(gpu) {}

core::Result<std::unique_ptr<Convolutions>> Convolutions::open(const Dnn& dnn, Gpu& gpu) {
  TT_RETURN_IF_ERROR(gpu.context().enter());
  std::unique_ptr<Convolutions> made(new Convolutions(dnn, gpu));
  for (DnnHandle* handle : {&made->planner_, &made->runner_}) {
    TT_RETURN_IF_ERROR(made->check(dnn.cudnnCreate(handle), "opening cuDNN"));
  }
  return made;
}

Convolutions::~Convolutions() {
  (void)gpu_.synchronize();  // after this no gathered work is left
  const bool entered = gpu_.context().enter().ok();
  {
    MutexLock lock(mu_);
    plans_.clear();
  }
  // Work that is still running on the device does not use the handles.
  for (DnnHandle handle : {planner_, runner_}) {
    if (handle != nullptr && entered) dnn_.cudnnDestroy(handle);
  }
}

Status Convolutions::check(int code, const char* what) {
  if (code == 0) return {};
  const int kind = code / kDnnErrorKind * kDnnErrorKind;
  if (kind == kDnnExecutionFailed || kind == kDnnInternalError) {
    TT_RETURN_IF_ERROR(gpu_.synchronize());  // reports the loss if the device is lost
  }
  return Status(kind == kDnnNotSupported ? Code::kUnimplemented : Code::kInternal,
                gpu_.name() + ": " + what + " failed with " + std::to_string(code));
}

Convolutions::Key Convolutions::key_of(const Convolution& c) {
  Key key = {};
  std::size_t at = 0;
  key[at++] = static_cast<std::int64_t>(c.dtype) | static_cast<std::int64_t>(c.pass) << 8 |
              std::int64_t{c.tf32} << 16 | std::int64_t{c.rank} << 17 |
              std::int64_t{c.bias != nullptr} << 24;
  key[at++] = dnn_alignment(c.x.data) | dnn_alignment(c.weight.data) << 8 |
              dnn_alignment(c.y.data) << 16 | dnn_alignment(c.bias) << 24;
  const auto put = [&](const auto& numbers) {
    for (const std::int64_t number : numbers) key[at++] = number;
  };
  for (const Convolution::Side* side : {&c.x, &c.weight, &c.y}) {
    put(side->sizes);
    put(side->strides);
  }
  put(c.stride);
  put(c.padding);
  put(c.dilation);
  return key;
}

std::optional<std::shared_ptr<const DnnPlan>> Convolutions::find(const Key& key) {
  MutexLock lock(mu_);
  const auto found = plans_.find(key);
  if (found == plans_.end()) return std::nullopt;
  return found->second;
}

std::shared_ptr<const DnnPlan> Convolutions::plan(const Convolution& convolution) {
  const Key key = key_of(convolution);
  if (auto found = find(key)) return *found;
  if (!gpu_.context().enter().ok()) return nullptr;
  MutexLock planning(planning_);
  if (auto found = find(key)) return *found;  // another thread has made it meanwhile
  std::shared_ptr<const DnnPlan> made = plan_convolution(dnn_, {planner_, nullptr}, convolution);
  MutexLock lock(mu_);
  if (plans_.size() >= kMaxPlans) plans_.clear();
  plans_[key] = made;
  return made;
}

Status Convolutions::run(const Convolution& convolution) {
  std::atomic<bool>& started = convolution.plan->started;
  const bool known = started.load(std::memory_order_relaxed);
  int code = 0;
  TT_RETURN_IF_ERROR(gpu_.launch(*this, convolution, known, &code));
  TT_RETURN_IF_ERROR(check(code, "a convolution"));
  if (!known) started.store(true, std::memory_order_relaxed);
  return {};
}

int Convolutions::start(const LibraryCall& call, Stream stream) {
  const Convolution& c = std::get<Convolution>(call);
  const bool biased = c.bias != nullptr;
  const std::int64_t names[] = {kNameX, kNameWeight, biased ? kNameBiased : kNameY, kNameBias};
  const void* const data[] = {c.x.data, c.weight.data, c.y.data, c.bias};
  const std::int64_t count = biased ? 4 : 3;
  DnnObject pack(dnn_, DnnKind::kVariantPack);
  pack.set(DnnAttribute::kPackNames, DnnType::kInt64, count, names)
      .set(DnnAttribute::kPackPointers, DnnType::kPointer, count, data)
      .set(DnnAttribute::kPackWorkspace, DnnType::kPointer, c.workspace)
      .finalize();
  if (!pack.ok()) return kDnnInternalError;
  MutexLock lock(running_);
  const int code = dnn_.cudnnSetStream(runner_, stream);
  if (code != 0) return code;
  return dnn_.cudnnBackendExecute(runner_, c.plan->descriptor(), pack.descriptor());
}

}  // namespace teletensor::backends::cuda
