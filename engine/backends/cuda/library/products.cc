#include "engine/backends/cuda/library/products.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <string>
#include <utility>

namespace teletensor::backends::cuda {

using core::Code;
using core::DType;
using core::MutexLock;
using core::Status;

namespace {

constexpr int kMaxAnswers = 4;

// The size that the library's documentation recommends.
std::uint64_t most_workspace(int capability) {
  return (capability >= 90 ? std::uint64_t{32} : std::uint64_t{4}) << 20;
}

int blas_type(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return kReal16;
    case DType::kBF16:
      return kBrain16;
    case DType::kF64:
      return kReal64;
    default:
      return kReal32;
  }
}

// The largest power of two, up to 256, that divides the address.
std::uint32_t alignment(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data) | 256;
  return std::uint32_t{1} << std::countr_zero(address);
}

}  // namespace

// The objects that describe a product to the library. The library's matrices are column-major, so
// it computes the transpose of the result from the transposed operands in reverse order.
struct Products::Plan {
  explicit Plan(const Blas& blas) : blas_(blas) {}
  ~Plan() {
    if (operation != nullptr) blas_.cublasLtMatmulDescDestroy(operation);
    for (BlasLayout* layout : {a, b, c, out}) {
      if (layout != nullptr) blas_.cublasLtMatrixLayoutDestroy(layout);
    }
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  BlasOperation* operation = nullptr;
  BlasLayout *a = nullptr, *b = nullptr, *c = nullptr, *out = nullptr;
  // The library's answers, best first, and the index of the one that is used; `answered` means that
  // none is left. An answer is no guarantee: the library may refuse it when it is started.
  BlasAnswer answers[kMaxAnswers];
  std::size_t answered = 0;
  std::atomic<std::size_t> used{0};
  // Set once it has been started successfully; then such products may be gathered.
  std::atomic<bool> started{false};

  const BlasAnswer* answer() const {
    const std::size_t i = used.load(std::memory_order_acquire);
    return i < answered ? &answers[i] : nullptr;
  }

 private:
  const Blas& blas_;
};

Products::Products(const Blas& blas, Gpu& gpu) : blas_(blas), gpu_(gpu) {}

core::Result<std::unique_ptr<Products>> Products::open(const Blas& blas, Gpu& gpu) {
  TT_RETURN_IF_ERROR(gpu.context().enter());
  std::unique_ptr<Products> made(new Products(blas, gpu));
  TT_RETURN_IF_ERROR(made->check(blas.cublasLtCreate(&made->handle_), "opening cuBLASLt"));
  return made;
}

Products::~Products() {
  (void)gpu_.synchronize();  // after this no gathered work is left
  {
    MutexLock lock(mu_);
    plans_.clear();
  }
  // Work that is still running on the device does not use the handle.
  if (handle_ != nullptr && gpu_.context().enter().ok()) blas_.cublasLtDestroy(handle_);
}

Status Products::check(int code, const char* what) {
  if (code == 0) return {};
  if (code == kBlasExecutionFailed || code == kBlasInternalError) {
    TT_RETURN_IF_ERROR(gpu_.synchronize());  // reports the loss if the device is lost
  }
  const Code kind = code == kBlasNotSupported ? Code::kUnimplemented : Code::kInternal;
  return Status(kind, gpu_.name() + ": " + what + " failed with " + std::to_string(code));
}

Products::Key Products::key_of(const Product& p) {
  const std::int64_t flags = static_cast<std::int64_t>(p.dtype) | p.a.turned << 8 |
                             p.b.turned << 9 | (p.bias != nullptr) << 10 | (p.beta != 0) << 11 |
                             p.tf32 << 12;
  const ProductMatrix none;
  const ProductMatrix& c = p.beta != 0 ? p.c : none;
  const std::int64_t aligned =
      std::int64_t{alignment(p.a.data)} | std::int64_t{alignment(p.b.data)} << 10 |
      std::int64_t{alignment(c.data)} << 20 | std::int64_t{alignment(p.out)} << 30 |
      std::int64_t{alignment(p.bias)} << 40;
  return {flags,     p.batches, p.m,       p.n,    p.k,     p.a.line,
          p.a.batch, p.b.line,  p.b.batch, c.line, c.batch, aligned};
}

std::shared_ptr<Products::Plan> Products::find(const Key& key) {
  MutexLock lock(mu_);
  const auto found = plans_.find(key);
  return found == plans_.end() ? nullptr : found->second;
}

std::shared_ptr<Products::Plan> Products::plan(const Product& product) {
  const Key key = key_of(product);
  if (auto found = find(key)) return found;
  MutexLock planning(planning_);
  if (auto found = find(key)) return found;  // another thread has made it meanwhile
  const auto made = std::make_shared<Plan>(blas_);
  choose(product, *made);
  MutexLock lock(mu_);
  if (plans_.size() >= kMaxPlans) plans_.clear();
  plans_[key] = made;
  return made;
}

// Leaves `plan` without an answer if the library refuses anything.
void Products::choose(const Product& p, Plan& plan) {
  const bool wide = p.dtype == DType::kF64;
  const int type = blas_type(p.dtype);
  const int compute = wide ? kCompute64 : p.tf32 ? kComputeTf32 : kCompute32;
  if (blas_.cublasLtMatmulDescCreate(&plan.operation, compute, wide ? kReal64 : kReal32) != 0) {
    return;
  }
  const auto has = [&](int attribute, const auto& value) {
    return blas_.cublasLtMatmulDescSetAttribute(plan.operation, attribute, &value, sizeof value) ==
           0;
  };
  if (p.b.turned && !has(kOperationA, kTransposed)) return;
  if (p.a.turned && !has(kOperationB, kTransposed)) return;
  if (p.bias != nullptr && !(has(kEpilogue, kEpilogueBias) && has(kBiasPointer, p.bias))) return;
  const auto batches = static_cast<std::int32_t>(p.batches);
  if (batches != p.batches) return;
  const auto layout = [&](BlasLayout** made, std::int64_t rows, std::int64_t columns,
                          const ProductMatrix& matrix) {
    if (matrix.turned) std::swap(rows, columns);
    if (blas_.cublasLtMatrixLayoutCreate(made, type, static_cast<std::uint64_t>(columns),
                                         static_cast<std::uint64_t>(rows), matrix.line) != 0) {
      return false;
    }
    const auto set = [&](int attribute, const auto& value) {
      return blas_.cublasLtMatrixLayoutSetAttribute(*made, attribute, &value, sizeof value) == 0;
    };
    return batches == 1 || (set(kBatchCount, batches) && set(kBatchStride, matrix.batch));
  };
  const ProductMatrix out{p.out, false, p.n, p.m * p.n}, &c = p.beta != 0 ? p.c : out;
  if (!layout(&plan.a, p.m, p.k, p.a) || !layout(&plan.b, p.k, p.n, p.b) ||
      !layout(&plan.c, p.m, p.n, c) || !layout(&plan.out, p.m, p.n, out)) {
    return;
  }
  BlasPreference* preference = nullptr;
  if (blas_.cublasLtMatmulPreferenceCreate(&preference) != 0) return;
  const auto wants = [&](int attribute, const auto& value) {
    return blas_.cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value,
                                                      sizeof value) == 0;
  };
  int answers = 0;
  const bool answered =
      wants(kMaxWorkspace, most_workspace(gpu_.facts().capability)) &&
      wants(kReductions, kReduceAsComputed) && wants(kAlignmentA, alignment(p.b.data)) &&
      wants(kAlignmentA + 1, alignment(p.a.data)) && wants(kAlignmentA + 2, alignment(c.data)) &&
      wants(kAlignmentA + 3, alignment(p.out)) &&
      blas_.cublasLtMatmulAlgoGetHeuristic(handle_, plan.operation, plan.b, plan.a, plan.c,
                                           plan.out, preference, kMaxAnswers, plan.answers,
                                           &answers) == 0;
  blas_.cublasLtMatmulPreferenceDestroy(preference);
  if (!answered) return;
  while (plan.answered < static_cast<std::size_t>(answers) &&
         plan.answers[plan.answered].state == 0) {
    ++plan.answered;
  }
}

std::optional<std::size_t> Products::workspace(const Product& product) {
  if (!gpu_.context().enter().ok()) return std::nullopt;
  const BlasAnswer* const answer = plan(product)->answer();
  if (answer == nullptr) return std::nullopt;
  return answer->workspace;
}

Status Products::run(const Product& product) {
  const auto chosen = plan(product);
  std::size_t used = chosen->used.load(std::memory_order_acquire);
  if (used >= chosen->answered || product.workspace_bytes < chosen->answers[used].workspace) {
    return Status(Code::kUnimplemented, gpu_.name() + ": there is no plan for a matrix product");
  }
  const bool known = chosen->started.load(std::memory_order_relaxed);
  int code = 0;
  TT_RETURN_IF_ERROR(gpu_.launch(*this, product, known, &code));
  if (code == kBlasInvalidValue || code == kBlasNotSupported) {
    chosen->used.compare_exchange_strong(used, used + 1);  // the next call uses the next answer
    return Status(Code::kUnimplemented, gpu_.name() + ": cuBLASLt refuses its own plan");
  }
  TT_RETURN_IF_ERROR(check(code, "a matrix product"));
  if (!known) chosen->started.store(true, std::memory_order_relaxed);
  return {};
}

int Products::start(const LibraryCall& call, Stream stream) {
  const Product& p = std::get<Product>(call);
  const auto held = plan(p);
  const Plan& chosen = *held;
  const BlasAnswer* const answer = chosen.answer();
  if (answer == nullptr || p.workspace_bytes < answer->workspace) return kBlasNotSupported;
  MutexLock lock(mu_);
  if (p.bias != nullptr) {
    const int code = blas_.cublasLtMatmulDescSetAttribute(chosen.operation, kBiasPointer, &p.bias,
                                                          sizeof p.bias);
    if (code != 0) return code;
  }
  const auto narrow_alpha = static_cast<float>(p.alpha), narrow_beta = static_cast<float>(p.beta);
  const bool wide = p.dtype == DType::kF64;
  const void* const alpha = wide ? static_cast<const void*>(&p.alpha) : &narrow_alpha;
  const void* const beta = wide ? static_cast<const void*>(&p.beta) : &narrow_beta;
  return blas_.cublasLtMatmul(handle_, chosen.operation, alpha, p.b.data, chosen.b, p.a.data,
                              chosen.a, beta, p.beta != 0 ? p.c.data : p.out, chosen.c, p.out,
                              chosen.out, &answer->algorithm, p.workspace, p.workspace_bytes,
                              stream);
}

}  // namespace teletensor::backends::cuda
