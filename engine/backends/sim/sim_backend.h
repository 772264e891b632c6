// A simulated device "sim:N" with its own memory on the host, the CPU's kernels, and faults on
// demand. In null mode the kernels compute nothing (results contain whatever the memory held), so
// that the stream and the back end can be measured alone.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/backends/cpu/cpu_backend.h"
#include "engine/core/mutex.h"

namespace teletensor::backends::sim {

// Faults to inject, and counters. Any thread may use it.
class Faults {
 public:
  // The n-th instruction (or allocation or byte copy) from now on, counted from 1, fails with
  // `status`; with `every`, each n-th one fails. One fault of each kind can be set at a time; n = 0
  // removes it.
  void fail_instruction(std::uint64_t n, core::Status status, bool every = false);
  void fail_allocation(std::uint64_t n, core::Status status, bool every = false);
  // The device reports this error as its state from now on.
  void lose_device(core::Status why);
  // Numbers of instructions and allocations, and bytes of copies, since the start. The numbers
  // include events that were made to fail.
  std::uint64_t instructions() const { return instructions_.seen(); }
  std::uint64_t allocations() const { return allocations_.seen(); }
  std::uint64_t copied_bytes() const { return copied_bytes_.load(std::memory_order_relaxed); }

 private:
  friend class SimBackend;
  // Counts the events of one kind, and fails one of them if it is armed.
  class Counter {
   public:
    void arm(std::uint64_t n, core::Status status, bool every);
    core::Status count();
    std::uint64_t seen() const { return seen_.load(std::memory_order_relaxed); }

   private:
    std::atomic<std::uint64_t> seen_{0};
    std::atomic<bool> armed_{false};
    core::Mutex mu_;
    std::uint64_t period_ TT_GUARDED_BY(mu_) = 0;
    std::uint64_t left_ TT_GUARDED_BY(mu_) = 0;
    bool every_ TT_GUARDED_BY(mu_) = false;
    core::Status status_ TT_GUARDED_BY(mu_);
  };
  Counter instructions_, allocations_;
  mutable core::Mutex mu_;
  core::Status lost_ TT_GUARDED_BY(mu_);  // OK while the device works.
  std::atomic<std::uint64_t> copied_bytes_{0};
};

class SimBackend final : public cpu::CpuBackend {
 public:
  SimBackend(KernelTable kernels, std::uint8_t index, bool null_mode = false)
      : CpuBackend(std::move(kernels), {core::DeviceKind::kSim, index}), null_mode_(null_mode) {}

  Faults& faults() { return faults_; }

  Kernel find(ops::OpId op) const override;
  // No loops are built, because each instruction is counted, and may fail, on its own.
  LoopRole role(ops::OpId) const override { return LoopRole::kNone; }
  core::Status copy(void* to, const void* from, std::size_t bytes) override;
  core::Status health() const override;
  core::Status before(const ops::OpDef&) override { return faults_.instructions_.count(); }
  core::Status admit(std::size_t) override { return faults_.allocations_.count(); }

 private:
  const bool null_mode_;
  Faults faults_;
};

}  // namespace teletensor::backends::sim
