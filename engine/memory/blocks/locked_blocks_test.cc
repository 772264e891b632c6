// Tests of transfers from a device to page-locked memory of the host, and of the reuse of that
// memory.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/core/folder_test.h"
#include "engine/memory/disk.h"
#include "engine/memory/pool.h"

namespace teletensor::memory {
namespace {

using core::Code;

constexpr std::size_t kMiB = std::size_t{1} << 20;

class Pages : public Source {
 public:
  void* allocate(std::size_t bytes) override {
    mapped += bytes;
    return map_pages(bytes);
  }
  void deallocate(void* memory, std::size_t bytes) override {
    mapped -= bytes;
    unmap_pages(memory, bytes);
  }
  void zero(void* memory, std::size_t bytes, OwnerId, OwnerId) override {
    std::memset(memory, 0, bytes);
  }
  std::uint64_t mapped = 0;
};

// A fake device that can lock host memory.
class Gpu : public Pages {
 public:
  bool lock(void* host, std::size_t bytes) override {
    if (refuses || gone) return false;
    ++times_locked;
    return locked.emplace(host, bytes).second;
  }
  bool unlock(void* host) override { return !gone && locked.erase(host) == 1; }
  bool lost() const override { return gone; }
  core::Status copy_in(void* memory, const void* host, std::size_t bytes) override {
    staged += bytes;
    return Pages::copy_in(memory, host, bytes);
  }
  core::Status copy_out(void* host, const void* memory, std::size_t bytes) override {
    staged += bytes;
    return Pages::copy_out(host, memory, bytes);
  }
  core::Status copy_in_locked(void* memory, const void* host, std::size_t bytes,
                              const std::function<bool()>& go_on) override {
    return straight_copy(memory, host, host, bytes, go_on);
  }
  core::Status copy_out_locked(void* host, const void* memory, std::size_t bytes,
                               const std::function<bool()>& go_on) override {
    written = host;
    return straight_copy(host, memory, host, bytes, go_on);
  }

  bool refuses = false, breaks = false, gone = false;
  int times_locked = 0;
  std::uint64_t staged = 0, straight = 0;
  void* written = nullptr;
  std::map<void*, std::size_t> locked;

 private:
  core::Status straight_copy(void* to, const void* from, const void* host, std::size_t bytes,
                             const std::function<bool()>& go_on) {
    EXPECT_GE(locked[const_cast<void*>(host)], bytes);
    if (!go_on()) return core::Status(Code::kCancelled, "not now");
    if (breaks) gone = true;
    if (gone) return core::Status(Code::kUnknown, "DEVICE_LOST");
    straight += bytes;
    std::memcpy(to, from, bytes);
    return {};
  }
};

class Locked : public ::testing::Test {
 protected:
  core::Ref<Storage> make(std::size_t bytes, char value, Pool* pool = nullptr) {
    core::Ref<Storage> made = (pool ? pool : there.get())->allocate_shared(bytes, 1);
    made->unpin();
    std::memset(made->data(), value, bytes);
    return made;
  }
  core::Status out(Storage& storage, bool go_on = true) {
    return there->moved_storages().move_to_host(storage, *here, [=] { return go_on; });
  }
  core::Status in(Storage& storage) {
    return there->moved_storages().move_in(storage, [] { return true; });
  }
  static bool holds(Storage& storage, char value) {
    std::string bytes(storage.bytes(), '\0');
    EXPECT_TRUE(storage.read(0, bytes.data(), bytes.size()).ok());
    return bytes == std::string(storage.bytes(), value);
  }

  Pages pages;
  Gpu gpu;
  DevicePool host{{}, 32 * kMiB, &pages};
  DevicePool device{{core::DeviceKind::kCuda, 0}, 64 * kMiB, &gpu};
  PoolHandle here{Pool::create(host, 1, 0)}, there{Pool::create(device, 1, 0)};
};

TEST_F(Locked, MemoryIsLockedOnceAndCopiedStraight) {
  const auto first = make(4 * kMiB, 1), second = make(3 * kMiB, 2);
  for (const auto& each : {first, second, first}) {
    ASSERT_TRUE(out(*each).ok());
    EXPECT_EQ(here->account().used(), each->bytes());
    EXPECT_TRUE(holds(*each, each == first ? 1 : 2));
    ASSERT_TRUE(in(*each).ok());
    EXPECT_TRUE(holds(*each, each == first ? 1 : 2));
    // The block is in use by no storage and stays cached.
    EXPECT_EQ(here->account().used(), 0u);
    EXPECT_EQ(host.locked(), 4 * kMiB);
    EXPECT_EQ(host.held(), 4 * kMiB);
    EXPECT_EQ(pages.mapped, 4 * kMiB);
  }
  EXPECT_EQ(gpu.times_locked, 1);
  EXPECT_EQ(gpu.straight, 22 * kMiB);
  // holds() above has read the staged bytes.
  EXPECT_EQ(gpu.staged, first->bytes() + second->bytes() + first->bytes());
  host.unlock_all();
  EXPECT_TRUE(gpu.locked.empty());
  EXPECT_EQ(host.locked() + host.held() + pages.mapped, 0u);
}

TEST_F(Locked, SmallOnesAndWhatIsNotLockedGoThroughTheSlots) {
  const auto small = make(kMiB, 1), large = make(2 * kMiB, 2);
  gpu.refuses = true;
  for (const auto& each : {small, large}) {
    ASSERT_TRUE(out(*each).ok());
    EXPECT_EQ(here->account().used(), each->bytes());
    ASSERT_TRUE(in(*each).ok());
    EXPECT_TRUE(holds(*each, each == small ? 1 : 2));
  }
  gpu.refuses = false;
  ASSERT_TRUE(out(*small).ok());
  EXPECT_EQ(gpu.straight, 0u);
  EXPECT_EQ(gpu.times_locked, 0);
  EXPECT_EQ(host.locked(), 0u);
}

TEST_F(Locked, AtMostHalfOfTheHostsMemory) {
  std::vector<core::Ref<Storage>> all;
  for (char i = 0; i < 6; ++i) {
    ASSERT_TRUE(out(*all.emplace_back(make(4 * kMiB, i))).ok());
  }
  EXPECT_EQ(host.locked(), 16 * kMiB);
  EXPECT_EQ(here->account().used(), 24 * kMiB);
  EXPECT_EQ(gpu.straight, 16 * kMiB);
  for (char i = 0; i < 6; ++i) {
    auto& each = *all[static_cast<std::size_t>(i)];
    EXPECT_TRUE(holds(each, i));
    ASSERT_TRUE(in(each).ok());
    EXPECT_TRUE(holds(each, i));
  }
  // A tensor that does not fit beside the locked memory in use must not evict idle locked blocks.
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(out(*all[static_cast<std::size_t>(i)]).ok());
  const auto too_large = make(6 * kMiB, 8);
  ASSERT_TRUE(out(*too_large).ok());
  EXPECT_EQ(gpu.times_locked, 4);
  EXPECT_EQ(host.locked(), 16 * kMiB);
  EXPECT_EQ(gpu.locked.size(), 4u);
  ASSERT_TRUE(in(*too_large).ok());
  EXPECT_TRUE(holds(*too_large, 8));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(in(*all[static_cast<std::size_t>(i)]).ok());
  // Idle locked blocks are freed for another size.
  const auto large = make(10 * kMiB, 9);
  ASSERT_TRUE(out(*large).ok());
  EXPECT_EQ(gpu.times_locked, 5);
  EXPECT_EQ(host.locked(), 14 * kMiB);
  EXPECT_EQ(gpu.locked.size(), 2u);
  EXPECT_TRUE(holds(*large, 9));
}

TEST_F(Locked, IdleBlocksMakeRoomForWhoeverNeedsIt) {
  const auto moved = make(12 * kMiB, 1);
  ASSERT_TRUE(out(*moved).ok());
  ASSERT_TRUE(in(*moved).ok());
  EXPECT_EQ(host.locked(), 12 * kMiB);
  const auto other = make(16 * kMiB, 2, here.get());
  EXPECT_EQ(host.locked(), 12 * kMiB);  // no block had to be unlocked
  const auto more = make(10 * kMiB, 3, here.get());
  EXPECT_EQ(host.locked(), 0u);
  EXPECT_TRUE(gpu.locked.empty());
  EXPECT_EQ(pages.mapped, 26 * kMiB);
  EXPECT_EQ(host.held(), 26 * kMiB);
}

TEST_F(Locked, NobodyGetsWhatALostDeviceMayWriteTo) {
  const auto kept = make(4 * kMiB, 1), failed = make(4 * kMiB, 2);
  ASSERT_TRUE(out(*kept).ok());
  gpu.breaks = true;
  EXPECT_EQ(out(*failed).code(), Code::kUnknown);
  const void* const taboo = gpu.written;
  EXPECT_EQ(here->account().used(), 4 * kMiB);
  EXPECT_EQ(host.held(), 8 * kMiB);
  std::vector<core::Ref<Storage>> all;
  for (int i = 0; i < 6; ++i) {
    EXPECT_NE(all.emplace_back(make(4 * kMiB, 7, here.get()))->data(), taboo);
  }
  host.unlock_all();
  EXPECT_EQ(pages.mapped, host.held());  // memory that stays locked is not unmapped
  EXPECT_GE(host.locked(), 4 * kMiB);
}

// The locked memory belongs to the host and outlives the device that locked it.
TEST_F(Locked, WhatLiesThereOutlivesTheDevice) {
  auto moved = make(4 * kMiB, 5);
  const auto idle = make(6 * kMiB, 6);
  ASSERT_TRUE(out(*moved).ok());
  ASSERT_TRUE(out(*idle).ok());
  ASSERT_TRUE(in(*idle).ok());
  gpu.gone = true;
  EXPECT_TRUE(holds(*moved, 5));
  EXPECT_FALSE(in(*moved).ok());
  EXPECT_TRUE(holds(*moved, 5));
  moved = nullptr;
  EXPECT_EQ(host.locked(), 6 * kMiB);
  // The owner of the block's last contents is not recorded, so the block is zeroed for whatever
  // session gets it.
  const auto taken = here->allocate_shared(4 * kMiB, 1);
  EXPECT_EQ(pages.mapped, 10 * kMiB);
  EXPECT_EQ(*static_cast<char*>(taken->data()), 0);
  Gpu second;
  DevicePool device_two{{core::DeviceKind::kCuda, 1}, 64 * kMiB, &second};
  PoolHandle there_two{Pool::create(device_two, 1, 0)};
  auto next = make(6 * kMiB, 8, there_two.get());
  ASSERT_TRUE(there_two->moved_storages().move_to_host(*next, *here, [] { return true; }).ok());
  EXPECT_EQ(second.times_locked, 1);
  EXPECT_EQ(host.locked(), 6 * kMiB);
  EXPECT_TRUE(holds(*next, 8));
  next = nullptr;
  host.unlock_all();
  EXPECT_TRUE(second.locked.empty());
}

TEST_F(Locked, WhatIsNotWantedAnyMoreHasNotHappened) {
  const auto storage = make(4 * kMiB, 3);
  EXPECT_EQ(out(*storage, false).code(), Code::kCancelled);
  EXPECT_NE(storage->data(), nullptr);
  EXPECT_EQ(here->account().used(), 0u);
  ASSERT_TRUE(out(*storage).ok());
  EXPECT_EQ(gpu.times_locked, 1);
  EXPECT_EQ(there->moved_storages().move_in(*storage, [] { return false; }).code(),
            Code::kCancelled);
  EXPECT_TRUE(holds(*storage, 3));
  ASSERT_TRUE(in(*storage).ok());
  EXPECT_TRUE(holds(*storage, 3));
}

TEST_F(Locked, FromThereToTheDiskAndBack) {
  const core::TestFolder folder;
  {
    auto disk = Disk::open(folder.path, 64 * kMiB);
    ASSERT_TRUE(disk.ok());
    const auto share = (*disk)->share("alice");
    const auto first = make(4 * kMiB, 1), second = make(4 * kMiB, 2);
    ASSERT_TRUE(out(*first).ok());
    auto movable = here->moved_storages().movable();
    ASSERT_EQ(movable.size(), 1u);
    ASSERT_TRUE(
        here->moved_storages().move_out(*movable[0], **disk, share, [] { return true; }).ok());
    movable.clear();
    EXPECT_LT(here->account().used(), 1024u);
    ASSERT_TRUE(out(*second).ok());  // uses the idle block
    EXPECT_EQ(gpu.times_locked, 1);
    EXPECT_TRUE(holds(*first, 1));
    ASSERT_TRUE(in(*first).ok());
    EXPECT_TRUE(holds(*first, 1));
    EXPECT_TRUE(holds(*second, 2));
  }
}

}  // namespace
}  // namespace teletensor::memory
