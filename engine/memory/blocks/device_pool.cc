#include "engine/memory/blocks/device_pool.h"

#include <unistd.h>

#include <algorithm>
#include <new>

#include "engine/core/memory/reserve.h"

namespace teletensor::memory {

DevicePool::DevicePool(core::Device device, std::uint64_t total, Source* source)
    : device_(device), source_(source), budget_(total) {}

DevicePool::~DevicePool() {
  unlock_all();
  core::MutexLock lock(mu_);
  for (const IdleLarge::Block& block : large_.all())
    source_->deallocate(block.data, block.capacity);
  for (void* slab : slabs_) source_->deallocate(slab, kSlab);
  while (!shared_.empty()) drop_one_shared(shared_.begin());
}

std::uint64_t DevicePool::held() const {
  core::MutexLock lock(mu_);
  return held_;
}

void DevicePool::enroll(OwnerId owner, const std::string& user, std::uint64_t limit) {
  core::MutexLock lock(mu_);
  std::erase_if(users_.by_name, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<UserBudget>& known = users_.by_name[user];
  std::shared_ptr<UserBudget> budget = known.lock();
  if (!budget) {
    const std::uint64_t most = limit == 0 ? budget_.total() : limit;
    known = budget = std::make_shared<UserBudget>(budget_, most);
  }
  users_.enrolled[owner] = std::move(budget);
}

core::Status DevicePool::guarantee(const std::string& user, std::uint64_t bytes,
                                   std::uint64_t limit) {
  if (!budget_.hold_back(bytes)) {
    return core::Status(core::Code::kResourceExhausted,
                        core::to_string(device_) + " has less memory than is guaranteed to users");
  }
  core::MutexLock lock(mu_);
  const std::uint64_t most = limit == 0 ? budget_.total() : limit;
  users_.guaranteed.push_back(std::make_shared<UserBudget>(budget_, most, bytes));
  users_.by_name[user] = users_.guaranteed.back();
  return {};
}

std::shared_ptr<UserBudget> DevicePool::take_user(OwnerId owner) {
  core::MutexLock lock(mu_);
  const auto found = users_.enrolled.find(owner);
  if (found == users_.enrolled.end()) return nullptr;
  std::shared_ptr<UserBudget> budget = std::move(found->second);
  users_.enrolled.erase(found);
  return budget;
}

// Frees large blocks first, because each system call then frees the most.
void DevicePool::trim(std::uint64_t wanted) {
  while (!large_.empty() && held_ + wanted > budget_.total()) {
    const IdleLarge::Block block = large_.take_largest();
    source_->deallocate(block.data, block.capacity);
    held_ -= block.capacity;
  }
  for (int i = 0; i < kSizeClasses && held_ + wanted > budget_.total(); ++i) {
    const std::uint64_t missing = held_ + wanted - budget_.total();
    for (void* slab : take_free_slabs(i, (missing + kSlab - 1) / kSlab)) {
      source_->deallocate(slab, kSlab);
      held_ -= kSlab;
    }
  }
  while (!shared_.empty() && held_ + wanted > budget_.total()) drop_one_shared(shared_.begin());
  while (!idle_locked_.empty() && held_ + wanted > budget_.total()) {
    condemn(held_ + wanted - budget_.total());
  }
}

void DevicePool::drop_one_shared(std::multimap<OwnerId, Block>::iterator which) {
  const Block block = which->second;
  shared_.erase(which);
  drop(block);
}

void DevicePool::drop(const Block& block) {
  if (block.descriptor >= 0) close(block.descriptor);
  source_->deallocate(block.data, block.capacity);
  held_ -= block.capacity;
}

void DevicePool::drop_shared(OwnerId owner) {
  core::MutexLock lock(mu_);
  for (auto at = shared_.find(owner); at != shared_.end(); at = shared_.find(owner)) {
    drop_one_shared(at);
  }
}

bool DevicePool::find_shared(std::size_t bytes, OwnerId owner, Block* found) {
  const auto [begin, end] = shared_.equal_range(owner);
  auto best = end;
  for (auto at = begin; at != end; ++at) {
    const std::size_t capacity = at->second.capacity;
    if (capacity < bytes || capacity >= 2 * bytes) continue;
    if (best == end || capacity < best->second.capacity) best = at;
  }
  if (best == end) return false;
  *found = best->second;
  shared_.erase(best);
  return true;
}

Block DevicePool::take_open(std::size_t bytes) {
  {
    core::MutexLock lock(mu_);
    make_room(bytes);
    if (!may_hold(bytes)) return {};
    held_ += bytes;
  }
  free_condemned();
  Block block{nullptr, bytes, -1};
  block.descriptor = source_->open(bytes, &block.data);
  if (block.descriptor >= 0) return block;
  {
    core::MutexLock lock(mu_);
    trim(budget_.total());  // frees everything in the cache
  }
  free_condemned();
  block.descriptor = source_->open(bytes, &block.data);
  if (block.descriptor >= 0) return block;
  core::MutexLock lock(mu_);
  held_ -= bytes;
  return {};
}

void DevicePool::withdraw(const Block& block) {
  source_->withdraw(block.descriptor, block.data, block.capacity);
  core::MutexLock lock(mu_);
  held_ -= block.capacity;
}

void DevicePool::make_room(std::size_t bytes) {
  if (held_ + bytes > budget_.total()) trim(bytes);
}

void* DevicePool::fresh(std::size_t bytes) {
  make_room(bytes);
  if (!may_hold(bytes)) return nullptr;
  void* memory = source_->allocate(bytes);
  if (memory == nullptr) {
    trim(budget_.total());  // frees everything in the cache
    memory = source_->allocate(bytes);
  }
  if (memory != nullptr) held_ += bytes;
  return memory;
}

bool DevicePool::carve(int size_class) {
  const std::size_t bytes = class_bytes(size_class);
  try {
    const core::UsesReserve forbidden(false);
    // Room for all of the blocks, so that freeing never allocates.
    small_[size_class].reserve(carved_[size_class] + kSlab / bytes);
    if (slabs_.size() == slabs_.capacity()) slabs_.reserve(2 * slabs_.size() + 16);
  } catch (const std::bad_alloc&) {
    return false;
  }
  void* const slab = fresh(kSlab);
  if (slab == nullptr) return false;
  slabs_.push_back(slab);
  carved_[size_class] += kSlab / bytes;
  char* data = static_cast<char*>(slab);
  // Push in reverse order, so that blocks are taken in ascending order.
  for (std::size_t i = kSlab / bytes; i-- > 0;) {
    small_[size_class].push_back({data + i * bytes, 0});
  }
  return true;
}

int DevicePool::take_small(int size_class, OwnerId owner, Block* blocks, int n) {
  const std::size_t bytes = class_bytes(size_class);
  int taken = 0;
  OwnerId left_by[64];  // the other owner whose bytes the block contains; 0: none
  n = std::min(n, 64);
  {
    core::MutexLock lock(mu_);
    std::vector<CachedSmall>& cached = small_[size_class];
    while (taken < n) {
      if (cached.empty() && (taken > 0 || !carve(size_class))) break;
      const CachedSmall block = cached.back();
      cached.pop_back();
      least_small_[size_class] = std::min(least_small_[size_class], cached.size());
      left_by[taken] = block.owner != owner ? block.owner : 0;
      blocks[taken++] = {block.data, bytes};
    }
  }
  free_condemned();
  for (int i = 0; i < taken; ++i) {
    if (left_by[i] != 0) source_->zero(blocks[i].data, bytes, left_by[i], owner);
  }
  return taken;
}

Block DevicePool::take_large(std::size_t bytes, OwnerId owner) {
  std::optional<IdleLarge::Block> found;
  {
    core::MutexLock lock(mu_);
    if (Block own; find_shared(bytes, owner, &own)) return own;
    found = large_.take(bytes, owner, [&](std::size_t capacity) TT_REQUIRES(mu_) {
      return is_good_fit(capacity, bytes);
    });
    if (!found) found = {bytes, fresh(bytes), owner};
  }
  free_condemned();
  if (found->data == nullptr) return {};
  if (found->owner != owner) source_->zero(found->data, found->capacity, found->owner, owner);
  return {found->data, found->capacity};
}

// Freeing cannot report a lack of memory for the pool's own records; in that case the block is not
// cached but returned to the source.
void DevicePool::give_back(const Block* blocks, int n, OwnerId owner) noexcept {
  core::MutexLock lock(mu_);
  for (int i = 0; i < n; ++i) {
    if (blocks[i].capacity <= kLargestSmall && blocks[i].descriptor < 0) {
      small_[size_class(blocks[i].capacity)].push_back({blocks[i].data, owner});
      continue;
    }
    try {
      const core::UsesReserve forbidden(false);
      keep(blocks[i], owner);
    } catch (const std::bad_alloc&) {
      // A locked block cannot be returned, because only its device could unlock it.
      if (blocks[i].locked_by == nullptr) drop(blocks[i]);
    }
  }
}

void DevicePool::keep(const Block& block, OwnerId owner) {
  if (block.locked_by != nullptr) {
    keep_locked({block.capacity, block.data, block.locked_by});
  } else if (block.descriptor >= 0) {
    shared_.emplace(owner, block);
    if (shared_.size() > kMaxShared) drop_one_shared(shared_.begin());
  } else {
    large_.add({block.capacity, block.data, owner});
  }
}

}  // namespace teletensor::memory
