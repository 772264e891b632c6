// Who has how many bytes of one device: a Budget for the device, a UserBudget for each user, an
// Account for each session.
//
// Thread-safe; lock-free but for users who are guaranteed something. A reservation is made whole or
// not at all and never exceeds a limit, not even for a moment. Who comes back with more than a
// limit, which was a larger one, has it, and gets nothing until enough of it is gone.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "engine/core/mutex.h"

namespace teletensor::memory {

// Raises `peak` to `now`.
inline void note_peak(std::atomic<std::uint64_t>& peak, std::uint64_t now) {
  std::uint64_t before = peak.load(std::memory_order_relaxed);
  while (now > before && !peak.compare_exchange_weak(before, now, std::memory_order_relaxed)) {
  }
}

class Budget {
 public:
  explicit Budget(std::uint64_t total) : total_(total) {}
  bool reserve(std::uint64_t bytes);
  void release(std::uint64_t bytes) { taken_.fetch_sub(bytes, std::memory_order_relaxed); }
  std::uint64_t total() const { return total_; }
  std::uint64_t used() const;
  // Nobody's, and kept free for what users are guaranteed.
  std::uint64_t held_back() const { return held_back_.load(std::memory_order_relaxed); }
  std::uint64_t peak() const { return peak_.load(std::memory_order_relaxed); }

  // So much is free for nobody, until it is given out. False: it is not there.
  bool hold_back(std::uint64_t bytes);
  // Precondition of give_out: held back. Of take_back: reserved.
  void give_out(std::uint64_t bytes);
  void take_back(std::uint64_t bytes) { held_back_.fetch_add(bytes, std::memory_order_relaxed); }

 private:
  const std::uint64_t total_;
  std::atomic<std::uint64_t> taken_{0};  // used or held back
  std::atomic<std::uint64_t> held_back_{0};
  std::atomic<std::uint64_t> peak_{0};
};

// What the sessions of one user have together on a device: `limit` at most. So much as is
// guaranteed is kept free for them there; what they have beyond it is borrowed, while there is any.
class UserBudget {
 public:
  // Precondition: `guaranteed` <= `limit`, and the device's budget holds it back.
  UserBudget(Budget& device, std::uint64_t limit, std::uint64_t guaranteed = 0)
      : device_(device), limit_(limit), guaranteed_(guaranteed) {}
  // On the device as well. `exempt`: also beyond the limit.
  bool reserve(std::uint64_t bytes, bool exempt = false);
  void release(std::uint64_t bytes);
  std::uint64_t limit() const { return limit_; }
  std::uint64_t guaranteed() const { return guaranteed_; }
  std::uint64_t used() const { return used_.load(std::memory_order_relaxed); }

 private:
  // Of the guarantee, what is not used.
  std::uint64_t left(std::uint64_t used) const { return guaranteed_ - std::min(used, guaranteed_); }

  Budget& device_;
  const std::uint64_t limit_, guaranteed_;
  core::Mutex mu_;  // where something is guaranteed: used_ and what is held back change together
  std::atomic<std::uint64_t> used_{0};
};

class Account {
 public:
  // quota 0: the whole budget. `user`: what the sessions of one user may have together; null: no
  // limit but the device's.
  Account(Budget& budget, std::uint64_t quota, std::shared_ptr<UserBudget> user = nullptr)
      : budget_(budget),
        user_(std::move(user)),
        quota_(quota == 0 || quota > budget.total() ? budget.total() : quota) {}

  bool reserve(std::uint64_t bytes);
  // While a session comes back, only the device refuses: what it had is its own under any limit.
  void exempt(bool exempt) { exempt_.store(exempt, std::memory_order_relaxed); }
  // True when the account is closed and these were its last bytes.
  [[nodiscard]] bool release(std::uint64_t bytes);
  // Precondition: no reserve() runs meanwhile; none succeeds from here on. True when nothing is
  // reserved; else a later release() returns true, exactly once.
  [[nodiscard]] bool close();

  std::uint64_t used() const { return used_.load(std::memory_order_relaxed) & ~kClosed; }
  std::uint64_t peak() const { return peak_.load(std::memory_order_relaxed); }
  void reset_peak() { peak_.store(used(), std::memory_order_relaxed); }
  std::uint64_t quota() const { return quota_; }
  const Budget& budget() const { return budget_; }
  const UserBudget* user() const { return user_.get(); }

 private:
  static constexpr std::uint64_t kClosed = 1ull << 63;

  Budget& budget_;
  const std::shared_ptr<UserBudget> user_;
  const std::uint64_t quota_;
  std::atomic<std::uint64_t> used_{0};  // the top bit: closed
  std::atomic<std::uint64_t> peak_{0};
  std::atomic<bool> exempt_{false};
};

}  // namespace teletensor::memory
