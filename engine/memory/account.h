// Who has how many bytes of one device: a Budget for the device, one for each user with a limit, an
// Account for each session.
//
// Thread-safe and lock-free. A reservation is made whole or not at all and never exceeds a limit,
// not even for a moment.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

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
  void release(std::uint64_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }
  std::uint64_t total() const { return total_; }
  std::uint64_t used() const { return used_.load(std::memory_order_relaxed); }
  std::uint64_t peak() const { return peak_.load(std::memory_order_relaxed); }

 private:
  const std::uint64_t total_;
  std::atomic<std::uint64_t> used_{0};
  std::atomic<std::uint64_t> peak_{0};
};

class Account {
 public:
  // quota 0: the whole budget. `user`: what the sessions of one user may have together; null: no
  // limit but the device's.
  Account(Budget& budget, std::uint64_t quota, std::shared_ptr<Budget> user = nullptr)
      : budget_(budget),
        user_(std::move(user)),
        quota_(quota == 0 || quota > budget.total() ? budget.total() : quota) {}

  bool reserve(std::uint64_t bytes);
  // True when the account is closed and these were its last bytes.
  [[nodiscard]] bool release(std::uint64_t bytes);
  // Precondition: no reserve() runs meanwhile; none succeeds from here on. True when nothing is
  // reserved; else a later release() returns true, exactly once.
  [[nodiscard]] bool close();

  std::uint64_t used() const { return used_.load(std::memory_order_relaxed) & ~kClosed; }
  std::uint64_t peak() const { return peak_.load(std::memory_order_relaxed); }
  std::uint64_t quota() const { return quota_; }
  const Budget& budget() const { return budget_; }
  const Budget* user() const { return user_.get(); }

 private:
  static constexpr std::uint64_t kClosed = 1ull << 63;

  Budget& budget_;
  const std::shared_ptr<Budget> user_;
  const std::uint64_t quota_;
  std::atomic<std::uint64_t> used_{0};  // the top bit: closed
  std::atomic<std::uint64_t> peak_{0};
};

}  // namespace teletensor::memory
