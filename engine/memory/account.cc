#include "engine/memory/account.h"

namespace teletensor::memory {

std::uint64_t Budget::used() const {
  const std::uint64_t held_back = this->held_back();
  const std::uint64_t taken = taken_.load(std::memory_order_relaxed);
  return taken - std::min(held_back, taken);
}

bool Budget::reserve(std::uint64_t bytes) {
  std::uint64_t taken = taken_.load(std::memory_order_relaxed);
  do {
    if (bytes > total_ || taken > total_ - bytes) return false;
  } while (!taken_.compare_exchange_weak(taken, taken + bytes, std::memory_order_relaxed));
  note_peak(peak_, used());
  return true;
}

bool Budget::hold_back(std::uint64_t bytes) {
  held_back_.fetch_add(bytes, std::memory_order_relaxed);
  if (reserve(bytes)) return true;
  held_back_.fetch_sub(bytes, std::memory_order_relaxed);
  return false;
}

void Budget::give_out(std::uint64_t bytes) {
  held_back_.fetch_sub(bytes, std::memory_order_relaxed);
  note_peak(peak_, used());
}

bool UserBudget::reserve(std::uint64_t bytes, bool exempt) {
  const auto over = [&](std::uint64_t used) {
    return !exempt && (bytes > limit_ || used > limit_ - bytes);
  };
  if (guaranteed_ > 0) {
    core::MutexLock lock(mu_);
    const std::uint64_t used = this->used();
    if (over(used)) return false;
    const std::uint64_t own = std::min(bytes, left(used));
    if (bytes > own && !device_.reserve(bytes - own)) return false;
    if (own > 0) device_.give_out(own);
    used_.store(used + bytes, std::memory_order_relaxed);
    return true;
  }
  std::uint64_t used = used_.load(std::memory_order_relaxed);
  do {
    if (over(used)) return false;
  } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  if (device_.reserve(bytes)) return true;
  used_.fetch_sub(bytes, std::memory_order_relaxed);
  return false;
}

void UserBudget::release(std::uint64_t bytes) {
  if (guaranteed_ > 0) {
    core::MutexLock lock(mu_);
    const std::uint64_t used = this->used();
    const std::uint64_t back = left(used - bytes) - left(used);
    if (back > 0) device_.take_back(back);
    if (bytes > back) device_.release(bytes - back);
    used_.store(used - bytes, std::memory_order_relaxed);
    return;
  }
  device_.release(bytes);
  used_.fetch_sub(bytes, std::memory_order_relaxed);
}

bool Account::reserve(std::uint64_t bytes) {
  // Check the session's own limit first, so that a request that exceeds it does not temporarily
  // reduce what other sessions can get.
  const bool exempt = exempt_.load(std::memory_order_relaxed);
  std::uint64_t used = used_.load(std::memory_order_relaxed);
  do {
    if ((used & kClosed) != 0) return false;
    if (!exempt && (bytes > quota_ || used > quota_ - bytes)) return false;
  } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  // Check the user's limit next, so that a request that exceeds it does not temporarily reduce what
  // other users can get.
  if (!(user_ ? user_->reserve(bytes, exempt) : budget_.reserve(bytes))) {
    used_.fetch_sub(bytes, std::memory_order_relaxed);
    return false;
  }
  note_peak(peak_, used + bytes);
  return true;
}

bool Account::release(std::uint64_t bytes) {
  user_ ? user_->release(bytes) : budget_.release(bytes);
  // acq_rel: the thread that receives true sees all effects of the earlier releases.
  return used_.fetch_sub(bytes, std::memory_order_acq_rel) == (kClosed | bytes);
}

bool Account::close() { return used_.fetch_or(kClosed, std::memory_order_acq_rel) == 0; }

}  // namespace teletensor::memory
