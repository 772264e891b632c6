#include "engine/memory/pool.h"

#include <algorithm>
#include <cstdio>
#include <new>
#include <utility>

#include "engine/memory/blocks/shared_pages.h"

namespace teletensor::memory {
namespace {

thread_local OwnerId current_task_owner = 0;

// The maximum of free bytes of one size class that a session keeps; more go to the device's pool.
constexpr std::size_t kKeptBytes = std::size_t{2} << 20;
constexpr std::size_t kRefillBytes = std::size_t{16} << 10;

int most_kept(int size_class) {
  return std::max<int>(8, static_cast<int>(kKeptBytes / class_bytes(size_class)));
}

}  // namespace

std::string readable_bytes(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 6) value /= 1024, ++unit;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text;
}

SessionTaskScope::SessionTaskScope(OwnerId owner) : outer_(current_task_owner), behalf_(owner) {
  current_task_owner = owner;
}
SessionTaskScope::~SessionTaskScope() { current_task_owner = outer_; }

core::Device Storage::device() const { return pool_->device_id(); }
OwnerId Storage::owner() const { return pool_->owner_; }

Storage::Storage() = default;
Storage::~Storage() = default;

Block Storage::detach() {
  return {std::exchange(data_, nullptr), capacity_,
          descriptor_.exchange(-1, std::memory_order_relaxed), std::exchange(locked_by_, nullptr)};
}

core::Status Storage::read(std::uint64_t offset, void* to, std::size_t bytes) {
  return pool_->moved_storages().read(*this, offset, to, bytes);
}

void Storage::operator delete(Storage* storage, std::destroying_delete_t) {
  storage->pool_->free(storage);
}

Pool* Pool::create(DevicePool& device, OwnerId owner, std::uint64_t quota) {
  return new Pool(device, owner, quota);
}

void Pool::close() {
  if (account_.close()) delete this;
}

Pool::~Pool() {
  drain_remote();
  for (FreeList& list : small_) {
    for (Storage* storage = list.head; storage != nullptr; storage = storage->next_) {
      give_back_shared(storage);
    }
  }
  device_.drop_shared(owner_);
}

void Pool::give_back_shared(Storage* storage) {
  const Block block = storage->detach();
  if (storage->open_) {
    device_.withdraw(block);
  } else {
    device_.give_back(&block, 1, owner_);
  }
}

Storage* Pool::new_object() {
  if (Storage* storage = without_block_) {
    without_block_ = storage->next_;
    return storage;
  }
  return record_.make();
}

void Pool::put_small(Storage* storage, int size_class) {
  FreeList& list = small_[size_class];
  storage->next_ = list.head;
  list.head = storage;
  if (++list.count <= most_kept(size_class)) return;
  Block blocks[64];
  const int n = std::min(64, list.count / 2);
  for (int i = 0; i < n; ++i) {
    Storage* given = list.head;
    list.head = given->next_;
    blocks[i] = {given->data_, given->capacity_};
    given->next_ = without_block_;
    without_block_ = given;
  }
  list.count -= n;
  device_.give_back(blocks, n, owner_);
}

void Pool::drain_remote() {
  if (remote_.load(std::memory_order_relaxed) == nullptr) return;
  Storage* storage = remote_.exchange(nullptr, std::memory_order_acquire);
  while (storage != nullptr) {
    Storage* next = storage->next_;
    if (storage->data_ == nullptr) {  // a large one, whose block was freed at once
      storage->next_ = without_block_;
      without_block_ = storage;
    } else {
      put_small(storage, size_class(storage->capacity_));
    }
    storage = next;
  }
}

bool Pool::refill(int size_class) {
  Block blocks[64];
  const int wanted = std::clamp(static_cast<int>(kRefillBytes / class_bytes(size_class)), 1, 64);
  const int n = device_.take_small(size_class, owner_, blocks, wanted);
  for (int i = n; i-- > 0;) {
    Storage* storage = new_object();
    if (storage == nullptr) {
      device_.give_back(blocks, i + 1, owner_);
      break;
    }
    storage->data_ = blocks[i].data;
    storage->capacity_ = blocks[i].capacity;
    storage->next_ = small_[size_class].head;
    small_[size_class].head = storage;
    ++small_[size_class].count;
  }
  return small_[size_class].head != nullptr;
}

Storage* Pool::take_small(int size_class) {
  FreeList& list = small_[size_class];
  if (list.head == nullptr) drain_remote();
  if (list.head == nullptr && !refill(size_class)) return nullptr;
  Storage* storage = list.head;
  list.head = storage->next_;
  --list.count;
  return storage;
}

core::Ref<Storage> Pool::start(Storage* storage, std::size_t bytes, std::uint64_t charged,
                               std::uint64_t seq) {
  storage->bytes_ = bytes;
  storage->seq_.store(seq, std::memory_order_relaxed);
  storage->pins_.store(storage->shared_path_ ? 1 : 0, std::memory_order_relaxed);
  storage->bounds_ = {};
  storage->described_.clear();
  storage->used_at_.store(now_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  storage->charged_.store(charged, std::memory_order_relaxed);
  return core::Ref<Storage>(storage);
}

core::Ref<Storage> Pool::allocate(std::size_t bytes, std::uint64_t seq) {
  if (bytes > SIZE_MAX / 4) return nullptr;
  const std::size_t charged = charged_bytes(bytes);
  if (!account_.reserve(charged)) return nullptr;
  Storage* storage = nullptr;
  if (bytes <= kLargestSmall) {
    storage = take_small(size_class(bytes));
  } else {
    drain_remote();
    const Block block = device_.take_large(charged, owner_);
    if (block.data != nullptr) storage = new_object();
    if (storage != nullptr) {
      storage->data_ = block.data;
      storage->capacity_ = block.capacity;
      storage->descriptor_.store(block.descriptor, std::memory_order_relaxed);
    } else if (block.data != nullptr) {
      device_.give_back(&block, 1, owner_);
    }
  }
  if (storage == nullptr) {
    (void)account_.release(charged);  // the account cannot be closed while a thread allocates
    return nullptr;
  }
  return start(storage, bytes, charged, seq);
}

core::Ref<Storage> Pool::allocate_shared(std::size_t bytes, std::uint64_t seq) {
  if (bytes > SIZE_MAX / 4) return nullptr;
  const std::size_t charged = charged_bytes(bytes);
  if (!account_.reserve(charged)) return nullptr;
  Block block;
  if (bytes > kLargestSmall) {
    block = device_.take_large(charged, owner_);
  } else if (device_.take_small(size_class(bytes), owner_, &block, 1) == 0) {
    block.data = nullptr;
  }
  return start_block(block, bytes, charged, seq);
}

// Small blocks are cut from slabs, which are never page-locked.
core::Ref<Storage> Pool::allocate_moved(std::size_t bytes, std::uint64_t seq, Source& device) {
  if (bytes <= kLargestSmall || bytes > SIZE_MAX / 4) return allocate_shared(bytes, seq);
  const std::size_t charged = charged_bytes(bytes);
  if (!account_.reserve(charged)) return nullptr;
  Block block = device_.take_locked(charged, device);
  if (block.data == nullptr) block = device_.take_large(charged, owner_);
  return start_block(block, bytes, charged, seq);
}

core::Ref<Storage> Pool::start_block(const Block& block, std::size_t bytes, std::uint64_t charged,
                                     std::uint64_t seq) {
  if (block.data != nullptr) return start_shared(block, bytes, charged, seq, false);
  (void)account_.release(charged);
  return nullptr;
}

core::Ref<Storage> Pool::allocate_open(std::size_t bytes, std::uint64_t seq) {
  const std::size_t unit = device_.source().open_unit();
  if (unit == 0 || bytes > SIZE_MAX / 4) return nullptr;
  const std::size_t charged = std::max(unit, (bytes + unit - 1) / unit * unit);
  if (!account_.reserve(charged)) return nullptr;
  const Block block = device_.take_open(charged);
  if (block.data == nullptr) {
    (void)account_.release(charged);
    return nullptr;
  }
  return start_shared(block, bytes, charged, seq, true);
}

int Pool::share(Storage& storage) {
  if (device_id().kind != core::DeviceKind::kCpu || storage.capacity_ <= kLargestSmall) return -1;
  core::MutexLock lock(sharing_mu_);
  if (storage.descriptor() < 0 && !storage.open_) {
    storage.descriptor_.store(share_pages(storage.data_, storage.capacity_, storage.bytes_),
                              std::memory_order_release);
  }
  return storage.descriptor();
}

core::Ref<Storage> Pool::start_shared(const Block& block, std::size_t bytes, std::uint64_t charged,
                                      std::uint64_t seq, bool open) {
  Storage* const storage = record_.take_shared();
  if (storage == nullptr) {
    open ? device_.withdraw(block) : device_.give_back(&block, 1, owner_);
    (void)account_.release(charged);
    return nullptr;
  }
  storage->shared_path_ = true;
  storage->data_ = block.data;
  storage->capacity_ = block.capacity;
  storage->descriptor_.store(block.descriptor, std::memory_order_relaxed);
  storage->locked_by_ = block.locked_by;
  storage->open_ = open;
  return start(storage, bytes, charged, seq);
}

void Pool::free(Storage* storage) {
  delete std::exchange(storage->sharing_, nullptr);
  if (storage->away_) [[unlikely]]
    moved_.forget(*storage);
  const std::uint64_t charged = storage->charged_.load(std::memory_order_relaxed);
  storage->charged_.store(0, std::memory_order_relaxed);
  const bool large = storage->capacity_ > kLargestSmall || storage->open_;
  const bool here = storage->data_ != nullptr;
  if (here && (large || storage->shared_path_)) give_back_shared(storage);
  if (storage->shared_path_) {
    record_.put_shared(storage);
  } else if (current_task_owner == owner_) {
    if (large || !here) {
      storage->next_ = without_block_;
      without_block_ = storage;
    } else {
      put_small(storage, size_class(storage->capacity_));
    }
  } else {
    Storage* head = remote_.load(std::memory_order_relaxed);
    do {
      storage->next_ = head;
    } while (!remote_.compare_exchange_weak(head, storage, std::memory_order_release,
                                            std::memory_order_relaxed));
  }
  // This must be last: releasing the last bytes of a closed account deletes the pool.
  if (account_.release(charged)) delete this;
}

Pool::Short Pool::room_for(std::size_t bytes) const {
  const std::uint64_t more = charged_bytes(std::min<std::size_t>(bytes, SIZE_MAX / 4));
  if (account_.used() + more > account_.quota()) return Short::kSession;
  const Budget& budget = account_.budget();
  std::uint64_t held_back = budget.held_back();
  if (const UserBudget* user = account_.user()) {
    if (user->used() + more > user->limit()) return Short::kUser;
    held_back -=
        std::min(held_back, user->guaranteed() - std::min(user->used(), user->guaranteed()));
  }
  return budget.used() + held_back + more > budget.total() ? Short::kDevice : Short::kNothing;
}

core::Status Pool::refusal(std::string_view what, std::size_t bytes) const {
  constexpr std::size_t kShown = 5;
  const std::vector<StorageRecord::Living> largest = record_.largest(kShown);
  const Budget& budget = account_.budget();
  const std::uint64_t used = account_.used(), device_used = budget.used();
  const UserBudget* const user = account_.user();
  const std::uint64_t mine = user != nullptr ? user->used() : used;
  const std::uint64_t others = device_used > mine ? device_used - mine : 0;
  // The guarantee of this session's own user is available to it; only the guarantees of other users
  // count as kept.
  const std::uint64_t own =
      user == nullptr || user->used() > user->guaranteed() ? 0 : user->guaranteed() - user->used();
  const std::uint64_t kept = budget.held_back() > own ? budget.held_back() - own : 0;
  const std::uint64_t taken = device_used + kept;
  const std::uint64_t free = budget.total() > taken ? budget.total() - taken : 0;
  const std::uint64_t wanted = charged_bytes(std::min<std::size_t>(bytes, SIZE_MAX / 4));
  std::string text(what);
  text +=
      ": out of memory on " + core::to_string(device_id()) + ": requested " +
      readable_bytes(bytes) + " (" + std::to_string(bytes) + " bytes), this session uses " +
      readable_bytes(used) + " of its quota of " + readable_bytes(account_.quota()) +
      (user != nullptr ? ", all sessions of this user " + readable_bytes(user->used()) : "") +
      (user != nullptr && user->limit() < budget.total() ? " of " + readable_bytes(user->limit())
                                                         : "") +
      ", free on the device " + readable_bytes(free) +
      (kept > 0 ? ", reserved for other users " + readable_bytes(kept) : "") +
      (user != nullptr ? ", other users use " : ", other sessions use ") + readable_bytes(others) +
      "; largest tensors of this session:";
  if (largest.empty()) text += " none";
  for (std::size_t i = 0; i < largest.size(); ++i) {
    text += (i == 0 ? " " : ", ") + readable_bytes(largest[i].bytes) + " made by command " +
            std::to_string(largest[i].seq) +
            (!largest[i].away ? ""
             : on_host()      ? " (on disk)"
                              : " (moved off the device)");
  }
  text += moved_.on_disk();
  if (used + wanted > account_.quota()) {
    text += "; delete tensors, use smaller batches, or ask for a larger session memory";
  } else if (user != nullptr && user->used() + wanted > user->limit()) {
    text += "; delete tensors, close other sessions of this user, or use smaller batches";
  } else {
    text += "; wait until other sessions release memory, or use smaller batches";
  }
  return core::Status(core::Code::kResourceExhausted, std::move(text));
}

}  // namespace teletensor::memory
