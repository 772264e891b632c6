#include "engine/session/shares.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "engine/memory/blocks/source.h"

namespace teletensor::session {
namespace {

class Pages : public memory::Source {
 public:
  void* allocate(std::size_t bytes) override { return memory::map_pages(bytes); }
  void deallocate(void* memory, std::size_t bytes) override { memory::unmap_pages(memory, bytes); }
  void zero(void*, std::size_t, memory::OwnerId, memory::OwnerId) override {}
};

// A request for memory waits for the end of an upload or download, but not for a program that has
// mapped a tensor.
TEST(Shares, WhatIsMappedIsNotWaitedFor) {
  Pages pages;
  memory::DevicePool device({}, 64 << 20, &pages);
  memory::PoolHandle pool(memory::Pool::create(device, 1, 0));
  // Pinned by allocation.
  const core::Ref<memory::Storage> storage = pool->allocate_shared(4 << 20, 1);
  const auto shares = std::make_shared<Shares>();
  std::uint64_t pinned = 0;
  EXPECT_TRUE(pool->moved_storages().movable(&pinned).empty());
  EXPECT_EQ(pinned, storage->bytes());
  core::Result<engine::Shared> shared =
      shares->add(*pool, memory::Pinned(storage), 0, storage->bytes());
  ASSERT_TRUE(shared.ok());
  storage->unpin();
  pinned = 0;
  EXPECT_TRUE(pool->moved_storages().movable(&pinned).empty());
  EXPECT_EQ(pinned, 0u);
  shared->hold.reset();
  EXPECT_EQ(pool->moved_storages().movable(&pinned).size(), 1u);
  storage->pin();  // as a download does; this ends the special treatment
  EXPECT_TRUE(pool->moved_storages().movable(&pinned).empty());
  EXPECT_EQ(pinned, storage->bytes());
  storage->unpin();
  close(shared->descriptor);
}

}  // namespace
}  // namespace teletensor::session
