// StorageRecord has the storage objects of one pool, in use or free, so that the living ones can be
// listed. Objects are never deleted before the record. Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "engine/core/mutex.h"
#include "engine/core/ref.h"
#include "engine/memory/described.h"
#include "engine/memory/storage.h"

namespace teletensor::memory {

class StorageRecord {
 public:
  explicit StorageRecord(Pool& pool) : pool_(pool) {}
  ~StorageRecord();

  // Returns a new object without a block. Null if there is no memory for it.
  Storage* make();
  // Returns an object that put_shared() received, or a new one. Null if there is no memory for it.
  Storage* take_shared();
  // Keeps an object that was made by take_shared() and is no longer in use.
  void put_shared(Storage* storage);

  // Returns the storages in use that are charged at least `least` bytes.
  std::vector<core::Ref<Storage>> living(std::uint64_t least) const;

  struct Living {
    std::uint64_t bytes, seq;  // the charged bytes; the command that created it
    bool away;                 // the bytes were moved elsewhere
    std::optional<Description> described;
    bool operator>(const Living& other) const {
      return bytes != other.bytes ? bytes > other.bytes : seq < other.seq;
    }
  };
  // Returns at most `most` storages in use, in descending order of size; of equal sizes the oldest
  // is first.
  std::vector<Living> largest(std::size_t most) const;

 private:
  static constexpr int kSlabObjects = 64;
  struct Slab {
    Storage storages[kSlabObjects];
  };

  Storage* make_locked() TT_REQUIRES(mutex_);

  Pool& pool_;
  mutable core::Mutex mutex_;
  std::deque<Slab> slabs_ TT_GUARDED_BY(mutex_);
  int used_ TT_GUARDED_BY(mutex_) = kSlabObjects;         // used objects of the last slab
  Storage* shared_free_ TT_GUARDED_BY(mutex_) = nullptr;  // free objects for take_shared()
};

}  // namespace teletensor::memory
