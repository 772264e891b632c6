// What the executor gives to kernels: temporary memory, and parts on lanes.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <utility>
#include <vector>

#include "engine/core/mutex.h"
#include "engine/runtime/executor.h"
#include "engine/runtime/shared_locks.h"

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
    core::MutexLock lock(mu_);
    if (!storage) {
      if (&pool == &host_) lacked_.store(on_host_ + bytes, std::memory_order_relaxed);
      return nullptr;
    }
    if (&pool == &host_) on_host_ += memory::charged_bytes(bytes);
    held_.push_back(std::move(storage));
    return held_.back()->data();
  }

  memory::Pool& pool_;
  memory::Pool& host_;
  const std::uint64_t seq_;
  std::atomic<std::size_t>& lacked_;
  core::Mutex mu_;
  std::vector<StorageRef> held_ TT_GUARDED_BY(mu_);
  std::size_t on_host_ TT_GUARDED_BY(mu_) = 0;
};

// A chance is used up by what it was given for.
class Executor::Try {
 public:
  explicit Try(Executor& executor) : executor_(executor) { executor_.taken_ = 0; }
  ~Try() {
    if (!executor_.starved_) executor_.last_chance_ = false;
  }
  Try(const Try&) = delete;
  Try& operator=(const Try&) = delete;

 private:
  Executor& executor_;
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
