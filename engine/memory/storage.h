// Storage: the bytes behind values, and the record of whom they are charged to.
//
// Made by a session's Pool; counted by any thread. With the last reference the bytes go back to the
// account at once and the block to the pool: a Storage object is never deleted but reused, together
// with its block (hence the destroying delete).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

#include "engine/core/dtype.h"
#include "engine/core/ref.h"
#include "engine/memory/sharing.h"

namespace teletensor::memory {

class Pool;
using OwnerId = std::uint64_t;  // of a session; 0: nobody, contents are zero

class Storage final : public core::Shared {
 public:
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }  // asked for
  core::Device device() const;
  // Of the file that its pages are, where other processes may map them (Pool::share,
  // Pool::allocate_open); else -1. It is the storage's.
  int descriptor() const { return descriptor_.load(std::memory_order_acquire); }
  // Of the command that made it.
  std::uint64_t seq() const { return seq_.load(std::memory_order_relaxed); }
  OwnerId owner() const;  // the session that it is charged to

  // Null: one session's own. Set once, before another session can have the storage; goes with the
  // last reference, before the bytes do.
  Sharing* sharing() const { return sharing_; }
  void share(Sharing* sharing) { sharing_ = sharing; }

  ~Storage() override = default;
  static void operator delete(Storage* storage, std::destroying_delete_t);

 private:
  friend class Pool;
  Storage() = default;

  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t capacity_ = 0;  // of the block
  Pool* pool_ = nullptr;      // constant after construction
  Storage* next_ = nullptr;   // while free
  // Read by the report on memory while other threads allocate.
  std::atomic<std::uint64_t> charged_{0};  // 0: free
  std::atomic<std::uint64_t> seq_{0};
  std::atomic<int> descriptor_{-1};
  Sharing* sharing_ = nullptr;  // owned
  bool shared_path_ = false;    // made by allocate_shared
  bool open_ = false;           // made by allocate_open
};

}  // namespace teletensor::memory
