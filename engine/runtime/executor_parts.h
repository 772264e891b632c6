// What the executor gives to kernels: temporary memory, and parts on lanes.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "engine/core/mutex.h"
#include "engine/runtime/executor.h"

namespace teletensor::runtime {

// Below this, taking over an operand's memory is not worth the look.
inline constexpr std::size_t kWorthReusing = std::size_t{64} << 10;

class Executor::ScratchMemory : public backends::Scratch {
 public:
  // What it cannot have of the host's memory is noted in `lacked`.
  ScratchMemory(memory::Pool& pool, memory::Pool& host, std::uint64_t seq,
                std::atomic<std::size_t>& lacked)
      : pool_(pool), host_(host), seq_(seq), lacked_(lacked) {}
  void* allocate(std::size_t bytes) override { return allocate(pool_, bytes); }
  void* allocate_on_host(std::size_t bytes) override { return allocate(host_, bytes); }

 private:
  void* allocate(memory::Pool& pool, std::size_t bytes) {
    // Not the strand's way: a kernel may ask from inside a part, on another lane.
    StorageRef storage = pool.allocate_shared(bytes, seq_);
    if (!storage) {
      if (&pool == &host_) lacked_.store(bytes, std::memory_order_relaxed);
      return nullptr;
    }
    core::MutexLock lock(mu_);
    held_.push_back(std::move(storage));
    return held_.back()->data();
  }

  memory::Pool& pool_;
  memory::Pool& host_;
  const std::uint64_t seq_;
  std::atomic<std::size_t>& lacked_;
  core::Mutex mu_;
  std::vector<StorageRef> held_ TT_GUARDED_BY(mu_);
};

// A chance is used up by what it was given for.
class Executor::Try {
 public:
  explicit Try(Executor& executor) : executor_(executor) {}
  ~Try() {
    if (!executor_.starved_) executor_.last_chance_ = false;
  }
  Try(const Try&) = delete;
  Try& operator=(const Try&) = delete;

 private:
  Executor& executor_;
};

// The published storages of an instruction, locked for its time. An instruction that writes through
// is atomic for everybody else.
class Executor::SharedLocks {
 public:
  explicit SharedLocks(Devices& devices) : devices_(devices) {}
  ~SharedLocks() {
    if (held_ > 0) (void)order(&backends::Accelerator::end_shared);
    for (std::size_t i = held_; i-- > 0;) list_[i].first->unlock(list_[i].second);
  }
  SharedLocks(const SharedLocks&) = delete;
  SharedLocks& operator=(const SharedLocks&) = delete;

  void add(const Instruction& instruction) {
    for (const program::Operand& operand : instruction.operands) {
      if (operand.value && operand.value->contents) add(*operand.value, false);
    }
    for (const program::ResultSlot& result : instruction.results) {
      if (result.overwrites < 0 || !result.value->through) continue;
      add(*instruction.operands[static_cast<std::size_t>(result.overwrites)].value, true);
    }
  }
  void add(const program::Value& value, bool write) {
    memory::Sharing* sharing = static_cast<memory::Storage*>(value.contents.get())->sharing();
    if (sharing == nullptr) return;
    list_.emplace_back(sharing, write);
    on_device_ |= value.device.kind != core::DeviceKind::kCpu;
  }
  core::Status acquire() {
    std::sort(list_.begin(), list_.end(), [](const auto& a, const auto& b) {
      return a.first->order != b.first->order ? a.first->order < b.first->order
                                              : a.second > b.second;
    });
    list_.erase(std::unique(list_.begin(), list_.end(),
                            [](const auto& a, const auto& b) { return a.first == b.first; }),
                list_.end());
    for (; held_ < list_.size(); ++held_) list_[held_].first->lock(list_[held_].second);
    quiet_.emplace();
    return held_ > 0 ? order(&backends::Accelerator::begin_shared) : core::Status();
  }

 private:
  // Devices run later than the locks are held.
  core::Status order(core::Status (backends::Accelerator::*how)()) {
    for (std::size_t i = 0; on_device_ && i < devices_.size(); ++i) {
      backends::Accelerator* const each = devices_.at(i).accelerator();
      if (each != nullptr) TT_RETURN_IF_ERROR((each->*how)());
    }
    return {};
  }

  Devices& devices_;
  bool on_device_ = false;
  std::vector<std::pair<memory::Sharing*, bool>> list_;  // and: to write
  std::size_t held_ = 0;
  std::optional<Lanes::Quiet> quiet_;
};

class Executor::PartsOnLanes : public backends::Parallel {
 public:
  // An instruction that overwrites an operand is not stopped half-way.
  PartsOnLanes(Lanes& lanes, const Executor* stoppable, std::uint64_t seq)
      : lanes_(lanes), stoppable_(stoppable), seq_(seq) {}
  void run(std::int64_t parts, const std::function<void(std::int64_t)>& part) override {
    lanes_.run_parts(parts, part);
  }
  bool cancelled() const override {
    lanes_.breathe();
    if (stoppable_ == nullptr || !stoppable_->cancelled(seq_)) return false;
    told_.store(true, std::memory_order_relaxed);
    return true;
  }
  // A kernel has been told to stop: what it made is not whole.
  bool was_cancelled() const { return told_.load(std::memory_order_relaxed); }

 private:
  Lanes& lanes_;
  const Executor* const stoppable_;
  const std::uint64_t seq_;
  mutable std::atomic<bool> told_{false};
};

}  // namespace teletensor::runtime
