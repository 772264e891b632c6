// MovedStorages moves the bytes of one pool's storages between memory and disk, and between a
// device and the host, and counts those that are away.
//
// Only the session task may call these functions, or another thread while that task is not running,
// except where another rule is stated.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/mutex.h"
#include "engine/core/ref.h"
#include "engine/core/status.h"
#include "engine/memory/account.h"
#include "engine/memory/blocks/device_pool.h"
#include "engine/memory/disk.h"
#include "engine/memory/storage.h"
#include "engine/memory/storage_record.h"

namespace teletensor::memory {

class MovedStorages {
 public:
  using GoOn = std::function<bool()>;

  // `account` and `record` are those of the pool, and outlive this object.
  MovedStorages(DevicePool& device, OwnerId owner, Account& account, const StorageRecord& record)
      : device_(device), owner_(owner), account_(account), record_(record) {}

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
  core::Status move_to_host(Storage& storage, Pool& host, const GoOn& go_on);
  // Moves the bytes to a file. Fails like move_to_host(); RESOURCE_EXHAUSTED means that the disk or
  // the session's share of it is full.
  core::Status move_out(Storage& storage, Disk& disk, const std::shared_ptr<DiskShare>& share,
                        const GoOn& go_on);
  // Moves the bytes back into memory. Returns RESOURCE_EXHAUSTED if there is no room now, DATA_LOSS
  // if the bytes are lost for good. After any other error the device failed and the bytes stay
  // where they are.
  core::Status move_in(Storage& storage, const GoOn& go_on);
  // Returns the error if the bytes of a storage that is away are lost; OK if they can be moved
  // back. Session task only.
  static core::Status lost(const Storage& storage);
  // Copies a part of a storage's bytes, wherever they are. Any thread.
  core::Status read(Storage& storage, std::uint64_t offset, void* to, std::size_t bytes);
  // Drops the copy that has the bytes of a storage that is away, and what was charged for it. No
  // other thread may read the storage.
  void forget(Storage& storage);
  // Bytes of the storages that are away. Any thread.
  std::uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

  // Sets the disk. Precondition: nothing is allocated yet.
  void set_disk(Disk* disk, std::shared_ptr<DiskShare> share);
  // Null if there is no disk.
  const std::shared_ptr<DiskShare>& disk_share() const { return disk_share_; }
  // Describes the use of the disk for an error about missing memory. Empty if there is no disk. Any
  // thread.
  std::string on_disk() const;

 private:
  // Storages smaller than kMinMoved are not moved: a file for each would cost more than it saves. A
  // storage that was moved away is charged kAwayCharge bytes.
  static constexpr std::size_t kMinMoved = std::size_t{64} << 10;
  static constexpr std::uint64_t kAwayCharge = 512;

  bool on_host() const { return device_.device().kind == core::DeviceKind::kCpu; }
  void leave(Storage& storage, std::unique_ptr<Away> away);
  core::Status copy_to_host(const Storage& storage, Storage& host, const GoOn& go_on);
  core::Status fetch(const Storage& storage, Away& away, char* to, const GoOn& go_on);
  Block take_block(std::size_t charged);

  DevicePool& device_;
  const OwnerId owner_;
  Account& account_;
  const StorageRecord& record_;
  Disk* disk_ = nullptr;
  std::shared_ptr<DiskShare> disk_share_;
  std::atomic<std::uint64_t> bytes_{0};
  core::Mutex mutex_;  // Synchronises read() with transfers.
};

}  // namespace teletensor::memory
