// DevicePool's release of unused memory to the operating system, and the checks that keep it within
// its budget.
#include <algorithm>
#include <new>
#include <unordered_map>

#include "engine/memory/blocks/device_pool.h"

namespace teletensor::memory {
namespace {

// Maximum total size of the unused ends of reused blocks.
constexpr std::uint64_t kMaxSlack = DevicePool::kMaxOverhead / 4;

}  // namespace

// RULE: the smallest amount that was cached since the last call was never needed.
void DevicePool::release_idle() {
  std::vector<IdleLarge::Block> blocks;
  std::vector<void*> slabs;
  {
    core::MutexLock lock(mu_);
    blocks = large_.take_unneeded();
    for (int i = 0; i < kSizeClasses; ++i) {
      scan_from_[i] = 0;
      const std::size_t whole = least_small_[i] / (kSlab / class_bytes(i));
      const std::vector<void*> free = take_free_slabs(i, whole);
      slabs.insert(slabs.end(), free.begin(), free.end());
      least_small_[i] = small_[i].size();
    }
  }
  std::uint64_t released = slabs.size() * kSlab;
  for (void* slab : slabs) source_->deallocate(slab, kSlab);
  for (const IdleLarge::Block& block : blocks) {
    source_->deallocate(block.data, block.capacity);
    released += block.capacity;
  }
  core::MutexLock lock(mu_);
  held_ -= released;
}

bool DevicePool::is_good_fit(std::size_t capacity, std::size_t bytes) const {
  if (capacity == bytes) return true;
  const std::uint64_t in_use = held_ - large_.bytes() + capacity;
  return capacity < 2 * bytes && in_use <= budget_.used() + kMaxSlack;
}

// Returns no slabs, and changes nothing, if there is no memory for its own records.
std::vector<void*> DevicePool::take_free_slabs(int size_class, std::size_t most) try {
  std::vector<CachedSmall>& blocks = small_[size_class];
  const std::size_t each = kSlab / class_bytes(size_class);
  if (most == 0 || blocks.size() < std::max(each, scan_from_[size_class])) return {};
  std::sort(slabs_.begin(), slabs_.end());
  const auto slab_of = [&](const void* data) TT_REQUIRES(mu_) {
    return *std::prev(std::upper_bound(slabs_.begin(), slabs_.end(), const_cast<void*>(data)));
  };
  std::unordered_map<void*, std::size_t> free;  // number of free blocks in each slab
  for (const CachedSmall& block : blocks) ++free[slab_of(block.data)];
  std::vector<void*> whole;
  for (const auto& [slab, count] : free) {
    if (count == each && whole.size() < most) whole.push_back(slab);
  }
  if (whole.empty()) {
    scan_from_[size_class] = blocks.size() + each;
    return whole;
  }
  std::sort(whole.begin(), whole.end());
  const auto goes = [&](void* slab) {
    return std::binary_search(whole.begin(), whole.end(), slab);
  };
  std::erase_if(
      blocks, [&](const CachedSmall& block) TT_REQUIRES(mu_) { return goes(slab_of(block.data)); });
  std::erase_if(slabs_, goes);
  carved_[size_class] -= whole.size() * each;
  least_small_[size_class] = std::min(least_small_[size_class], blocks.size());
  return whole;
} catch (const std::bad_alloc&) {
  return {};
}

}  // namespace teletensor::memory
