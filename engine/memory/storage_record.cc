#include "engine/memory/storage_record.h"

#include <algorithm>
#include <functional>
#include <new>
#include <utility>

#include "engine/core/memory/reserve.h"
#include "engine/memory/disk.h"

namespace teletensor::memory {

StorageRecord::~StorageRecord() = default;

Storage* StorageRecord::make_locked() {
  if (used_ == kSlabObjects) {
    try {
      const core::UsesReserve forbidden(false);
      slabs_.emplace_back();
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
    used_ = 0;
  }
  Storage* storage = &slabs_.back().storages[used_++];
  storage->pool_ = &pool_;
  return storage;
}

Storage* StorageRecord::make() {
  core::MutexLock lock(mutex_);
  return make_locked();
}

Storage* StorageRecord::take_shared() {
  core::MutexLock lock(mutex_);
  return shared_free_ != nullptr ? std::exchange(shared_free_, shared_free_->next_) : make_locked();
}

void StorageRecord::put_shared(Storage* storage) {
  core::MutexLock lock(mutex_);
  storage->next_ = shared_free_;
  shared_free_ = storage;
}

std::vector<core::Ref<Storage>> StorageRecord::living(std::uint64_t least) const {
  std::vector<core::Ref<Storage>> found;
  {
    core::MutexLock lock(mutex_);
    for (const Slab& slab : slabs_) {
      for (const Storage& storage : slab.storages) {
        if (storage.charged_.load(std::memory_order_relaxed) < least) continue;
        if (!storage.try_acquire()) continue;
        found.emplace_back(const_cast<Storage*>(&storage));
        storage.release();
      }
    }
  }
  return found;
}

std::vector<StorageRecord::Living> StorageRecord::largest(std::size_t most) const {
  std::vector<Living> largest;  // a heap with the smallest at the front
  if (most == 0) return largest;
  core::MutexLock lock(mutex_);
  for (const Slab& slab : slabs_) {
    for (const Storage& storage : slab.storages) {
      const std::uint64_t charged = storage.charged_.load(std::memory_order_relaxed);
      if (charged == 0) continue;
      const std::uint64_t away = storage.away_bytes_.load(std::memory_order_relaxed);
      const std::uint64_t bytes = away != 0 ? away : charged;
      const Living found{bytes, storage.seq(), away != 0, {}};
      if (largest.size() == most && !(found > largest.front())) continue;
      largest.push_back(found);
      largest.back().described = storage.described_.get();
      std::push_heap(largest.begin(), largest.end(), std::greater<>());
      if (largest.size() > most) {
        std::pop_heap(largest.begin(), largest.end(), std::greater<>());
        largest.pop_back();
      }
    }
  }
  std::sort_heap(largest.begin(), largest.end(), std::greater<>());
  return largest;
}

}  // namespace teletensor::memory
