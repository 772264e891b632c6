#include "engine/runtime/lock_wait.h"

#include <utility>

namespace teletensor::runtime {

core::Status LockWait::acquire(SharedLocks& locks, std::uint64_t seq) {
  TT_RETURN_IF_ERROR(locks.acquire(&blocked_));
  if (!blocked_) return {};
  blocked_seq_ = seq;
  return core::Status(core::Code::kUnavailable, "another session uses a published tensor");
}

bool LockWait::begin(const std::atomic<bool>& stopping, const Interrupts& interrupts) {
  blocked_ = false;
  core::MutexLock lock(mu_);
  // Both are set before end() is called.
  if (std::exchange(unlocked_, false) || stopping || interrupts.has(blocked_seq_)) return false;
  waits_ = true;
  seq_ = blocked_seq_;
  return true;
}

bool LockWait::end(std::uint64_t upto) {
  core::MutexLock lock(mu_);
  return waits_ && seq_ <= upto && end_locked();
}

// Returns false if the spiller makes the session task ready.
bool LockWait::end_locked() {
  waits_ = false;
  over_ = lent_;
  return !lent_;
}

// Called with the mutex of all requests, so not after give_up().
void LockWait::on_unlocked() {
  {
    core::MutexLock lock(mu_);
    if (!waits_) {
      unlocked_ = true;
      return;
    }
    if (!end_locked()) return;
  }
  if (task_ != nullptr) lanes_.ready(task_);
}

bool LockWait::lend() {
  core::MutexLock lock(mu_);
  return waits_ && !std::exchange(lent_, true);
}

LockWait::Lent LockWait::lent() const {
  core::MutexLock lock(mu_);
  if (!lent_) return Lent::kNo;
  return over_ ? Lent::kOver : Lent::kWaits;
}

LockWait::Lent LockWait::take_back() {
  core::MutexLock lock(mu_);
  if (!std::exchange(lent_, false)) return Lent::kNo;
  return std::exchange(over_, false) ? Lent::kOver : Lent::kWaits;
}

}  // namespace teletensor::runtime
