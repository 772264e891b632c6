// Pool: a session's memory on one device: its account, its free blocks, and the record of what
// lives.
//
// Two ways to allocate. The session's strand (whoever runs its instructions, one thread at a time,
// inside a StrandScope) takes from free lists without any lock. Others use allocate_shared().
// Storages are freed by any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/mutex.h"
#include "engine/core/ref.h"
#include "engine/core/status.h"
#include "engine/memory/account.h"
#include "engine/memory/device_pool.h"
#include "engine/memory/disk.h"
#include "engine/memory/on_behalf.h"
#include "engine/memory/storage.h"

namespace teletensor::memory {

class Pool {
 public:
  // `owner` > 0 names the session, equal for its pools on all devices.
  static Pool* create(DevicePool& device, OwnerId owner, std::uint64_t quota);
  // Returns the blocks and deletes the pool, at once or with its last storage. Precondition: nobody
  // allocates any more.
  void close();

  // Not zeroed (but never with another session's bytes). Null when quota or device refuse; the text
  // is then made by refusal(). `seq` names the command in that text.
  core::Ref<Storage> allocate(std::size_t bytes, std::uint64_t seq);  // the strand only
  // Any thread. It is pinned; who binds it to a value unpins it.
  core::Ref<Storage> allocate_shared(std::size_t bytes, std::uint64_t seq);

  // Makes the storage's pages such that other processes of this machine can map them, and look at
  // them: its descriptor. -1: not on this device, or only a small one. What has been shared comes
  // to nobody else's hands afterwards. Precondition: nobody writes to the storage meanwhile. Any
  // thread.
  int share(Storage& storage);
  // Zeroed memory of which another process may have the descriptor, and write to it at any time:
  // only to be copied from and to. Taken away from that process when it is freed. Any thread.
  core::Ref<Storage> allocate_open(std::size_t bytes, std::uint64_t seq);

  // ---- Between memory and disk, and between a device and the host. Who calls these is the
  // session's strand meanwhile, or nobody is. What could move: no small ones, nothing that is
  // pinned, published, or open to be written by other processes. `pinned`: bytes of what could move
  // but for pins that are not known to last.
  std::vector<core::Ref<Storage>> movable(std::uint64_t* pinned = nullptr) const;
  // What is pinned now is known to last until it is unpinned. Any thread.
  void pins_last();
  // The bytes of one on a device become a storage of `host`, the session's pool there, once all
  // that the session has asked of the device has run. Nothing has happened where that fails, or
  // `go_on` (asked now and then) says no: CANCELLED; RESOURCE_EXHAUSTED: the host has no room.
  core::Status move_to_host(Storage& storage, Pool& host, const std::function<bool()>& go_on);
  // Its bytes go into a file. Fails likewise; RESOURCE_EXHAUSTED: the disk, or what the session may
  // have there, is full.
  core::Status move_out(Storage& storage, Disk& disk, const std::shared_ptr<DiskShare>& share,
                        const std::function<bool()>& go_on);
  // They come back. RESOURCE_EXHAUSTED: there is no room now. DATA_LOSS: never. Else it is the
  // device that failed: they stay where they are.
  core::Status move_in(Storage& storage, const std::function<bool()>& go_on);
  // Is there room for so many bytes more; if not, who is short of it?
  enum class Short : std::uint8_t { kNothing, kSession, kUser, kDevice };
  Short room_for(std::size_t bytes) const;
  // Why the bytes of a storage that is away cannot be had back; OK: they can. The strand.
  static core::Status lost(const Storage& storage);
  // What follows is used at this time, in whatever unit. The strand.
  void set_now(std::uint32_t now) { now_.store(now, std::memory_order_relaxed); }
  // The text of refusal() tells of the disk as well. Before anything is allocated.
  void set_disk(Disk* disk, std::shared_ptr<DiskShare> share);
  const std::shared_ptr<DiskShare>& disk_share() const { return disk_share_; }  // null: none

  // RESOURCE_EXHAUSTED: "out of memory: ..." with requested, used, quota, free, the session's
  // largest tensors by command, what others hold, and what to do. Any thread.
  core::Status refusal(std::string_view what, std::size_t bytes) const;

  // Bytes that are no storage's: what the session's names, tape and queue cost. Before close().
  bool reserve(std::uint64_t bytes) { return account_.reserve(bytes); }
  void release(std::uint64_t bytes) { (void)account_.release(bytes); }

  // What lives, largest first, and of equal ones the oldest; at most `most`. Any thread.
  struct Living {
    std::uint64_t bytes, seq;  // charged; of the command that made it
    bool away;                 // elsewhere
    std::optional<Description> described;
    bool operator>(const Living& other) const {
      return bytes != other.bytes ? bytes > other.bytes : seq < other.seq;
    }
  };
  std::vector<Living> largest(std::size_t most) const;

  // Bytes of its storages that are elsewhere. Any thread.
  std::uint64_t away() const { return away_.load(std::memory_order_relaxed); }
  bool on_host() const { return device_id().kind == core::DeviceKind::kCpu; }
  const Account& account() const { return account_; }
  void reset_peak() { account_.reset_peak(); }  // any thread
  void exempt(bool exempt) { account_.exempt(exempt); }
  DevicePool& device() { return device_; }
  core::Device device_id() const { return device_.device(); }

 private:
  friend class Storage;
  friend class StrandScope;
  static constexpr int kSlabObjects = 64;
  // Smaller ones stay: a file each would cost more than it gives. What is away is charged so much.
  static constexpr std::size_t kMinMoved = std::size_t{64} << 10;
  static constexpr std::uint64_t kAwayCharge = 512;

  Pool(DevicePool& device, OwnerId owner, std::uint64_t quota)
      : device_(device), owner_(owner), account_(device.budget(), quota, device.take_user(owner)) {}
  ~Pool();

  struct Slab {
    Storage storages[kSlabObjects];
  };
  struct FreeList {
    Storage* head = nullptr;
    int count = 0;
  };

  core::Ref<Storage> start(Storage* storage, std::size_t bytes, std::uint64_t charged,
                           std::uint64_t seq);
  Storage* take_small(int size_class);
  bool refill(int size_class);
  void drain_remote();
  void put_small(Storage* storage, int size_class);
  Storage* new_object();
  Storage* make_object() TT_REQUIRES(mu_);
  void free(Storage* storage);
  void give_back_shared(Storage* storage);
  std::vector<core::Ref<Storage>> living(std::uint64_t least) const;
  core::Status read(Storage& storage, std::uint64_t offset, void* to, std::size_t bytes);
  void leave(Storage& storage, std::unique_ptr<Away> away);
  // For memory that `device` moves here, page-locked where that is to be had; as allocate_shared,
  // but with anybody's bytes until they are overwritten.
  core::Ref<Storage> allocate_moved(std::size_t bytes, std::uint64_t seq, Source& device);
  core::Status copy_to_host(const Storage& storage, Storage& host,
                            const std::function<bool()>& go_on);
  // Its block is nobody's any more: a lost device may write to it.
  static void abandon(Storage& storage);
  static Block take_from(Storage& storage);
  core::Status fetch_away(const Storage& storage, Away& away, char* to,
                          const std::function<bool()>& go_on);
  void forget_away(Storage& storage);
  Block take_block(std::size_t charged);
  std::string on_disk() const;
  core::Ref<Storage> start_block(const Block& block, std::size_t bytes, std::uint64_t charged,
                                 std::uint64_t seq);
  core::Ref<Storage> start_shared(const Block& block, std::size_t bytes, std::uint64_t charged,
                                  std::uint64_t seq, bool open);

  DevicePool& device_;
  const OwnerId owner_;
  Account account_;

  // The strand's.
  FreeList small_[kSizeClasses];
  Storage* without_block_ = nullptr;

  // Freed by other threads; the strand takes the whole list.
  std::atomic<Storage*> remote_{nullptr};

  Disk* disk_ = nullptr;
  std::shared_ptr<DiskShare> disk_share_;
  std::atomic<std::uint32_t> now_{0};
  std::atomic<std::uint64_t> away_{0};

  core::Mutex moving_mu_;   // read() against what moves
  core::Mutex sharing_mu_;  // one share() at a time
  mutable core::Mutex mu_;
  std::deque<Slab> objects_ TT_GUARDED_BY(mu_);
  int objects_used_ TT_GUARDED_BY(mu_) = kSlabObjects;  // of the last slab
  Storage* shared_free_ TT_GUARDED_BY(mu_) = nullptr;   // objects of allocate_shared
};

// While it lives, this thread is the strand of session `owner`, and works for it. Nests (another
// session's inside).
class StrandScope {
 public:
  explicit StrandScope(OwnerId owner);
  ~StrandScope();
  StrandScope(const StrandScope&) = delete;
  StrandScope& operator=(const StrandScope&) = delete;

 private:
  const OwnerId outer_;
  const OnBehalf behalf_;
};

struct PoolCloser {
  void operator()(Pool* pool) const { pool->close(); }
};
using PoolHandle = std::unique_ptr<Pool, PoolCloser>;

// "1.5 MiB".
std::string readable_bytes(std::uint64_t bytes);

}  // namespace teletensor::memory
