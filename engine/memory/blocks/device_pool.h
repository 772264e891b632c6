// DevicePool: the unused memory blocks of one device, shared by all sessions, and the device's
// budget.
//
// Small blocks are cut from slabs and kept in lists by size class. Larger blocks are reused by best
// fit (size <= block < 2 * size). Memory is returned to the operating system if all blocks together
// would exceed the budget, or if no session needed it between two calls of release_idle(). All
// blocks together exceed the budget by at most kMaxOverhead. A block remembers its last owner and
// is zeroed before another owner gets it. The host's pool also keeps page-locked blocks, from and
// to which devices copy directly (locked_blocks.cc). Thread-safe. Must outlive every Pool that uses
// it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/dtype.h"
#include "engine/core/mutex.h"
#include "engine/core/status.h"
#include "engine/memory/account.h"
#include "engine/memory/blocks/idle_large.h"
#include "engine/memory/blocks/size_class.h"
#include "engine/memory/blocks/source.h"
#include "engine/memory/storage.h"

namespace teletensor::memory {

struct Block {
  void* data = nullptr;
  std::size_t capacity = 0;
  int descriptor = -1;  // the file of its pages, if they were shared with other processes; else -1
  Source* locked_by = nullptr;
};

class DevicePool {
 public:
  // The maximum number of bytes beyond the budget that the pool may hold: the unused ends of reused
  // blocks, and slabs that are used only in part.
  static constexpr std::uint64_t kMaxOverhead = std::uint64_t{256} << 20;

  // `source` must outlive the pool.
  DevicePool(core::Device device, std::uint64_t total, Source* source);
  ~DevicePool();
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;

  core::Device device() const { return device_; }
  Budget& budget() { return budget_; }
  Source& source() { return *source_; }
  // Transfers of this device's storages, for all sessions. Any thread.
  struct Moved {
    std::atomic<std::uint64_t> away{0};  // bytes that are elsewhere now
    // Totals of the transfers between this device and the host.
    std::atomic<std::uint64_t> out{0}, in{0}, out_ns{0}, in_ns{0};
  };
  Moved& moved() { return moved_; }
  std::uint64_t held() const;  // bytes obtained from the operating system, in use or cached

  // Sets the user of the Pool that is created next for `owner`: all sessions of `user` use at most
  // `limit` bytes together (0: only the device's budget limits them). The first limit stays valid
  // while the user has a session.
  void enroll(OwnerId owner, const std::string& user, std::uint64_t limit);
  // Removes and returns what enroll() recorded for the owner; null if there is nothing.
  std::shared_ptr<UserBudget> take_user(OwnerId owner);
  // Reserves the bytes for `user` from now on. Returns RESOURCE_EXHAUSTED if they are not
  // available. Precondition: the user has no session and no guarantee yet, and `limit` is 0 or at
  // least `bytes`.
  core::Status guarantee(const std::string& user, std::uint64_t bytes, std::uint64_t limit);

  // Allocates up to `n` blocks of a size class that contain no bytes of another session. Returns
  // the number of blocks (0: the device has no memory left).
  int take_small(int size_class, OwnerId owner, Block* blocks, int n);
  // Allocates a block; its data is null if the device has no memory left. Precondition: `bytes` is
  // charged_bytes() of a size above kLargestSmall.
  Block take_large(std::size_t bytes, OwnerId owner);
  // Allocates a block that `device` has page-locked. It may contain bytes of any session, so the
  // caller must not read what it has not written. Returns an ordinary block if locking fails, and
  // no block if half of the memory is locked already. Precondition: as for take_large(). Locking
  // takes milliseconds.
  Block take_locked(std::size_t bytes, Source& device);
  // Returns small or large blocks that contain bytes of `owner`. A block whose pages other
  // processes may still map is reused for this owner only, and preferred for it.
  void give_back(const Block* blocks, int n, OwnerId owner) noexcept;
  // Frees the shared blocks that are kept for the owner.
  void drop_shared(OwnerId owner);
  // Returns blocks and slabs to the source that no session has needed since the last call. Called
  // every few seconds. Takes milliseconds for each gigabyte, most of it without the lock.
  void release_idle();
  // Allocates a new block that other processes may write to; its data is null if the device has no
  // memory left. Precondition: `bytes` is a multiple of Source::open_unit().
  Block take_open(std::size_t bytes);
  // Frees a block of take_open().
  void withdraw(const Block& block);
  // Number of page-locked bytes, in use or cached.
  std::uint64_t locked() const;
  // Unlocks all idle page-locked blocks. Called before the devices that locked them are destroyed.
  void unlock_all();

 private:
  struct CachedSmall {
    void* data;
    OwnerId owner;
  };
  struct CachedLocked {
    std::size_t capacity;
    void* data;
    Source* by;
    friend auto operator<=>(const CachedLocked&, const CachedLocked&) = default;
  };

  // The owner of a block that may contain bytes of any session.
  static constexpr OwnerId kAnyOwner = ~OwnerId{0};
  // The maximum number of cached shared blocks, each of which has an open file descriptor.
  static constexpr std::size_t kMaxShared = 256;

  void make_room(std::size_t bytes) TT_REQUIRES(mu_);
  void* fresh(std::size_t bytes) TT_REQUIRES(mu_);
  void keep(const Block& block, OwnerId owner) TT_REQUIRES(mu_);  // not for small blocks
  void drop(const Block& block) TT_REQUIRES(mu_);                 // returns it to the source
  void drop_one_shared(std::multimap<OwnerId, Block>::iterator which) TT_REQUIRES(mu_);
  bool find_shared(std::size_t bytes, OwnerId owner, Block* found) TT_REQUIRES(mu_);
  void trim(std::uint64_t wanted) TT_REQUIRES(mu_);
  // Returns true if the pool can hold `bytes` more without exceeding the budget by more than
  // kMaxOverhead.
  bool may_hold(std::uint64_t bytes) const TT_REQUIRES(mu_) {
    return held_ + bytes <= budget_.total() + kMaxOverhead;
  }
  // Returns true if a cached block of this capacity may be reused for a request of `bytes`.
  bool is_good_fit(std::size_t capacity, std::size_t bytes) const TT_REQUIRES(mu_);
  // Removes at most `most` slabs from the pool whose blocks are all free, and returns them.
  std::vector<void*> take_free_slabs(int size_class, std::size_t most) TT_REQUIRES(mu_);
  bool carve(int size_class) TT_REQUIRES(mu_);
  bool find_locked(std::size_t bytes, CachedLocked* found) TT_REQUIRES(mu_);
  void keep_locked(const CachedLocked& block) TT_REQUIRES(mu_);
  // Selects an idle locked block to be unlocked: one of at least `bytes`, or the largest.
  // Precondition: there is an idle locked block.
  void condemn(std::uint64_t bytes) TT_REQUIRES(mu_);
  // Unlocks and frees the selected blocks; without the lock, because it may call the driver.
  void free_condemned();

  const core::Device device_;
  Source* const source_;
  Budget budget_;
  Moved moved_;

  mutable core::Mutex mu_;
  struct Users {
    std::map<std::string, std::weak_ptr<UserBudget>> by_name;
    std::map<OwnerId, std::shared_ptr<UserBudget>> enrolled;  // for pools that are created next
    std::vector<std::shared_ptr<UserBudget>> guaranteed;
  } users_ TT_GUARDED_BY(mu_);
  std::uint64_t held_ TT_GUARDED_BY(mu_) = 0;
  std::vector<CachedSmall> small_[kSizeClasses] TT_GUARDED_BY(mu_);
  // All blocks cut so far, free or in use.
  std::size_t carved_[kSizeClasses] TT_GUARDED_BY(mu_) = {};
  // The smallest number of free blocks since the last release_idle().
  std::size_t least_small_[kSizeClasses] TT_GUARDED_BY(mu_) = {};
  // A search for free slabs finds none while there are fewer free blocks than this.
  std::size_t scan_from_[kSizeClasses] TT_GUARDED_BY(mu_) = {};
  std::vector<void*> slabs_ TT_GUARDED_BY(mu_);
  IdleLarge large_ TT_GUARDED_BY(mu_);
  std::multimap<OwnerId, Block> shared_ TT_GUARDED_BY(mu_);
  std::uint64_t locked_ TT_GUARDED_BY(mu_) = 0;       // the page-locked part of held_
  std::uint64_t locked_idle_ TT_GUARDED_BY(mu_) = 0;  // the idle part of locked_
  std::set<CachedLocked> idle_locked_ TT_GUARDED_BY(mu_);
  std::set<CachedLocked> condemned_ TT_GUARDED_BY(mu_);  // no longer counted in held_
  std::atomic<bool> any_condemned_{false};
};

}  // namespace teletensor::memory
