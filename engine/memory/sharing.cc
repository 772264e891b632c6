#include "engine/memory/sharing.h"

#include <algorithm>

namespace teletensor::memory {

core::Mutex Sharing::mu_;

bool LockRequest::try_lock(std::vector<Use> uses) {
  std::vector<Use> before;  // released last, without the mutex
  core::MutexLock lock(Sharing::mu_);
  for (const Use& use : uses) use.sharing->waiting_.reserve(use.sharing->waiting_.size() + 1);
  const bool granted = is_grantable(uses);
  before = std::exchange(uses_, std::move(uses));
  if (waits_) {
    for (const Use& use : before) {
      std::erase_if(use.sharing->waiting_, [&](const auto& each) { return each.request == this; });
    }
  }
  if (granted) {
    age_ = UINT64_MAX;
    for (const Use& use : uses_) {
      use.write ? void(use.sharing->writing_ = true) : void(++use.sharing->readers_);
    }
  } else {
    enqueue();
  }
  if (std::exchange(waits_, !granted)) {
    for (const Use& use : before) notify(*use.sharing);
  }
  return granted;
}

void LockRequest::unlock() {
  const std::vector<Use> before = std::exchange(uses_, {});
  core::MutexLock lock(Sharing::mu_);
  for (const Use& use : before) {
    if (use.write) {
      use.sharing->writing_ = false;
      use.sharing->writes_.fetch_add(1, std::memory_order_release);
    } else {
      --use.sharing->readers_;
    }
  }
  for (const Use& use : before) notify(*use.sharing);
}

void LockRequest::withdraw() {
  if (!waits_) return;
  const std::vector<Use> before = std::exchange(uses_, {});
  core::MutexLock lock(Sharing::mu_);
  for (const Use& use : before) {
    std::erase_if(use.sharing->waiting_, [&](const auto& each) { return each.request == this; });
  }
  waits_ = false;
  age_ = UINT64_MAX;
  for (const Use& use : before) notify(*use.sharing);
}

bool LockRequest::is_grantable(const std::vector<Use>& uses) const {
  for (const Use& use : uses) {
    const Sharing& sharing = *use.sharing;
    if (sharing.writing_ || (use.write && sharing.readers_ > 0)) return false;
    for (const Sharing::Waiting& older : sharing.waiting_) {
      if (older.request->age_ >= age_) break;
      if (older.write || use.write) return false;
    }
  }
  return true;
}

void LockRequest::enqueue() {
  static std::uint64_t next_age = 0;
  if (age_ == UINT64_MAX) age_ = next_age++;
  notified_ = false;
  for (const Use& use : uses_) {
    std::vector<Sharing::Waiting>& waiting = use.sharing->waiting_;
    const auto after = std::find_if(waiting.begin(), waiting.end(),
                                    [&](const auto& each) { return each.request->age_ > age_; });
    waiting.insert(after, {this, use.write});
  }
}

// Calls the waiters of the requests for this lock that can be granted now.
void LockRequest::notify(Sharing& sharing) {
  for (const Sharing::Waiting& each : sharing.waiting_) {
    LockRequest& request = *each.request;
    if (!request.notified_ && request.is_grantable(request.uses_)) {
      request.notified_ = true;
      request.waiter_->on_unlocked();
    }
    if (each.write) return;  // all later requests wait for this one
  }
}

void UnlockedSignal::on_unlocked() {
  core::MutexLock lock(mu_);
  unlocked_ = true;
  changed_.notify_all();
}

bool UnlockedSignal::wait_for(std::chrono::milliseconds most) {
  const auto until = std::chrono::steady_clock::now() + most;
  core::MutexLock lock(mu_);
  while (!unlocked_ && std::chrono::steady_clock::now() < until) {
    changed_.wait_for(mu_, until - std::chrono::steady_clock::now());
  }
  return std::exchange(unlocked_, false);
}

}  // namespace teletensor::memory
