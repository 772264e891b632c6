// Storage: the bytes behind values, and the record of whom they are charged to.
//
// Made by a session's Pool; counted by any thread. With the last reference the bytes go back to the
// account at once and the block to the pool: a Storage object is never deleted but reused, together
// with its block (hence the destroying delete).
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
using OwnerId = std::uint64_t;  // of a session; 0: nobody, contents are zero

class Storage final : public core::Shared {
 public:
  // Null while the bytes are elsewhere (on the disk; a device's also on the host): a storage moves
  // there only while its session's strand is the mover's (runtime/tiers.h), and never while it is
  // pinned.
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }  // asked for
  core::Device device() const;
  // Of the file that its pages are, where other processes may map them (Pool::share,
  // Pool::allocate_open); else -1. It is the storage's.
  int descriptor() const { return descriptor_.load(std::memory_order_acquire); }
  // Of the command that made it.
  std::uint64_t seq() const { return seq_.load(std::memory_order_relaxed); }
  OwnerId owner() const;  // the session that it is charged to
  Pool& pool() const { return *pool_; }
  bool away() const { return away_bytes_.load(std::memory_order_relaxed) != 0; }  // any thread

  // Null: one session's own. Set once, before another session can have the storage; goes with the
  // last reference, before the bytes do.
  Sharing* sharing() const { return sharing_; }
  void share(Sharing* sharing) { sharing_ = sharing; }

  // It stays in memory. Only for who knows that it is there: it is pinned already, or this is the
  // strand.
  void pin() { pins_.fetch_add(1, std::memory_order_relaxed); }
  void unpin() { pins_.fetch_sub(1, std::memory_order_release); }
  // It is pinned, and for long: nobody waits for the end of that.
  void stays() { pins_.fetch_or(kLasting, std::memory_order_relaxed); }
  bool pinned() const { return (pins_.load(std::memory_order_acquire) & ~kLasting) != 0; }
  // Some of the bytes, wherever they are. Any thread.
  core::Status read(std::uint64_t offset, void* to, std::size_t bytes);
  // It was used at this time (of Pool::set_now).
  void touch(std::uint32_t now) {
    if (used_at_.load(std::memory_order_relaxed) != now) {
      used_at_.store(now, std::memory_order_relaxed);
    }
  }
  std::uint32_t used_at() const { return used_at_.load(std::memory_order_relaxed); }
  // What is known of the numbers in it: nothing at the start, and the executor forgets it where it
  // writes. The strand's; nothing holds of a published one.
  core::Bounds& bounds() { return bounds_; }
  // What it was made for, as far as whoever made it said so.
  Described& described() { return described_; }

  ~Storage() override;
  static void operator delete(Storage* storage, std::destroying_delete_t);

 private:
  friend class Pool;
  // In pins_: see stays(). Gone once the mover finds no pin beside it.
  static constexpr std::uint32_t kLasting = std::uint32_t{1} << 31;
  Storage();

  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t capacity_ = 0;  // of the block
  Pool* pool_ = nullptr;      // constant after construction
  Storage* next_ = nullptr;   // while free
  // Read by the report on memory while other threads allocate.
  std::atomic<std::uint64_t> charged_{0};  // 0: free
  std::atomic<std::uint64_t> seq_{0};
  std::atomic<int> descriptor_{-1};
  Described described_;
  Sharing* sharing_ = nullptr;  // owned
  std::atomic<std::uint32_t> pins_{0};
  std::atomic<std::uint32_t> used_at_{0};
  core::Bounds bounds_;
  // Null: in its memory. Under Pool::moving_mu_, where others may read.
  std::unique_ptr<Away> away_;
  std::atomic<std::uint64_t> away_bytes_{0};  // charged before; 0: in memory
  Source* locked_by_ = nullptr;               // the device that has page-locked it
  bool shared_path_ = false;                  // made by allocate_shared
  bool open_ = false;                         // made by allocate_open
};

// Holds a storage, in memory.
class Pinned {
 public:
  Pinned() = default;
  Pinned(std::nullptr_t) {}
  // Precondition: that of Storage::pin().
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
