// Pool: the memory of one session on one device: its account, its free blocks, and the record of
// its storages.
//
// There are two ways to allocate. The session task (the one thread that currently runs the
// session's instructions, inside a SessionTaskScope) uses allocate(), which takes blocks from free
// lists without a lock. All other threads use allocate_shared(). Any thread may free storages.
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
#include "engine/memory/blocks/device_pool.h"
#include "engine/memory/disk.h"
#include "engine/memory/on_behalf.h"
#include "engine/memory/storage.h"

namespace teletensor::memory {

class Pool {
 public:
  // `owner` > 0 identifies the session; it is the same for the session's pools on all devices.
  static Pool* create(DevicePool& device, OwnerId owner, std::uint64_t quota);
  // Returns the blocks to the device and deletes the pool, at once or when its last storage is
  // freed. Precondition: no thread allocates from the pool any more.
  void close();

  // Returns a storage that is not zeroed, but never contains bytes of another session. Returns null
  // if the quota or the device refuse; refusal() then makes the error. `seq` names the command in
  // that error.
  core::Ref<Storage> allocate(std::size_t bytes, std::uint64_t seq);  // session task only
  // For any thread. The storage is pinned; the thread that binds it to a value unpins it.
  core::Ref<Storage> allocate_shared(std::size_t bytes, std::uint64_t seq);

  // Changes the pages of the storage so that other processes of this machine can map them for
  // reading, and returns their file descriptor; -1 if the device does not support this or the
  // storage is small. Pages that have been shared are never reused for another session.
  // Precondition: no thread writes to the storage during the call. Any thread.
  int share(Storage& storage);
  // Allocates zeroed memory to which another process may write at any time through its descriptor.
  // It may only be used as the source or target of copies. When it is freed, it is taken away from
  // the other process. Any thread.
  core::Ref<Storage> allocate_open(std::size_t bytes, std::uint64_t seq);

  // ---- Transfers between memory and disk, and between a device and the host. Only the session
  // task may call these functions, or another thread while that task is not running.

  // Returns the storages that can be moved: those that are large enough and neither pinned, nor
  // published, nor writable by other processes. `pinned` receives the bytes of storages that cannot
  // be moved only because of pins that are not known to be long-lasting.
  std::vector<core::Ref<Storage>> movable(std::uint64_t* pinned = nullptr) const;
  // Marks the current pins as long-lasting: movable() does not count their storages in `pinned`
  // until they are unpinned. Any thread.
  void pins_last();
  // Moves the bytes of a device's storage to a new storage of `host`, the session's pool on the
  // host, after all earlier operations of the session on the device. Nothing is changed if it
  // fails. Returns CANCELLED if `go_on`, which is called between pieces, returned false, and
  // RESOURCE_EXHAUSTED if the host has no room.
  core::Status move_to_host(Storage& storage, Pool& host, const std::function<bool()>& go_on);
  // Moves the bytes to a file. Fails like move_to_host(); RESOURCE_EXHAUSTED means that the disk or
  // the session's share of it is full.
  core::Status move_out(Storage& storage, Disk& disk, const std::shared_ptr<DiskShare>& share,
                        const std::function<bool()>& go_on);
  // Moves the bytes back into memory. Returns RESOURCE_EXHAUSTED if there is no room now, DATA_LOSS
  // if the bytes are lost for good. After any other error the device failed and the bytes stay
  // where they are.
  core::Status move_in(Storage& storage, const std::function<bool()>& go_on);
  // Tells which limit is too small for `bytes` more: none, the session's, the user's, or the
  // device's.
  enum class Short : std::uint8_t { kNothing, kSession, kUser, kDevice };
  Short room_for(std::size_t bytes) const;
  // Returns the error if the bytes of a storage that is away are lost; OK if they can be moved
  // back. Session task only.
  static core::Status lost(const Storage& storage);
  // Sets the time that storages record as their last use from now on, in any unit. Session task
  // only.
  void set_now(std::uint32_t now) { now_.store(now, std::memory_order_relaxed); }
  // Sets the disk, which refusal() then mentions in its message. Precondition: nothing is allocated
  // yet.
  void set_disk(Disk* disk, std::shared_ptr<DiskShare> share);
  // Null if there is no disk.
  const std::shared_ptr<DiskShare>& disk_share() const { return disk_share_; }

  // Returns RESOURCE_EXHAUSTED with the message "out of memory: ...", which lists the requested,
  // used and free bytes, the quota, the session's largest tensors with their commands, the memory
  // of other sessions, and what the user can do. Any thread.
  core::Status refusal(std::string_view what, std::size_t bytes) const;

  // Accounts for bytes that belong to no storage: the session's names, tape and queue. Must not be
  // called after close().
  bool reserve(std::uint64_t bytes) { return account_.reserve(bytes); }
  void release(std::uint64_t bytes) { (void)account_.release(bytes); }

  // Returns at most `most` storages in use, in descending order of size; of equal sizes the oldest
  // is first. Any thread.
  struct Living {
    std::uint64_t bytes, seq;  // the charged bytes; the command that created it
    bool away;                 // the bytes were moved elsewhere
    std::optional<Description> described;
    bool operator>(const Living& other) const {
      return bytes != other.bytes ? bytes > other.bytes : seq < other.seq;
    }
  };
  std::vector<Living> largest(std::size_t most) const;

  // Bytes of its storages that were moved elsewhere. Any thread.
  std::uint64_t away() const { return away_.load(std::memory_order_relaxed); }
  bool on_host() const { return device_id().kind == core::DeviceKind::kCpu; }
  const Account& account() const { return account_; }
  void reset_peak() { account_.reset_peak(); }  // any thread
  void exempt(bool exempt) { account_.exempt(exempt); }
  DevicePool& device() { return device_; }
  core::Device device_id() const { return device_.device(); }

 private:
  friend class Storage;
  friend class SessionTaskScope;
  static constexpr int kSlabObjects = 64;
  // Storages smaller than kMinMoved are not moved: a file for each would cost more than it saves. A
  // storage that was moved away is charged kAwayCharge bytes.
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
  // Allocates memory on the host for bytes that `device` moves there; page-locked if possible. Like
  // allocate_shared(), but the memory may contain bytes of any session until it is overwritten.
  core::Ref<Storage> allocate_moved(std::size_t bytes, std::uint64_t seq, Source& device);
  core::Status copy_to_host(const Storage& storage, Storage& host,
                            const std::function<bool()>& go_on);
  // Detaches the block without reusing it, because a lost device may still write to it.
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

  // Used by the session task only.
  FreeList small_[kSizeClasses];
  Storage* without_block_ = nullptr;

  // Storages freed by other threads; the session task takes the whole list at once.
  std::atomic<Storage*> remote_{nullptr};

  Disk* disk_ = nullptr;
  std::shared_ptr<DiskShare> disk_share_;
  std::atomic<std::uint32_t> now_{0};
  std::atomic<std::uint64_t> away_{0};

  core::Mutex moving_mu_;   // synchronises read() with transfers
  core::Mutex sharing_mu_;  // serialises share()
  mutable core::Mutex mu_;
  std::deque<Slab> objects_ TT_GUARDED_BY(mu_);
  int objects_used_ TT_GUARDED_BY(mu_) = kSlabObjects;  // used objects of the last slab
  Storage* shared_free_ TT_GUARDED_BY(mu_) = nullptr;   // free objects for allocate_shared()
};

// While it exists, the current thread runs the task of session `owner` and works for it. May be
// nested for different sessions.
class SessionTaskScope {
 public:
  explicit SessionTaskScope(OwnerId owner);
  ~SessionTaskScope();
  SessionTaskScope(const SessionTaskScope&) = delete;
  SessionTaskScope& operator=(const SessionTaskScope&) = delete;

 private:
  const OwnerId outer_;
  const OnBehalf behalf_;
};

struct PoolCloser {
  void operator()(Pool* pool) const { pool->close(); }
};
using PoolHandle = std::unique_ptr<Pool, PoolCloser>;

// Formats a size for display: "1.5 MiB".
std::string readable_bytes(std::uint64_t bytes);

}  // namespace teletensor::memory
