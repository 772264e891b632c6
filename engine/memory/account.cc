#include "engine/memory/account.h"

namespace teletensor::memory {

bool Budget::reserve(std::uint64_t bytes) {
  std::uint64_t used = used_.load(std::memory_order_relaxed);
  do {
    if (bytes > total_ || used > total_ - bytes) return false;
  } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  note_peak(peak_, used + bytes);
  return true;
}

bool Account::reserve(std::uint64_t bytes) {
  // The session's own limit first: what it may not have must not be missing for others meanwhile.
  std::uint64_t used = used_.load(std::memory_order_relaxed);
  do {
    if ((used & kClosed) != 0 || bytes > quota_ || used > quota_ - bytes) return false;
  } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  // Then the user's, for the same reason.
  const bool user = !user_ || user_->reserve(bytes);
  if (!user || !budget_.reserve(bytes)) {
    if (user && user_) user_->release(bytes);
    used_.fetch_sub(bytes, std::memory_order_relaxed);
    return false;
  }
  note_peak(peak_, used + bytes);
  return true;
}

bool Account::release(std::uint64_t bytes) {
  budget_.release(bytes);
  if (user_) user_->release(bytes);
  // acq_rel: whoever is told "the last bytes" sees what every earlier releaser did before.
  return used_.fetch_sub(bytes, std::memory_order_acq_rel) == (kClosed | bytes);
}

bool Account::close() { return used_.fetch_or(kClosed, std::memory_order_acq_rel) == 0; }

}  // namespace teletensor::memory
