// Products: runs the matrix products of one device with cuBLASLt.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>

#include "engine/backends/cuda/device/gpu.h"
#include "engine/backends/cuda/driver/blas.h"
#include "engine/backends/cuda/library/product.h"
#include "engine/core/mutex.h"
#include "engine/core/status.h"

namespace teletensor::backends::cuda {

// Thread-safe.
class Products final : public Library {
 public:
  static constexpr std::size_t kMaxPlans = 4096;

  // Precondition: both outlive the Products.
  static core::Result<std::unique_ptr<Products>> open(const Blas& blas, Gpu& gpu);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // The temporary memory that the product needs; no value if the library does not support the
  // product.
  std::optional<std::size_t> workspace(const Product& product);
  // Queues the product for the calling thread's session. Precondition: workspace() has returned a
  // size, and the product has that much memory. If a product with the same plan has been started
  // before, the call may be gathered.
  core::Status run(const Product& product);

 private:
  // The parameters of a product that determine which algorithm the library chooses.
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
  core::Mutex planning_;  // only one thread asks for a plan at a time; taken before mu_
  // Held while a product is started, because the address of the bias is set in the plan.
  core::Mutex mu_;
  std::map<Key, std::shared_ptr<Plan>> plans_ TT_GUARDED_BY(mu_);
};

}  // namespace teletensor::backends::cuda
