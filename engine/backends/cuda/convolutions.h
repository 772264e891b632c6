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
class Convolutions {
 public:
  static constexpr std::size_t kMostPlans = 1024;

  // Both outlive it.
  static core::Result<std::unique_ptr<Convolutions>> open(const Dnn& dnn, Gpu& gpu);
  ~Convolutions();
  Convolutions(const Convolutions&) = delete;
  Convolutions& operator=(const Convolutions&) = delete;

  // The temporary memory that it wants; nothing: the library does not take it.
  std::optional<std::size_t> workspace(const Convolution& convolution);
  // What the calling thread's session asks next. Precondition: workspace() has answered, and so
  // much is there.
  core::Status run(const Convolution& convolution);

 private:
  // All that the library's choice depends on.
  using Key = std::array<std::int64_t, 2 + 6 * Convolution::kMostRank + 9>;

  Convolutions(const Dnn& dnn, Gpu& gpu);
  static Key key_of(const Convolution& convolution);
  const DnnPlan* plan(const Convolution& convolution) TT_REQUIRES(mu_);
  core::Status start(const Convolution& convolution, Stream stream);
  int execute(const DnnPlan& plan, const Convolution& convolution) TT_REQUIRES(mu_);
  core::Status check(int code, const char* what);

  const Dnn& dnn_;
  Gpu& gpu_;
  core::Mutex mu_;
  DnnHandle handle_ = nullptr;
  std::map<Key, std::unique_ptr<DnnPlan>> plans_ TT_GUARDED_BY(mu_);  // null: refused
};

}  // namespace teletensor::backends::cuda
