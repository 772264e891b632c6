#include "engine/memory/overdraft.h"

namespace teletensor::memory {

bool Overdraft::change(const std::string& user, std::uint64_t from, std::uint64_t to) {
  core::MutexLock lock(mu_);
  std::uint64_t& own = users_[user];
  const std::uint64_t others = used_ - own, after = own - from + to;
  const bool fits = to <= from || after <= (kTotal - others) / 2;
  if (fits) {
    own = after;
    used_ = others + after;
  }
  if (own == 0) users_.erase(user);
  return fits;
}

}  // namespace teletensor::memory
