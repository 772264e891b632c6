// Storage: the memory of values, and the record of the account that is charged for it.
//
// Storages are made by a session's Pool; any thread may count references. When the last reference
// is released, the bytes are credited to the account at once and the block returns to the pool. A
// Storage object is never deleted but reused together with its block, hence the destroying delete.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "engine/core/bounds.h"
#include "engine/core/dtype.h"
#include "engine/core/ref.h"
#include "engine/core/status.h"
#include "engine/memory/described.h"
#include "engine/memory/sharing.h"

namespace teletensor::memory {

class Pool;
class Source;
struct Away;
struct Block;
using OwnerId = std::uint64_t;  // identifies a session; 0: no session, the contents are zero

class Storage final : public core::Shared {
 public:
  // Null while the bytes are elsewhere (on the disk, or for a device also on the host). A storage
  // is moved only while the spiller (runtime/tiers.h) runs in place of the session task, and
  // never while it is pinned.
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }  // the requested size
  core::Device device() const;
  // The descriptor of the file that holds its pages, if other processes may map them (Pool::share,
  // Pool::allocate_open); else -1. The storage owns it.
  int descriptor() const { return descriptor_.load(std::memory_order_acquire); }
  // Number of the command that created it.
  std::uint64_t seq() const { return seq_.load(std::memory_order_relaxed); }
  OwnerId owner() const;  // the session that is charged
  Pool& pool() const { return *pool_; }
  bool away() const { return away_bytes_.load(std::memory_order_relaxed) != 0; }  // any thread

  // Null if only one session uses the storage. Set once, before another session can use the
  // storage; destroyed with the last reference, before the memory is freed.
  Sharing* sharing() const { return sharing_; }
  void share(Sharing* sharing) { sharing_ = sharing; }

  // Keeps the bytes in memory. Precondition: they are in memory and cannot be moved now, because
  // the storage is already pinned or the caller is the session task.
  void pin() { pins_.fetch_add(1, std::memory_order_relaxed); }
  void unpin() { pins_.fetch_sub(1, std::memory_order_release); }
  // Marks the pins as long-lasting, so that no allocation waits for their end.
  void stays() { pins_.fetch_or(kLasting, std::memory_order_relaxed); }
  bool pinned() const { return (pins_.load(std::memory_order_acquire) & ~kLasting) != 0; }
  // Copies a part of the bytes, wherever they are. Any thread.
  core::Status read(std::uint64_t offset, void* to, std::size_t bytes);
  // Records a use at this time (see Pool::set_now).
  void touch(std::uint32_t now) {
    if (used_at_.load(std::memory_order_relaxed) != now) {
      used_at_.store(now, std::memory_order_relaxed);
    }
  }
  std::uint32_t used_at() const { return used_at_.load(std::memory_order_relaxed); }
  // Known bounds of the numbers in the storage: none at first, and runtime::Executor resets them
  // when it writes. Session task only; not valid for a published storage.
  core::Bounds& bounds() { return bounds_; }
  // The dtype and shape for which it was allocated, if they were set.
  Described& described() { return described_; }

  ~Storage() override;
  static void operator delete(Storage* storage, std::destroying_delete_t);

 private:
  friend class Pool;
  friend class StorageRecord;
  friend class MovedStorages;
  // A bit of pins_ set by stays(). The spiller clears it once there is no pin.
  static constexpr std::uint32_t kLasting = std::uint32_t{1} << 31;
  Storage();
  // Takes the block from the storage and returns it.
  Block detach();

  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t capacity_ = 0;  // size of the block
  Pool* pool_ = nullptr;      // constant after construction
  Storage* next_ = nullptr;   // next free storage in a list
  // These may be read by memory reports while other threads allocate.
  std::atomic<std::uint64_t> charged_{0};  // 0: free
  std::atomic<std::uint64_t> seq_{0};
  std::atomic<int> descriptor_{-1};
  Described described_;
  Sharing* sharing_ = nullptr;  // owned
  std::atomic<std::uint32_t> pins_{0};
  std::atomic<std::uint32_t> used_at_{0};
  core::Bounds bounds_;
  // Null while the bytes are in memory. Guarded by a lock of MovedStorages where other threads may
  // read.
  std::unique_ptr<Away> away_;
  // Charged bytes before it was moved away; 0: in memory.
  std::atomic<std::uint64_t> away_bytes_{0};
  Source* locked_by_ = nullptr;  // the device that has page-locked it
  bool shared_path_ = false;     // made by allocate_shared
  bool open_ = false;            // made by allocate_open
};

// A reference to a storage that keeps the storage's bytes in memory.
class Pinned {
 public:
  Pinned() = default;
  Pinned(std::nullptr_t) {}
  // Precondition: as for Storage::pin().
  explicit Pinned(core::Ref<Storage> storage) : storage_(std::move(storage)) {
    if (storage_) storage_->pin();
  }
  Pinned(const Pinned& other) : Pinned(other.storage_) {}
  Pinned(Pinned&& other) noexcept : storage_(std::move(other.storage_)) {}
  Pinned& operator=(Pinned other) noexcept {
    std::swap(storage_, other.storage_);
    return *this;
  }
  ~Pinned() {
    if (storage_) storage_->unpin();
  }
  Storage* operator->() const { return storage_.get(); }
  Storage& operator*() const { return *storage_; }
  explicit operator bool() const { return static_cast<bool>(storage_); }
  const core::Ref<Storage>& ref() const { return storage_; }

 private:
  core::Ref<Storage> storage_;
};

}  // namespace teletensor::memory
