// CudaBackend: a GPU as a device "cuda:N" of the engine.
//
// If the device table has a kernel for a call, the call runs as launches on the device. Otherwise
// it runs on the host: operands are copied out, the CPU's kernel runs, and the results are copied
// back. So every op of the catalog works, with the same errors. docs/ops.md lists how each op runs.
//
// Thread-safe: lanes call it at the same time, each for another session. Launches, and copies
// within the device, only enter the queue of a session (gpu.h), so kernels return before the GPU
// has computed. Once the GPU is lost, every instruction and every allocation fails with the error
// of health().
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/backends/accelerator.h"
#include "engine/backends/cuda/codegen/kernel_cache.h"
#include "engine/backends/cuda/device/gpu.h"
#include "engine/backends/cuda/device_table.h"
#include "engine/backends/cuda/library/convolutions.h"
#include "engine/backends/cuda/library/products.h"
#include "engine/backends/cuda/on_host.h"

namespace teletensor::backends::cuda {

// The libraries of one device; null if a library is missing. They are destroyed before the device.
struct DeviceLibraries {
  std::unique_ptr<Products> products;
  std::unique_ptr<Convolutions> convolutions;
};

class CudaBackend final : public Accelerator {
 public:
  // `host` has the CPU's kernels.
  CudaBackend(std::unique_ptr<Gpu> gpu, DeviceLibraries libraries, core::Device device,
              const Compiler& compiler, const ops::Catalog& catalog, KernelTable host,
              std::string code_folder, Log log);
  // Writes the statistics of this device to the log.
  ~CudaBackend() override;

  core::Device device() const override { return device_; }
  Facts facts() const override {
    return {gpu_->facts().model, gpu_->facts().capability, gpu_->facts().multiprocessors,
            gpu_->facts().memory, gpu_->facts().uuid};
  }
  program::Activity activity() const override;
  Kernel find(ops::OpId op) const override;
  LoopRole role(ops::OpId op) const override;
  core::Status run_loop(std::span<const LoopStep> steps, Parallel& parallel,
                        Scratch& scratch) override;
  void* allocate(std::size_t bytes) override { return gpu_->allocate(bytes); }
  void deallocate(void* memory, std::size_t) override { gpu_->free(memory); }
  void zero(void* memory, std::size_t bytes) override { (void)gpu_->zero(memory, bytes); }
  void transfer_ownership(void* memory, std::size_t bytes, memory::OwnerId from,
                          memory::OwnerId to) override {
    (void)gpu_->transfer_ownership(memory, bytes, from, to);
  }
  core::Status begin_shared() override { return gpu_->follow_all(); }
  core::Status end_shared() override { return gpu_->make_all_follow(); }
  core::Status begin_beside(memory::OwnerId owner) override { return gpu_->begin_beside(owner); }
  void gather(memory::OwnerId owner, bool on) override { (void)gpu_->gather(owner, on); }
  core::Status copy_now(void* to, const void* from, std::size_t bytes) override {
    return gpu_->copy_now(to, from, bytes);
  }
  std::size_t open_unit() const override { return gpu_->mappable().unit(); }
  int open_memory(std::size_t bytes, void** memory) override {
    return gpu_->mappable().allocate(bytes, memory);
  }
  void withdraw(int descriptor, void* memory, std::size_t bytes) override {
    gpu_->mappable().withdraw(descriptor, memory, bytes);
  }
  bool lock(void* host, std::size_t bytes) override { return gpu_->lock(host, bytes); }
  bool unlock(void* host) override { return gpu_->unlock(host); }
  core::Status copy_in_locked(void* memory, const void* host, std::size_t bytes,
                              const std::function<bool()>& go_on) override {
    return gpu_->host_to_device().copy_locked(memory, host, bytes, go_on);
  }
  core::Status copy_out_locked(void* host, const void* memory, std::size_t bytes,
                               const std::function<bool()>& go_on) override {
    return gpu_->device_to_host().copy_locked(host, memory, bytes, go_on);
  }
  void end(memory::OwnerId owner) override { gpu_->end(owner); }
  Time take_time(memory::OwnerId owner) override {
    const Queues::Time time = gpu_->take_time(owner);
    return {time.device_ns, time.waited_ns};
  }
  core::Status copy_in(void* device, const void* host, std::size_t bytes) override {
    return gpu_->host_to_device().copy(device, host, bytes);
  }
  core::Status copy_out(void* host, const void* device, std::size_t bytes) override {
    return gpu_->device_to_host().copy(host, device, bytes);
  }
  core::Status copy(void* to, const void* from, std::size_t bytes) override {
    return gpu_->copy(to, from, bytes);
  }
  core::Status copy_from(Backend& other, void* to, const void* from, std::size_t bytes) override;
  core::Status health() const override { return gpu_->health(); }
  core::Status before(const ops::OpDef&) override { return gpu_->health(); }
  core::Status admit(std::size_t) override { return gpu_->health(); }

  Gpu& gpu() { return *gpu_; }

 private:
  // The kernel of every op: runs on the device if possible, and else on the host.
  static core::Status run(KernelCall& call);
  core::Status run_on_device(KernelCall& call);
  core::Status run_on_host(KernelCall& call);
  // Sets `refused` if a check failed; then nothing was stored, and the CPU's kernel can produce the
  // error message.
  core::Status launch(const Work& work, bool loop, bool* refused);

  const std::unique_ptr<Gpu> gpu_;
  const DeviceLibraries libraries_;
  const core::Device device_;
  const ops::Catalog& catalog_;
  const KernelTable host_;
  const DeviceTable table_;
  const Log log_;
  KernelCache cache_;  // destroyed before the device
  // Counters: instructions and loops that ran as launches, and how many launches of the libraries
  // were among them.
  std::atomic<std::uint64_t> on_device_{0}, loops_{0}, products_{0}, convolutions_{0};
  HostCalls on_host_;
};

}  // namespace teletensor::backends::cuda
