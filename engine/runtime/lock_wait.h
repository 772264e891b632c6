// LockWait: a session's wait for published storages that other sessions use. An instruction that
// cannot have its locks does not run; its session gives its lane away, and is ready again when the
// locks are free.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/core/mutex.h"
#include "engine/core/status.h"
#include "engine/memory/sharing.h"
#include "engine/runtime/execute/interrupts.h"
#include "engine/runtime/lanes/lanes.h"
#include "engine/runtime/shared_locks.h"

namespace teletensor::runtime {

class LockWait final : private memory::LockRequest::Waiter {
 public:
  // `task` is the session task; null: it is never made ready.
  explicit LockWait(Lanes& lanes, Task* task = nullptr) : lanes_(lanes), task_(task) {}

  // ---- Functions of the session task.

  memory::LockRequest& request() { return request_; }
  // Takes the locks of the instructions from command `seq` on. If that must wait, returns an error,
  // and blocked() is true: the instructions can be tried again after begin().
  core::Status acquire(SharedLocks& locks, std::uint64_t seq);
  bool blocked() const { return blocked_; }
  void unblock() { blocked_ = false; }
  // Gives up the place among those that wait: the blocked instructions will not be tried again.
  void give_up() { request_.withdraw(); }
  // The session waits from now on, unless the locks have become free, the session stops, or the
  // blocked command is cancelled: then returns false.
  bool begin(const std::atomic<bool>& stopping, const Interrupts& interrupts);

  // ---- Functions for any thread.

  // Ends the wait of a command up to `upto`. If it returns true, the session waited, and the caller
  // decides what becomes of the session task.
  bool end(std::uint64_t upto);
  // Lets the spiller use the session task. Returns false if the session does not wait.
  bool lend();
  enum class Lent : std::uint8_t { kNo, kWaits, kOver };
  Lent lent() const;
  // Ends lend(). After kOver the session task is ready; after kWaits the session waits as before.
  Lent take_back();

 private:
  void on_unlocked() override;
  bool end_locked() TT_REQUIRES(mu_);

  Lanes& lanes_;
  Task* const task_;
  memory::LockRequest request_{this};
  bool blocked_ = false;
  std::uint64_t blocked_seq_ = 0;
  mutable core::Mutex mu_;
  bool waits_ TT_GUARDED_BY(mu_) = false;
  std::uint64_t seq_ TT_GUARDED_BY(mu_) = 0;
  bool unlocked_ TT_GUARDED_BY(mu_) = false;  // on_unlocked() was called before begin()
  bool lent_ TT_GUARDED_BY(mu_) = false, over_ TT_GUARDED_BY(mu_) = false;
};

}  // namespace teletensor::runtime
