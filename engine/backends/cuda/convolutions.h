// Convolutions of one device by cuDNN.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "engine/backends/cuda/convolution.h"
#include "engine/backends/cuda/dnn_plan.h"
#include "engine/backends/cuda/gpu.h"
#include "engine/core/mutex.h"
#include "engine/core/status.h"

namespace teletensor::backends::cuda {

// Thread-safe.
class Convolutions final : public Library {
 public:
  static constexpr std::size_t kMaxPlans = 1024;

  // Both outlive it.
  static core::Result<std::unique_ptr<Convolutions>> open(const Dnn& dnn, Gpu& gpu);
  ~Convolutions();
  Convolutions(const Convolutions&) = delete;
  Convolutions& operator=(const Convolutions&) = delete;

  // How the library does it: of addresses only the alignments count. Null: it does not.
  std::shared_ptr<const DnnPlan> plan(const Convolution& convolution);
  // What the calling thread's session asks next. Precondition: convolution.plan, and its workspace.
  // One whose like has been started before may be gathered.
  core::Status run(const Convolution& convolution);

 private:
  // All that the library's choice depends on.
  using Key = std::array<std::int64_t, 2 + 6 * Convolution::kMaxRank + 9>;

  Convolutions(const Dnn& dnn, Gpu& gpu);
  static Key key_of(const Convolution& convolution);
  // Nothing: not planned yet.
  std::optional<std::shared_ptr<const DnnPlan>> find(const Key& key);
  int start(const LibraryCall& call, Stream stream) override;
  core::Status check(int code, const char* what);

  const Dnn& dnn_;
  Gpu& gpu_;
  // Handles are one thread's at a time. Planning takes long: others run meanwhile.
  core::Mutex planning_;
  DnnHandle planner_ = nullptr;
  core::Mutex running_;
  DnnHandle runner_ = nullptr;
  core::Mutex mu_;
  std::map<Key, std::shared_ptr<const DnnPlan>> plans_ TT_GUARDED_BY(mu_);  // null: refused
};

}  // namespace teletensor::backends::cuda
