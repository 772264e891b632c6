// Convolutions: runs the convolutions of one device with cuDNN.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "engine/backends/cuda/device/gpu.h"
#include "engine/backends/cuda/library/convolution.h"
#include "engine/backends/cuda/library/dnn_plan.h"
#include "engine/core/mutex.h"
#include "engine/core/status.h"

namespace teletensor::backends::cuda {

// Thread-safe.
class Convolutions final : public Library {
 public:
  static constexpr std::size_t kMaxPlans = 1024;

  // Precondition: both outlive the Convolutions.
  static core::Result<std::unique_ptr<Convolutions>> open(const Dnn& dnn, Gpu& gpu);
  ~Convolutions();
  Convolutions(const Convolutions&) = delete;
  Convolutions& operator=(const Convolutions&) = delete;

  // Returns the library's plan for a convolution, or null if it has none. The plan depends on the
  // alignment of the addresses but not on the addresses.
  std::shared_ptr<const DnnPlan> plan(const Convolution& convolution);
  // Queues the convolution for the calling thread's session. Precondition: convolution.plan and its
  // workspace are set. If the plan has been started before, the call may be gathered.
  core::Status run(const Convolution& convolution);

 private:
  // The parameters of a convolution that determine which algorithm the library chooses.
  using Key = std::array<std::int64_t, 2 + 6 * Convolution::kMaxRank + 9>;

  Convolutions(const Dnn& dnn, Gpu& gpu);
  static Key key_of(const Convolution& convolution);
  // Returns no value if the convolution has not been planned yet.
  std::optional<std::shared_ptr<const DnnPlan>> find(const Key& key);
  int start(const LibraryCall& call, Stream stream) override;
  core::Status check(int code, const char* what);

  const Dnn& dnn_;
  Gpu& gpu_;
  // Only one thread at a time may use a handle. Planning takes long, so it has a handle of its own
  // and other threads can run convolutions meanwhile.
  core::Mutex planning_;
  DnnHandle planner_ = nullptr;
  core::Mutex running_;
  DnnHandle runner_ = nullptr;
  core::Mutex mu_;
  // Null if the library refused.
  std::map<Key, std::shared_ptr<const DnnPlan>> plans_ TT_GUARDED_BY(mu_);
};

}  // namespace teletensor::backends::cuda
