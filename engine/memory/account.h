// Accounting of the bytes in use on one device: a Budget for the device, a UserBudget for each
// user, and an Account for each session.
//
// Thread-safe, and lock-free except for users with a guarantee. A reservation either succeeds as a
// whole or changes nothing, and never exceeds a limit, not even temporarily. A restored session may
// use more than a limit that was lowered since; it then gets no further memory until its use is
// below the limit.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "engine/core/mutex.h"
#include "engine/memory/overdraft.h"

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
  // Bytes that are reserved for user guarantees and not in use.
  std::uint64_t held_back() const { return held_back_.load(std::memory_order_relaxed); }
  std::uint64_t peak() const { return peak_.load(std::memory_order_relaxed); }
  // Memory that sessions use although reserve() has refused it.
  Overdraft& overdraft() { return overdraft_; }

  // Reserves bytes for guarantees; they stay free until give_out(). Returns false if they are not
  // available.
  bool hold_back(std::uint64_t bytes);
  // Precondition of give_out(): the bytes are held back. Precondition of take_back(): they are
  // reserved.
  void give_out(std::uint64_t bytes);
  void take_back(std::uint64_t bytes) { held_back_.fetch_add(bytes, std::memory_order_relaxed); }

 private:
  const std::uint64_t total_;
  std::atomic<std::uint64_t> taken_{0};  // used or held back
  std::atomic<std::uint64_t> held_back_{0};
  std::atomic<std::uint64_t> peak_{0};
  Overdraft overdraft_;
};

// The bytes that all sessions of one user use on a device: at most `limit`. The guaranteed bytes
// are reserved for these sessions; memory beyond the guarantee comes from what is free on the
// device.
class UserBudget {
 public:
  // Precondition: `guaranteed` <= `limit`, and the device's budget holds it back.
  UserBudget(Budget& device, std::uint64_t limit, std::uint64_t guaranteed = 0)
      : device_(device), limit_(limit), guaranteed_(guaranteed) {}
  // Reserves the bytes on the device as well. With `exempt`, the user's limit is ignored.
  bool reserve(std::uint64_t bytes, bool exempt = false);
  void release(std::uint64_t bytes);
  std::uint64_t limit() const { return limit_; }
  std::uint64_t guaranteed() const { return guaranteed_; }
  std::uint64_t used() const { return used_.load(std::memory_order_relaxed); }

 private:
  // The unused part of the guarantee.
  std::uint64_t left(std::uint64_t used) const { return guaranteed_ - std::min(used, guaranteed_); }

  Budget& device_;
  const std::uint64_t limit_, guaranteed_;
  core::Mutex mu_;  // used only with a guarantee: used_ and the reserved bytes must change together
  std::atomic<std::uint64_t> used_{0};
};

class Account {
 public:
  // A quota of 0 means the whole budget. `user` limits all sessions of one user together; null:
  // only the device's budget limits them.
  Account(Budget& budget, std::uint64_t quota, std::shared_ptr<UserBudget> user = nullptr)
      : budget_(budget),
        user_(std::move(user)),
        quota_(quota == 0 || quota > budget.total() ? budget.total() : quota) {}

  bool reserve(std::uint64_t bytes);
  // While a session is being restored, only the device's budget limits it, as its memory was
  // granted under earlier limits.
  void exempt(bool exempt) { exempt_.store(exempt, std::memory_order_relaxed); }
  // Returns true if the account is closed and these were its last bytes.
  [[nodiscard]] bool release(std::uint64_t bytes);
  // No reserve() succeeds after this call. Returns true if nothing is reserved; otherwise exactly
  // one later release() returns true. Precondition: no reserve() runs concurrently.
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
  std::atomic<std::uint64_t> used_{0};  // the top bit is set once the account is closed
  std::atomic<std::uint64_t> peak_{0};
  std::atomic<bool> exempt_{false};
};

}  // namespace teletensor::memory
