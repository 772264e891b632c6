#include "engine/backends/cuda/cuda_backend.h"

#include <utility>
#include <vector>

#include "engine/backends/cuda/on_host.h"

namespace teletensor::backends::cuda {

using core::Code;
using core::Status;

CudaBackend::CudaBackend(std::unique_ptr<Gpu> gpu, DeviceLibraries libraries, core::Device device,
                         const Compiler& compiler, const ops::Catalog& catalog, KernelTable host,
                         std::string code_folder, Log log)
    : gpu_(std::move(gpu)),
      libraries_(std::move(libraries)),
      device_(device),
      catalog_(catalog),
      host_(std::move(host)),
      table_(make_device_table(catalog)),
      log_(std::move(log)),
      cache_(*gpu_, compiler, std::move(code_folder), log_),
      on_host_(catalog) {}

CudaBackend::~CudaBackend() {
  if (!log_) return;
  const program::Activity did = activity();
  std::string ops;
  for (const auto& [op, count] : did.on_host) {
    ops += (ops.empty() ? "" : ", ") + op + " " + std::to_string(count);
  }
  if (!ops.empty()) log_(false, gpu_->name() + ": on the host: " + ops);
  log_(false,
       gpu_->name() + ": " + std::to_string(did.instructions) + " instructions and " +
           std::to_string(did.loops) + " loops ran as kernels, " +
           std::to_string(did.calls_on_host()) + " instructions on the host; " +
           std::to_string(products_.load(std::memory_order_relaxed)) + " products by cuBLASLt, " +
           std::to_string(convolutions_.load(std::memory_order_relaxed)) +
           " convolutions by cuDNN; " + std::to_string(did.compiled) + " kernels compiled, " +
           std::to_string(did.read) + " read, " + std::to_string(did.refused) + " refused");
}

program::Activity CudaBackend::activity() const {
  const KernelCache::Counts kernels = cache_.counts();
  return {gpu_->queues().device_ns(),
          gpu_->queues().in_flight(),
          gpu_->queues().starts(),
          gpu_->queues().graphs(),
          on_device_.load(std::memory_order_relaxed),
          loops_.load(std::memory_order_relaxed),
          kernels.compiled,
          kernels.from_disk,
          kernels.refused,
          kernels.loaded,
          on_host_.counts()};
}

Kernel CudaBackend::find(ops::OpId op) const {
  const bool any = host_.find(op) != nullptr || table_.find(op).describe != nullptr;
  return any ? &CudaBackend::run : nullptr;
}

LoopRole CudaBackend::role(ops::OpId op) const {
  const Skeleton skeleton = table_.find(op).skeleton;
  return skeleton == Skeleton::kLoop ? host_.role(op) : LoopRole::kNone;
}

Status CudaBackend::run(KernelCall& call) {
  CudaBackend& self = static_cast<CudaBackend&>(*call.backend);
  const Status status = self.run_on_device(call);
  return status.code() == Code::kUnimplemented ? self.run_on_host(call) : status;
}

Status CudaBackend::run_on_device(KernelCall& call) {
  const DeviceKernel& kernel = table_.find(catalog_.id(call.op));
  if (kernel.describe == nullptr) return Status(Code::kUnimplemented, "");
  Work work;
  work.products = libraries_.products.get();
  work.convolutions = libraries_.convolutions.get();
  TT_RETURN_IF_ERROR(kernel.describe(call, work));
  bool refused = false;
  TT_RETURN_IF_ERROR(launch(work, false, &refused));
  if (refused) return run_on_host(call);
  return {};
}

Status CudaBackend::run_on_host(KernelCall& call) {
  const Kernel kernel = host_.find(catalog_.id(call.op));
  if (kernel == nullptr) {
    return Status(Code::kUnimplemented, call.op.name + ": not available on " + gpu_->name());
  }
  on_host_.add(catalog_.id(call.op));
  return run_through_host(call, kernel, *gpu_);
}

Status CudaBackend::run_loop(std::span<const LoopStep> steps, Parallel& parallel,
                             Scratch& scratch) {
  Work work;
  TT_RETURN_IF_ERROR(describe_loop(steps, parallel, scratch, work));
  bool refused = false;
  TT_RETURN_IF_ERROR(launch(work, true, &refused));
  if (refused) return Status(Code::kFailedPrecondition, "the loop refused its operands");
  return {};
}

Status CudaBackend::launch(const Work& work, bool loop, bool* refused) {
  // All kernels are fetched before the first launch: if one is not available, nothing has been
  // stored yet.
  std::vector<KernelRef> kernels;
  kernels.reserve(work.launches.size());
  for (const Launch& each : work.launches) {
    if (each.product || each.convolution) {
      kernels.emplace_back();
      continue;
    }
    core::Result<KernelRef> found = loop ? cache_.find_loop(each.key, each.shape.shared_bytes)
                                         : cache_.find(each.key, each.shape.shared_bytes);
    if (!found.ok()) return found.status();
    kernels.push_back(*found);
  }
  if (work.flag != nullptr) TT_RETURN_IF_ERROR(gpu_->zero(work.flag, sizeof(std::int32_t)));
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    const Launch& each = work.launches[i];
    if (each.product) {
      TT_RETURN_IF_ERROR(libraries_.products->run(*each.product));
      products_.fetch_add(1, std::memory_order_relaxed);
      continue;
    }
    if (each.convolution) {
      TT_RETURN_IF_ERROR(libraries_.convolutions->run(*each.convolution));
      convolutions_.fetch_add(1, std::memory_order_relaxed);
      continue;
    }
    const bool known = kernels[i]->known(each.shape);
    TT_RETURN_IF_ERROR(gpu_->launch(kernels[i]->function(), each.shape, each.params, known));
    if (!known) kernels[i]->set_known(each.shape);
  }
  if (work.checks) {
    std::int32_t flag = 0;
    TT_RETURN_IF_ERROR(gpu_->device_to_host().copy(&flag, work.flag, sizeof flag));
    *refused = flag != 0;
  }
  for (const Work::Proof& proof : work.proofs) {
    if (!*refused) proof.of->narrow(proof.dtype, proof.least, proof.most);
  }
  (loop ? loops_ : on_device_).fetch_add(1, std::memory_order_relaxed);
  return {};
}

Status CudaBackend::copy_from(Backend& other, void* to, const void* from, std::size_t bytes) {
  auto* device = dynamic_cast<CudaBackend*>(&other);
  if (device == nullptr) return Backend::copy_from(other, to, from, bytes);
  return gpu_->copy_from(*device->gpu_, to, from, bytes);
}

}  // namespace teletensor::backends::cuda
