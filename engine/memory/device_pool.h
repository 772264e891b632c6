// DevicePool: the blocks of one device that no session uses at the moment, and the device's budget.
//
// Small blocks are cut from slabs and kept by size class; larger ones are reused by best fit (size
// <= block < 2 * size). Memory goes back to the operating system when the blocks together would
// exceed the budget, and when no session has needed it from one release_idle() to the next. The
// blocks together exceed the budget by at most kMaxOverhead. A block remembers its last owner and
// is zeroed before another one gets it. The host's keeps page-locked blocks as well, of which
// devices copy memory that moves (locked_blocks.cc). Thread-safe. Outlives every Pool on it.
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
#include "engine/memory/size_class.h"
#include "engine/memory/source.h"
#include "engine/memory/storage.h"

namespace teletensor::memory {

struct Block {
  void* data = nullptr;
  std::size_t capacity = 0;
  int descriptor = -1;  // of the file that its pages are, where they have been shared
  Source* locked_by = nullptr;
};

class DevicePool {
 public:
  // Bytes beyond the budget that the pool may hold: the ends of blocks that are larger than what
  // they are used for, and slabs of which only a part is in use.
  static constexpr std::uint64_t kMaxOverhead = std::uint64_t{256} << 20;

  // `source` outlives the pool.
  DevicePool(core::Device device, std::uint64_t total, Source* source);
  ~DevicePool();
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;

  core::Device device() const { return device_; }
  Budget& budget() { return budget_; }
  Source& source() { return *source_; }
  // Of its storages, by all sessions. Any thread.
  struct Moved {
    std::atomic<std::uint64_t> away{0};  // bytes that are elsewhere now
    // So far, between here and the host.
    std::atomic<std::uint64_t> out{0}, in{0}, out_ns{0}, in_ns{0};
  };
  Moved& moved() { return moved_; }
  std::uint64_t held() const;  // bytes from the operating system, in use or cached

  // The sessions of `user` have at most `limit` bytes together (0: all there are): counts for the
  // Pool of `owner` that is made next. The first limit holds while the user has a session.
  void enroll(OwnerId owner, const std::string& user, std::uint64_t limit);
  // What enroll() said of the owner; null without.
  std::shared_ptr<UserBudget> take_user(OwnerId owner);
  // From now on so much is kept free for `user`. RESOURCE_EXHAUSTED where it is not there.
  // Precondition: the user has no session, nothing is guaranteed to it yet, and `limit`, where it
  // is not 0, is no less.
  core::Status guarantee(const std::string& user, std::uint64_t bytes, std::uint64_t limit);

  // Up to `n` blocks of a class, clean for `owner`; how many there are (0: the device has none
  // left).
  int take_small(int size_class, OwnerId owner, Block* blocks, int n);
  // Precondition: bytes is charged_bytes() of something above kLargestSmall. data is null when the
  // device has none left.
  Block take_large(std::size_t bytes, OwnerId owner);
  // A block that `device` has locked, with anybody's bytes in it: who takes it reads nothing that
  // it has not written. Where it cannot be locked, one that is not; none where half of the
  // memory is locked. Precondition: that of take_large. Locking takes milliseconds.
  Block take_locked(std::size_t bytes, Source& device);
  // Blocks of either kind, with `owner`'s bytes in them. One that has been shared with other
  // processes, which may still look at it, is kept for this owner alone, and taken first.
  void give_back(const Block* blocks, int n, OwnerId owner) noexcept;
  // Frees what is kept so.
  void drop_shared(OwnerId owner);
  // Gives back to the source the blocks and slabs that no session has needed since the last call.
  // Called every few seconds. Takes milliseconds for each gigabyte, without the lock.
  void release_idle();
  // A new block that other processes may write to. Precondition: bytes is whole units of the
  // source (Source::open_unit). data is null when the device has none left.
  Block take_open(std::size_t bytes);
  // The end of such a block.
  void withdraw(const Block& block);
  // Page-locked bytes, in use or kept.
  std::uint64_t locked() const;
  // Nothing idle is locked any more. Before the devices go that have locked it.
  void unlock_all();

 private:
  struct CachedSmall {
    void* data;
    OwnerId owner;
  };
  struct CachedLarge {
    std::size_t capacity;
    void* data;
    OwnerId owner;
    friend auto operator<=>(const CachedLarge&, const CachedLarge&) = default;
  };
  struct ByOwner {
    bool operator()(const CachedLarge& a, const CachedLarge& b) const {
      if (a.owner != b.owner) return a.owner < b.owner;
      return a < b;
    }
  };

  struct CachedLocked {
    std::size_t capacity;
    void* data;
    Source* by;
    friend auto operator<=>(const CachedLocked&, const CachedLocked&) = default;
  };

  // Nobody's: who left the bytes in a block is not known.
  static constexpr OwnerId kAnybody = ~OwnerId{0};
  // At most so many shared blocks are kept: each has a descriptor.
  static constexpr std::size_t kMaxShared = 256;

  void make_room(std::size_t bytes) TT_REQUIRES(mu_);
  void* fresh(std::size_t bytes) TT_REQUIRES(mu_);
  void keep(const Block& block, OwnerId owner) TT_REQUIRES(mu_);  // not a small one
  void drop(const Block& block) TT_REQUIRES(mu_);                 // to the source
  void drop_one_shared(std::multimap<OwnerId, Block>::iterator which) TT_REQUIRES(mu_);
  bool find_shared(std::size_t bytes, OwnerId owner, Block* found) TT_REQUIRES(mu_);
  void trim(std::uint64_t wanted) TT_REQUIRES(mu_);
  // Are so many bytes more within the budget and kMaxOverhead?
  bool may_hold(std::uint64_t bytes) const TT_REQUIRES(mu_) {
    return held_ + bytes <= budget_.total() + kMaxOverhead;
  }
  // May a cached block of this capacity be used for a request of so many bytes?
  bool is_good_fit(std::size_t capacity, std::size_t bytes) const TT_REQUIRES(mu_);
  void forget_large(const CachedLarge& block) TT_REQUIRES(mu_);  // it is cached no longer
  // Takes at most `most` slabs out of the pool whose blocks are all free.
  std::vector<void*> take_free_slabs(int size_class, std::size_t most) TT_REQUIRES(mu_);
  bool carve(int size_class) TT_REQUIRES(mu_);
  bool find_large(std::size_t bytes, OwnerId owner, CachedLarge* found) TT_REQUIRES(mu_);
  void keep_large(std::size_t capacity, void* data, OwnerId owner) TT_REQUIRES(mu_);
  bool find_locked(std::size_t bytes, CachedLocked* found) TT_REQUIRES(mu_);
  void keep_locked(const CachedLocked& block) TT_REQUIRES(mu_);
  // An idle block of so many bytes, or else the largest. Precondition: there is one.
  void condemn(std::uint64_t bytes) TT_REQUIRES(mu_);
  // Gives back what is condemned: not under the lock, as the driver may be asked.
  void bury();

  const core::Device device_;
  Source* const source_;
  Budget budget_;
  Moved moved_;

  mutable core::Mutex mu_;
  std::map<std::string, std::weak_ptr<UserBudget>> users_ TT_GUARDED_BY(mu_);
  std::map<OwnerId, std::shared_ptr<UserBudget>> enrolled_ TT_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<UserBudget>> guaranteed_ TT_GUARDED_BY(mu_);
  std::uint64_t held_ TT_GUARDED_BY(mu_) = 0;
  std::vector<CachedSmall> small_[kSizeClasses] TT_GUARDED_BY(mu_);
  std::size_t carved_[kSizeClasses] TT_GUARDED_BY(mu_) = {};  // blocks that there are
  // The fewest free blocks since the last release_idle().
  std::size_t least_small_[kSizeClasses] TT_GUARDED_BY(mu_) = {};
  // With fewer free blocks than this, looking for free slabs again finds none.
  std::size_t scan_from_[kSizeClasses] TT_GUARDED_BY(mu_) = {};
  std::vector<void*> slabs_ TT_GUARDED_BY(mu_);
  // The same blocks twice: any owner's best fit, and the owner's own.
  std::set<CachedLarge> large_ TT_GUARDED_BY(mu_);
  std::set<CachedLarge, ByOwner> large_by_owner_ TT_GUARDED_BY(mu_);
  std::uint64_t large_bytes_ TT_GUARDED_BY(mu_) = 0;        // of large_
  std::uint64_t least_large_bytes_ TT_GUARDED_BY(mu_) = 0;  // since the last release_idle()
  std::multimap<OwnerId, Block> shared_ TT_GUARDED_BY(mu_);
  std::uint64_t locked_ TT_GUARDED_BY(mu_) = 0;       // of held_
  std::uint64_t locked_idle_ TT_GUARDED_BY(mu_) = 0;  // of these
  std::set<CachedLocked> idle_locked_ TT_GUARDED_BY(mu_);
  std::set<CachedLocked> condemned_ TT_GUARDED_BY(mu_);  // not in held_ any more
  std::atomic<bool> any_condemned_{false};
};

}  // namespace teletensor::memory
