#include "engine/memory/moved_storages.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "engine/memory/pool.h"

namespace teletensor::memory {

using core::Code;
using core::Status;

namespace {

std::uint64_t ns_since(std::chrono::steady_clock::time_point began) {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - began)
          .count());
}

// The piece size of transfers between a device and the host. Cancellation is checked between
// pieces.
constexpr std::uint64_t kPiece = std::uint64_t{8} << 20;

// Upper bound of the size of a file that holds `bytes` bytes.
std::uint64_t most_in_file(std::uint64_t bytes) {
  return bytes + (bytes / kFileBlock + 3) * 32 + kPage;
}

// Removes the path from the message, because clients must not learn where the daemon stores files.
Status unreadable(const Storage& storage, const Away& away, const Status& status) {
  std::string why = status.message();
  if (const auto at = why.find(away.path); at != std::string::npos) {
    why.replace(at, away.path.size(), "its file");
  }
  return Status(Code::kDataLoss, "a tensor of " + readable_bytes(away.bytes) +
                                     ", made by command " + std::to_string(storage.seq()) +
                                     ", was moved to the disk and cannot be read again: " + why);
}

}  // namespace

void MovedStorages::set_disk(Disk* disk, std::shared_ptr<DiskShare> share) {
  disk_ = disk;
  disk_share_ = std::move(share);
}

std::vector<core::Ref<Storage>> MovedStorages::movable(std::uint64_t* pinned) const {
  // Filter without holding the lock: a skipped reference may be the last one, and its release takes
  // the lock.
  std::vector<core::Ref<Storage>> found = record_.living(kMinMoved);
  std::erase_if(found, [&](const core::Ref<Storage>& storage) {
    if (storage->data_ == nullptr || storage->sharing() != nullptr || storage->open_) return true;
    const std::uint32_t pins = storage->pins_.load(std::memory_order_acquire);
    if (pins == 0) return false;
    if (pins == Storage::kLasting) {
      storage->pins_.fetch_and(~Storage::kLasting, std::memory_order_relaxed);
      return false;
    }
    if (pinned != nullptr && (pins & Storage::kLasting) == 0) *pinned += storage->bytes_;
    return true;
  });
  return found;
}

void MovedStorages::pins_last() {
  for (const core::Ref<Storage>& storage : record_.living(kMinMoved)) {
    if (storage->pinned()) storage->stays();
  }
}

// Marks a storage as moved away, frees its block and credits its account.
void MovedStorages::leave(Storage& storage, std::unique_ptr<Away> away) {
  const std::uint64_t charged = storage.charged_.load(std::memory_order_relaxed);
  away->bytes = storage.bytes_;
  away->charged = charged;
  bytes_.fetch_add(charged, std::memory_order_relaxed);
  device_.moved().away.fetch_add(charged, std::memory_order_relaxed);
  // If other processes may have mapped the pages, the block stays with this session, as after
  // free().
  Block block;
  {
    core::MutexLock lock(mutex_);
    block = storage.detach();
    storage.away_ = std::move(away);
  }
  storage.away_bytes_.store(charged, std::memory_order_relaxed);
  storage.charged_.store(kAwayCharge, std::memory_order_relaxed);
  device_.give_back(&block, 1, owner_);
  (void)account_.release(charged - kAwayCharge);  // never the account's last bytes
}

Status MovedStorages::copy_to_host(const Storage& storage, Storage& host, const GoOn& go_on) {
  const OnBehalf behalf(owner_);
  const auto* const from = static_cast<const char*>(storage.data_);
  auto* const to = static_cast<char*>(host.data_);
  Source& source = device_.source();
  if (host.locked_by_ != nullptr) return source.copy_out_locked(to, from, storage.bytes_, go_on);
  for (std::uint64_t at = 0; at < storage.bytes_; at += kPiece) {
    if (!go_on()) return Status(Code::kCancelled, "the move of the tensor was cancelled");
    TT_RETURN_IF_ERROR(
        source.copy_out(to + at, from + at, std::min<std::uint64_t>(kPiece, storage.bytes_ - at)));
  }
  return {};
}

Status MovedStorages::move_to_host(Storage& storage, Pool& host, const GoOn& go_on) {
  auto away = std::make_unique<Away>();
  away->host = host.allocate_moved(storage.bytes_, storage.seq(), device_.source());
  if (!away->host) return Status(Code::kResourceExhausted, "the host has no memory left");
  const auto began = std::chrono::steady_clock::now();
  if (Status status = copy_to_host(storage, *away->host, go_on); !status.ok()) {
    if (away->host->locked_by_ != nullptr && device_.source().lost()) {
      // A lost device may still write to the block: it stays counted in the host's memory, but
      // nothing can use it.
      (void)away->host->detach();
    }
    return status;
  }
  away->host->touch(storage.used_at());
  away->host->unpin();  // the copy on the host may now be moved to the disk
  leave(storage, std::move(away));
  device_.moved().out.fetch_add(storage.bytes_, std::memory_order_relaxed);
  device_.moved().out_ns.fetch_add(ns_since(began), std::memory_order_relaxed);
  return {};
}

Status MovedStorages::move_out(Storage& storage, Disk& disk,
                               const std::shared_ptr<DiskShare>& share, const GoOn& go_on) {
  const std::uint64_t bytes = storage.bytes_;
  std::uint64_t reserved = most_in_file(bytes);
  if (!share->files.reserve(reserved)) {
    return Status(Code::kResourceExhausted, "the disk has no space for " + readable_bytes(bytes));
  }
  const auto began = std::chrono::steady_clock::now();
  auto away = std::make_unique<Away>();
  away->path = disk.new_path();
  const auto write = [&]() -> Status {
    auto writer = BlockWriter::create(away->path);
    if (!writer.ok()) return writer.status();
    const OnBehalf behalf(owner_);
    std::vector<char> buffer(on_host() ? 0 : std::min<std::uint64_t>(kFileBlock, bytes));
    for (std::uint64_t at = 0; at < bytes; at += kFileBlock) {
      if (!go_on()) return Status(Code::kCancelled, "the move of the tensor was cancelled");
      const std::size_t part = std::min<std::uint64_t>(kFileBlock, bytes - at);
      const char* from = static_cast<const char*>(storage.data_) + at;
      if (!on_host()) {
        TT_RETURN_IF_ERROR(device_.source().copy_out(buffer.data(), from, part));
        from = buffer.data();
      }
      TT_RETURN_IF_ERROR((*writer)->write(from, part));
    }
    TT_RETURN_IF_ERROR((*writer)->commit(false));
    away->file = (*writer)->stored();
    return {};
  };
  if (Status status = write(); !status.ok()) {
    (void)share->files.release(reserved);
    if (status.code() != Code::kCancelled) disk.failed();
    return status;
  }
  if (away->file < reserved) (void)share->files.release(reserved - away->file);
  const std::uint64_t charged = storage.charged_.load(std::memory_order_relaxed);
  away->disk = &disk;
  away->share = share;
  disk.moved_out(bytes, away->file, ns_since(began));
  disk.bytes_.fetch_add(charged, std::memory_order_relaxed);
  share->bytes.fetch_add(charged, std::memory_order_relaxed);
  leave(storage, std::move(away));
  return {};
}

Block MovedStorages::take_block(std::size_t charged) {
  if (charged > kLargestSmall) return device_.take_large(charged, owner_);
  Block block;
  return device_.take_small(size_class(charged), owner_, &block, 1) == 1 ? block : Block{};
}

// Copies the bytes of a storage that is away to `to`, on its own device. Returns DATA_LOSS if
// they cannot be read.
Status MovedStorages::fetch(const Storage& storage, Away& away, char* to, const GoOn& go_on) {
  std::unique_ptr<BlockReader> reader;
  if (!away.host) {
    auto opened = BlockReader::open(away.path);
    if (!opened.ok()) return unreadable(storage, away, opened.status());
    reader = std::move(*opened);
  }
  const OnBehalf behalf(owner_);
  // Bytes in host memory are copied directly to the device; bytes in a file go through a buffer.
  const bool straight = away.host && away.host->data() != nullptr;
  if (straight && away.host->locked_by_ != nullptr) {
    return device_.source().copy_in_locked(to, away.host->data(), away.bytes, go_on);
  }
  const std::uint64_t most = straight ? kPiece : kFileBlock;
  std::vector<char> buffer(on_host() || straight ? 0 : std::min(kFileBlock, away.bytes));
  for (std::uint64_t at = 0; at < away.bytes; at += most) {
    if (!go_on()) return Status(Code::kCancelled, "the move of the tensor was cancelled");
    const std::size_t part = std::min(most, away.bytes - at);
    char* from = on_host() ? to + at : buffer.data();
    if (straight) {
      from = static_cast<char*>(away.host->data()) + at;
    } else if (away.host) {
      TT_RETURN_IF_ERROR(away.host->read(at, from, part));
    } else if (Status status = reader->read(from, part); !status.ok()) {
      return unreadable(storage, away, status);
    }
    if (!on_host()) TT_RETURN_IF_ERROR(device_.source().copy_in(to + at, from, part));
  }
  if (!reader) return {};
  const Status status = reader->finish();
  return status.ok() ? status : unreadable(storage, away, status);
}

Status MovedStorages::move_in(Storage& storage, const GoOn& go_on) {
  Away& away = *storage.away_;
  if (!away.lost.ok()) return away.lost;
  const auto began = std::chrono::steady_clock::now();
  const std::uint64_t more = away.charged - kAwayCharge;
  const Status none(Code::kResourceExhausted, "no memory left to move a tensor back");
  if (!account_.reserve(more)) return none;
  const Block block = take_block(away.charged);
  if (block.data == nullptr) {
    (void)account_.release(more);
    return none;
  }
  Status status = fetch(storage, away, static_cast<char*>(block.data), go_on);
  if (!status.ok()) {
    device_.give_back(&block, 1, owner_);
    (void)account_.release(more);
    if (status.code() != Code::kDataLoss) return status;
    if (!away.host) away.disk->failed();
    core::MutexLock lock(mutex_);
    away.lost = status;
    return status;
  }
  if (away.host) {
    device_.moved().in.fetch_add(away.bytes, std::memory_order_relaxed);
    device_.moved().in_ns.fetch_add(ns_since(began), std::memory_order_relaxed);
  } else {
    away.disk->moved_in(away.bytes, ns_since(began));
  }
  storage.charged_.store(away.charged, std::memory_order_relaxed);
  {
    core::MutexLock lock(mutex_);
    storage.data_ = block.data;
    storage.capacity_ = block.capacity;
    storage.descriptor_.store(block.descriptor, std::memory_order_release);
  }
  forget(storage);  // no other thread reads it now
  return {};
}

// Drops the copy that held the storage's bytes, and what was charged for it.
void MovedStorages::forget(Storage& storage) {
  const Away& away = *storage.away_;
  storage.away_bytes_.store(0, std::memory_order_relaxed);
  bytes_.fetch_sub(away.charged, std::memory_order_relaxed);
  device_.moved().away.fetch_sub(away.charged, std::memory_order_relaxed);
  if (away.disk != nullptr) {
    away.disk->bytes_.fetch_sub(away.charged, std::memory_order_relaxed);
    away.share->bytes.fetch_sub(away.charged, std::memory_order_relaxed);
  }
  storage.away_.reset();
}

Status MovedStorages::lost(const Storage& storage) {
  return storage.away_ ? storage.away_->lost : Status();
}

Status MovedStorages::read(Storage& storage, std::uint64_t offset, void* to, std::size_t bytes) {
  core::MutexLock lock(mutex_);
  if (storage.data_ != nullptr) {
    const OnBehalf behalf(owner_);
    return device_.source().copy_out(to, static_cast<const char*>(storage.data_) + offset, bytes);
  }
  Away& away = *storage.away_;
  TT_RETURN_IF_ERROR(away.lost);
  if (away.host) return away.host->read(offset, to, bytes);
  if (!away.reader || away.read > offset) {
    auto reader = BlockReader::open(away.path);
    if (!reader.ok()) return unreadable(storage, away, reader.status());
    away.reader = std::move(*reader);
    away.read = 0;
  }
  Status status;
  std::vector<char> skipped(std::min<std::uint64_t>(kFileBlock, offset - away.read));
  while (status.ok() && away.read < offset) {
    const std::size_t part = std::min<std::uint64_t>(skipped.size(), offset - away.read);
    status = away.reader->read(skipped.data(), part);
    away.read += part;
  }
  if (status.ok()) status = away.reader->read(to, bytes);
  away.read += bytes;
  if (status.ok() && away.read == away.bytes) status = away.reader->finish();
  if (!status.ok() || away.read == away.bytes) away.reader = nullptr;
  return status.ok() ? status : unreadable(storage, away, status);
}

std::string MovedStorages::on_disk() const {
  if (disk_ == nullptr) return "";
  const Account& files = disk_share_->files;
  const Budget& budget = files.budget();
  const UserBudget* const user = files.user();
  return "; on disk: " + readable_bytes(disk_share_->bytes.load(std::memory_order_relaxed)) +
         " of this session's tensors in " + readable_bytes(files.used()) + " of files" +
         (user != nullptr ? ", this user " + readable_bytes(user->used()) + " of " +
                                readable_bytes(user->limit())
                          : "") +
         ", all users " + readable_bytes(budget.used()) + " of " + readable_bytes(budget.total()) +
         (disk_->moved().failures > 0
              ? " (" + std::to_string(disk_->moved().failures) + " transfers have failed)"
              : "");
}

}  // namespace teletensor::memory
