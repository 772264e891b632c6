// CpuBackend: the host as a device, with its memory and a table of kernels.
#pragma once

#include "engine/backends/backend.h"
#include "engine/backends/prepared_loop.h"

namespace teletensor::backends::cpu {

class CpuBackend : public Backend, public LoopPreparer {
 public:
  explicit CpuBackend(KernelTable kernels, core::Device device = {})
      : kernels_(std::move(kernels)), device_(device) {}

  core::Device device() const override { return device_; }
  Kernel find(ops::OpId op) const override { return kernels_.find(op); }
  LoopRole role(ops::OpId op) const override { return kernels_.role(op); }
  core::Status run_loop(std::span<const LoopStep> steps, Parallel& parallel,
                        Scratch& scratch) override;
  std::unique_ptr<const PreparedLoop> prepare_loop(std::span<const LoopStep> steps,
                                                   std::size_t* prepared) override;
  void* allocate(std::size_t bytes) override;
  void deallocate(void* memory, std::size_t bytes) override;
  void zero(void* memory, std::size_t bytes) override;
  core::Status copy_in(void* device, const void* host, std::size_t bytes) override;
  core::Status copy_out(void* host, const void* device, std::size_t bytes) override;
  core::Status copy(void* to, const void* from, std::size_t bytes) override;

 private:
  const KernelTable kernels_;
  const core::Device device_;
};

}  // namespace teletensor::backends::cpu
