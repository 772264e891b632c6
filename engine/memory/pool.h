// Pool: the memory of one session on one device: its account, its free blocks, and the record of
// its storages (StorageRecord), some of which have their bytes elsewhere (MovedStorages).
//
// There are two ways to allocate. The session task (the one thread that currently runs the
// session's instructions, inside a SessionTaskScope) uses allocate(), which takes blocks from free
// lists without a lock. All other threads use allocate_shared(). Any thread may free storages.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "engine/core/mutex.h"
#include "engine/core/ref.h"
#include "engine/core/status.h"
#include "engine/memory/account.h"
#include "engine/memory/blocks/device_pool.h"
#include "engine/memory/moved_storages.h"
#include "engine/memory/on_behalf.h"
#include "engine/memory/storage.h"
#include "engine/memory/storage_record.h"

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
  // Allocates memory on the host for bytes that `device` moves there; page-locked if possible. Like
  // allocate_shared(), but the memory may contain bytes of any session until it is overwritten.
  core::Ref<Storage> allocate_moved(std::size_t bytes, std::uint64_t seq, Source& device);
  // Allocates zeroed memory to which another process may write at any time through its descriptor.
  // It may only be used as the source or target of copies. When it is freed, it is taken away from
  // the other process. Any thread.
  core::Ref<Storage> allocate_open(std::size_t bytes, std::uint64_t seq);

  // Tells which limit is too small for `bytes` more: none, the session's, the user's, or the
  // device's.
  enum class Short : std::uint8_t { kNothing, kSession, kUser, kDevice };
  Short room_for(std::size_t bytes) const;
  // Sets the time that storages record as their last use from now on, in any unit. Session task
  // only.
  void set_now(std::uint32_t now) { now_.store(now, std::memory_order_relaxed); }
  // Returns RESOURCE_EXHAUSTED with the message "out of memory: ...", which lists the requested,
  // used and free bytes, the quota, the session's largest tensors with their commands, the memory
  // of other sessions, and what the user can do. Any thread.
  core::Status refusal(std::string_view what, std::size_t bytes) const;

  // Accounts for bytes that belong to no storage: the session's names, tape and queue. Must not be
  // called after close().
  bool reserve(std::uint64_t bytes) { return account_.reserve(bytes); }
  void release(std::uint64_t bytes) { (void)account_.release(bytes); }

  // Moves the pool's storages away from the device and back.
  MovedStorages& moved_storages() { return moved_; }
  const MovedStorages& moved_storages() const { return moved_; }
  // Lists the pool's storages. Any thread.
  const StorageRecord& record() const { return record_; }
  bool on_host() const { return device_id().kind == core::DeviceKind::kCpu; }
  const Account& account() const { return account_; }
  void reset_peak() { account_.reset_peak(); }  // any thread
  void exempt(bool exempt) { account_.exempt(exempt); }
  DevicePool& device() { return device_; }
  core::Device device_id() const { return device_.device(); }

 private:
  friend class Storage;
  friend class SessionTaskScope;

  Pool(DevicePool& device, OwnerId owner, std::uint64_t quota)
      : device_(device), owner_(owner), account_(device.budget(), quota, device.take_user(owner)) {}
  ~Pool();

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
  void free(Storage* storage);
  void give_back_shared(Storage* storage);
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

  std::atomic<std::uint32_t> now_{0};
  core::Mutex sharing_mu_;  // serialises share()
  StorageRecord record_{*this};
  MovedStorages moved_{device_, owner_, account_, record_};
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
