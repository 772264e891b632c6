// ExecutionContext: what the parts of a session's executor use together, and the objects that they
// pass to kernels. The session task uses it, one thread at a time; kernels use ScratchMemory and
// PartsOnLanes from several lanes.
#pragma once

#include <atomic>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/mutex.h"
#include "engine/runtime/device.h"
#include "engine/runtime/execute/instruction_memory.h"
#include "engine/runtime/execute/interrupts.h"
#include "engine/runtime/lanes/lanes.h"
#include "engine/runtime/lock_wait.h"
#include "engine/runtime/profile.h"
#include "engine/runtime/shared_locks.h"
#include "engine/runtime/transfer.h"

namespace teletensor::runtime {

struct ExecutionContext {
  // `owner` and `quota` (bytes on each device) are those of the session. The other arguments must
  // outlive this object.
  ExecutionContext(const ops::Catalog& of_catalog, Devices& of_devices, Lanes& of_lanes,
                   memory::OwnerId owner, std::uint64_t quota, LockWait& of_lock_wait)
      : catalog(of_catalog),
        devices(of_devices),
        lanes(of_lanes),
        lock_wait(of_lock_wait),
        memory(of_devices, owner, quota),
        copies(of_catalog),
        to_device(id_of("to_device")),
        copy(id_of("copy")) {
    for (std::size_t i = 0; i < devices.size(); ++i) {
      has_accelerator = has_accelerator || devices.at(i).accelerator() != nullptr;
    }
  }

  const ops::Catalog& catalog;
  Devices& devices;
  Lanes& lanes;
  LockWait& lock_wait;
  InstructionMemory memory;
  Interrupts interrupts;
  Profile profile;
  const CopyKernels copies;
  const int to_device, copy;  // the numbers of these ops; -1 if the catalog lacks them
  bool has_accelerator = false;

 private:
  int id_of(std::string_view name) const {
    const ops::OpDef* const op = catalog.find(name);
    return op == nullptr ? -1 : static_cast<int>(catalog.id(*op));
  }
};

// Marks an attempt at an instruction. An attempt that ends gives up the place among those that wait
// for published storages.
class Attempt {
 public:
  explicit Attempt(ExecutionContext& context) : context_(context) {
    context.lock_wait.unblock();
    context.memory.begin_attempt();
  }
  ~Attempt() {
    if (context_.lock_wait.blocked()) return;
    context_.memory.end_attempt();
    context_.lock_wait.give_up();
  }
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

 private:
  ExecutionContext& context_;
};

// The temporary memory of one kernel call, charged to the session and freed with this object. The
// functions return null if there is no memory. Thread-safe.
class ScratchMemory : public backends::Scratch {
 public:
  ScratchMemory(InstructionMemory& memory, std::size_t device, std::uint64_t seq)
      : memory_(memory), device_(device), seq_(seq) {}
  void* allocate(std::size_t bytes) override { return allocate(device_, bytes); }
  void* allocate_on_host(std::size_t bytes) override { return allocate(kHostIndex, bytes); }

 private:
  void* allocate(std::size_t device, std::size_t bytes) {
    core::MutexLock lock(mu_);
    auto storage = memory_.allocate_scratch(device, bytes, seq_);
    if (!storage) return nullptr;
    held_.push_back(std::move(storage));
    return held_.back()->data();
  }

  InstructionMemory& memory_;
  const std::size_t device_;
  const std::uint64_t seq_;
  core::Mutex mu_;
  std::vector<InstructionMemory::StorageRef> held_ TT_GUARDED_BY(mu_);
};

// Splits the work of a kernel call over the lanes, and tells the kernel when it was interrupted.
class PartsOnLanes : public backends::Parallel {
 public:
  // `interrupts` is null for an instruction that overwrites an operand, which must not be stopped
  // half-way.
  PartsOnLanes(Lanes& lanes, const Interrupts* interrupts, std::uint64_t seq)
      : lanes_(lanes), interrupts_(interrupts), seq_(seq) {}
  void run(std::int64_t parts, const std::function<void(std::int64_t)>& part) override {
    lanes_.run_parts(parts, part);
  }
  void run_long(std::int64_t parts, const std::function<void(std::int64_t)>& part) override {
    lanes_.run_long(parts, part);
  }
  bool cancelled() const override {
    lanes_.maybe_yield();
    if (interrupts_ == nullptr || !interrupts_->has(seq_)) return false;
    told_.store(true, std::memory_order_relaxed);
    return true;
  }
  // Returns true if a kernel was told to stop, so that its results are incomplete.
  bool was_cancelled() const { return told_.load(std::memory_order_relaxed); }

 private:
  Lanes& lanes_;
  const Interrupts* const interrupts_;
  const std::uint64_t seq_;
  mutable std::atomic<bool> told_{false};
};

}  // namespace teletensor::runtime
