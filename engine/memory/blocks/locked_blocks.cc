// DevicePool's page-locked blocks of the host. They are cached, because locking takes milliseconds.
#include "engine/memory/blocks/device_pool.h"

namespace teletensor::memory {

std::uint64_t DevicePool::locked() const {
  core::MutexLock lock(mu_);
  return locked_;
}

bool DevicePool::find_locked(std::size_t bytes, CachedLocked* found) {
  auto at = idle_locked_.lower_bound({bytes, nullptr, nullptr});
  while (at != idle_locked_.end() && at->capacity < 2 * bytes) {
    *found = *at;
    at = idle_locked_.erase(at);
    locked_idle_ -= found->capacity;
    if (!found->by->lost()) return true;
    keep_locked(*found);
  }
  return false;
}

Block DevicePool::take_locked(std::size_t bytes, Source& device) {
  const std::uint64_t most = budget_.total() / 2;
  bool may = false;
  {
    core::MutexLock lock(mu_);
    CachedLocked found{};
    if (find_locked(bytes, &found)) return {found.data, found.capacity, -1, found.by};
    may = locked_ - locked_idle_ + bytes <= most;
    if (may) {
      // Idle locked blocks have unsuitable sizes: unlock some.
      while (locked_ + bytes > most) condemn(locked_ + bytes - most);
      make_room(bytes);
      may = may_hold(bytes);
    }
    if (may) {
      held_ += bytes;
      locked_ += bytes;
    }
  }
  free_condemned();
  if (!may) return {};
  void* const memory = source_->allocate(bytes);
  if (memory != nullptr && device.lock(memory, bytes)) return {memory, bytes, -1, &device};
  core::MutexLock lock(mu_);
  locked_ -= bytes;
  if (memory != nullptr) return {memory, bytes};
  held_ -= bytes;
  return {};
}

// Blocks that a lost device had locked are treated as ordinary memory.
void DevicePool::keep_locked(const CachedLocked& block) {
  if (!block.by->lost()) {
    idle_locked_.insert(block);
    locked_idle_ += block.capacity;
    return;
  }
  locked_ -= block.capacity;
  large_.add({block.capacity, block.data, kAnyOwner});
}

void DevicePool::condemn(std::uint64_t bytes) {
  auto which = idle_locked_.lower_bound({static_cast<std::size_t>(bytes), nullptr, nullptr});
  if (which == idle_locked_.end()) --which;
  held_ -= which->capacity;
  locked_ -= which->capacity;
  locked_idle_ -= which->capacity;
  condemned_.insert(idle_locked_.extract(which));
  any_condemned_.store(true, std::memory_order_relaxed);
}

void DevicePool::free_condemned() {
  if (!any_condemned_.load(std::memory_order_relaxed)) return;
  std::set<CachedLocked> condemned;
  {
    core::MutexLock lock(mu_);
    condemned.swap(condemned_);
    any_condemned_.store(false, std::memory_order_relaxed);
  }
  for (const CachedLocked& each : condemned) {
    if (each.by->unlock(each.data)) {
      source_->deallocate(each.data, each.capacity);
      continue;
    }
    core::MutexLock lock(mu_);  // unlocking failed: keep the block as an ordinary one
    held_ += each.capacity;
    large_.add({each.capacity, each.data, kAnyOwner});
  }
}

void DevicePool::unlock_all() {
  {
    core::MutexLock lock(mu_);
    while (!idle_locked_.empty()) condemn(0);
  }
  free_condemned();
}

}  // namespace teletensor::memory
