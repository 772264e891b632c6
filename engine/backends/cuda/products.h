// Products: matrix products of one device by cuBLASLt.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>

#include "engine/backends/cuda/blas.h"
#include "engine/backends/cuda/gpu.h"
#include "engine/backends/cuda/product.h"
#include "engine/core/mutex.h"
#include "engine/core/status.h"

namespace teletensor::backends::cuda {

// Thread-safe.
class Products final : public Library {
 public:
  static constexpr std::size_t kMaxPlans = 4096;

  // Both outlive it.
  static core::Result<std::unique_ptr<Products>> open(const Blas& blas, Gpu& gpu);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // The temporary memory that the product wants; nothing: the library does not take it.
  std::optional<std::size_t> workspace(const Product& product);
  // What the calling thread's session asks next. Precondition: workspace() has answered, and so
  // much is there. One whose like has been started before may be gathered.
  core::Status run(const Product& product);

 private:
  // All that the library's choice depends on.
  using Key = std::array<std::int64_t, 12>;
  struct Plan;

  Products(const Blas& blas, Gpu& gpu);
  static Key key_of(const Product& product);
  std::shared_ptr<Plan> find(const Key& key);
  std::shared_ptr<Plan> plan(const Product& product);
  void choose(const Product& product, Plan& plan);
  int start(const LibraryCall& call, Stream stream) override;
  core::Status check(int code, const char* what);

  const Blas& blas_;
  Gpu& gpu_;
  BlasHandle handle_ = nullptr;
  core::Mutex planning_;  // one asks for a plan at a time; before mu_
  core::Mutex mu_;        // held by whoever starts a product: its plan is told where the bias lies
  std::map<Key, std::shared_ptr<Plan>> plans_ TT_GUARDED_BY(mu_);
};

}  // namespace teletensor::backends::cuda
