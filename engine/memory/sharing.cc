#include "engine/memory/sharing.h"

namespace teletensor::memory {

void Sharing::lock(bool write) {
  core::MutexLock lock(mu_);
  if (!write) {
    while (writing_ || writers_waiting_ > 0) changed_.wait(mu_);
    ++readers_;
    return;
  }
  ++writers_waiting_;
  while (writing_ || readers_ > 0) changed_.wait(mu_);
  --writers_waiting_;
  writing_ = true;
}

void Sharing::unlock(bool write) {
  {
    core::MutexLock lock(mu_);
    if (write) {
      writing_ = false;
      writes_.fetch_add(1, std::memory_order_release);
    } else {
      --readers_;
    }
  }
  changed_.notify_all();
}

}  // namespace teletensor::memory
