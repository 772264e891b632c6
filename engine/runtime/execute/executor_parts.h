// The objects that the executor passes to kernels: temporary memory, and the means to split work
// over lanes.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <utility>
#include <vector>

#include "engine/core/mutex.h"
#include "engine/runtime/execute/executor.h"
#include "engine/runtime/shared_locks.h"

namespace teletensor::runtime {

// Below this size, taking over an operand's memory is not worth the checks.
inline constexpr std::size_t kWorthReusing = std::size_t{64} << 10;

// The number of attempts to allocate memory that is available according to the accounts.
inline constexpr int kTries = 4;

// The storage of a value's contents; null if it has none.
inline memory::Storage* storage_of(const program::Value& value) {
  return static_cast<memory::Storage*>(value.contents.get());
}

// Returns true if the region is the whole storage, with each element once.
inline bool covers(const core::Geometry& region, std::int64_t elements) {
  return region.offset == 0 && region.dense() && region.numel() == elements;
}

// Returns true if only this instruction's own operands refer to the value.
inline bool held_only_here(const program::Instruction& instruction, const program::Value& value) {
  const std::uint32_t references = value.references();
  if (references == 1) return true;
  std::uint32_t own = 0;
  for (const program::Operand& operand : instruction.operands) own += operand.value.get() == &value;
  return own == references;
}

// Returns true if, in addition, nothing else uses its storage, so that the storage can be taken
// over.
inline bool free_to_take(const program::Instruction& instruction, const program::Value& value) {
  return value.contents->references() == 1 && storage_of(value)->sharing() == nullptr &&
         held_only_here(instruction, value);
}

class Executor::ScratchMemory : public backends::Scratch {
 public:
  // Allocates memory on the device that the executor computes on. A failed request is recorded in
  // the executor.
  ScratchMemory(Executor& executor, std::uint64_t seq)
      : executor_(executor), device_(executor.device_), seq_(seq) {}
  void* allocate(std::size_t bytes) override { return allocate(device_, bytes); }
  void* allocate_on_host(std::size_t bytes) override { return allocate(kHostIndex, bytes); }

 private:
  // Does not use the session task's allocator, because a kernel may call this inside a part on
  // another lane.
  void* allocate(std::size_t device, std::size_t bytes) {
    bool lacks = false;
    StorageRef storage = executor_.take(device, bytes, seq_, false, &lacks);
    core::MutexLock lock(mu_);
    if (!storage) {
      if (lacks) executor_.lacked_ = {bytes, device};
      return nullptr;
    }
    executor_.taken_[device] += memory::charged_bytes(bytes);
    held_.push_back(std::move(storage));
    return held_.back()->data();
  }

  Executor& executor_;
  const std::size_t device_;
  const std::uint64_t seq_;
  core::Mutex mu_;
  std::vector<StorageRef> held_ TT_GUARDED_BY(mu_);
};

// Marks an attempt at an instruction. A last chance applies to one attempt only, unless it starved.
// An attempt that ends gives up the place among those that wait for published storages.
class Executor::Try {
 public:
  explicit Try(Executor& executor) : executor_(executor) {
    std::fill(executor.taken_.begin(), executor.taken_.end(), 0);
    executor.lacked_ = {};
    executor.lock_wait_.unblock();
    executor.drop_grant();
  }
  ~Try() {
    if (executor_.lock_wait_.blocked()) return;
    if (!executor_.starved_) executor_.last_chance_ = false;
    executor_.lock_wait_.give_up();
  }
  Try(const Try&) = delete;
  Try& operator=(const Try&) = delete;

 private:
  Executor& executor_;
};

class Executor::PartsOnLanes : public backends::Parallel {
 public:
  // `stoppable` is null for an instruction that overwrites an operand, which must not be stopped
  // half-way.
  PartsOnLanes(Lanes& lanes, const Executor* stoppable, std::uint64_t seq)
      : lanes_(lanes), stoppable_(stoppable), seq_(seq) {}
  void run(std::int64_t parts, const std::function<void(std::int64_t)>& part) override {
    lanes_.run_parts(parts, part);
  }
  void run_long(std::int64_t parts, const std::function<void(std::int64_t)>& part) override {
    lanes_.run_long(parts, part);
  }
  bool cancelled() const override {
    lanes_.maybe_yield();
    if (stoppable_ == nullptr || !stoppable_->interrupts().has(seq_)) return false;
    told_.store(true, std::memory_order_relaxed);
    return true;
  }
  // Returns true if a kernel was told to stop, so that its results are incomplete.
  bool was_cancelled() const { return told_.load(std::memory_order_relaxed); }

 private:
  Lanes& lanes_;
  const Executor* const stoppable_;
  const std::uint64_t seq_;
  mutable std::atomic<bool> told_{false};
};

}  // namespace teletensor::runtime
