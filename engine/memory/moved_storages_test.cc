#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <set>
#include <vector>

#include "engine/core/folder_test.h"
#include "engine/memory/disk.h"
#include "engine/memory/pool.h"

namespace teletensor::memory {
namespace {

using core::Code;
using ::testing::HasSubstr;

constexpr core::Device kHost{};
constexpr std::size_t kMiB = std::size_t{1} << 20;

class HostPages : public Source {
 public:
  void* allocate(std::size_t bytes) override { return map_pages(bytes); }
  void deallocate(void* memory, std::size_t bytes) override { unmap_pages(memory, bytes); }
  void zero(void* memory, std::size_t bytes, OwnerId, OwnerId) override {
    std::memset(memory, 0, bytes);
  }
};

class Moving : public ::testing::Test {
 protected:
  Moving() { open(64 * kMiB); }
  ~Moving() override {
    pool.reset();
    disk.reset();
    EXPECT_TRUE(std::filesystem::is_empty(folder.path));
  }
  void open(std::uint64_t total, std::uint64_t user_limit = 0) {
    pool.reset();
    disk.reset();
    auto made = Disk::open(folder.path, total, user_limit);
    ASSERT_TRUE(made.ok()) << made.status().message();
    disk = std::move(*made);
    share = disk->share("alice");
    pool.reset(Pool::create(device, 1, 0));
    pool->moved_storages().set_disk(disk.get(), share);
  }
  // Incompressible bytes that depend on `seed`.
  core::Ref<Storage> make(std::size_t bytes, std::uint32_t seed) {
    core::Ref<Storage> storage = pool->allocate(bytes, seed);
    auto* words = static_cast<std::uint32_t*>(storage->data());
    for (std::size_t i = 0; i < bytes / 4; ++i) words[i] = value(i, seed);
    return storage;
  }
  static std::uint32_t value(std::size_t i, std::uint32_t seed) {
    std::uint32_t x = static_cast<std::uint32_t>(i) * 2654435761u + seed;
    x ^= x >> 15, x *= 2246822519u, x ^= x >> 13;
    return x;
  }
  static bool holds(const Storage& storage, std::uint32_t seed) {
    const auto* words = static_cast<const std::uint32_t*>(storage.data());
    for (std::size_t i = 0; i < storage.bytes() / 4; ++i) {
      if (words[i] != value(i, seed)) return false;
    }
    return true;
  }
  core::Status out(Storage& storage) {
    return pool->moved_storages().move_out(storage, *disk, share, [] { return true; });
  }
  core::Status in(Storage& storage) {
    return pool->moved_storages().move_in(storage, [] { return true; });
  }
  std::vector<std::filesystem::path> files() const {
    std::vector<std::filesystem::path> found;
    for (const auto& each : std::filesystem::directory_iterator(disk->folder())) {
      found.push_back(each.path());
    }
    return found;
  }

  const core::TestFolder folder;
  HostPages pages;
  DevicePool device{kHost, 32 * kMiB, &pages};
  std::unique_ptr<Disk> disk;
  std::shared_ptr<DiskShare> share;
  PoolHandle pool;
  SessionTaskScope strand{1};
};

TEST_F(Moving, BytesComeBackAsTheyWereAndAreCountedWhereTheyAre) {
  for (const std::size_t bytes : {64 * 1024ul, 100'000ul, 3 * kMiB, 3 * kMiB + 4}) {
    auto storage = make(bytes, 5);
    const std::uint64_t used = pool->account().used();
    ASSERT_TRUE(out(*storage).ok());
    EXPECT_EQ(storage->data(), nullptr);
    EXPECT_LT(pool->account().used(), 4096u);
    EXPECT_EQ(share->bytes, charged_bytes(bytes));
    EXPECT_EQ(disk->bytes(), charged_bytes(bytes));
    EXPECT_GT(share->files.used(), bytes);
    EXPECT_EQ(share->files.used(), std::filesystem::file_size(files()[0]));
    EXPECT_EQ(pool->record().largest(5)[0].bytes, charged_bytes(bytes));
    EXPECT_TRUE(pool->record().largest(5)[0].away);
    ASSERT_TRUE(in(*storage).ok());
    EXPECT_TRUE(holds(*storage, 5));
    EXPECT_EQ(pool->account().used(), used);
    EXPECT_FALSE(pool->record().largest(5)[0].away);
    EXPECT_EQ(share->bytes + share->files.used() + disk->budget().used() + disk->bytes(), 0u);
    disk->delete_discarded();
    EXPECT_TRUE(files().empty());
  }
  EXPECT_EQ(pool->account().used(), 0u);
}

TEST_F(Moving, FilesAreForThisUserAloneAndGoWithTheStorage) {
  auto storage = make(kMiB, 1);
  ASSERT_TRUE(out(*storage).ok());
  struct stat facts {};
  ASSERT_EQ(stat(disk->folder().c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0700u);
  ASSERT_EQ(stat(files()[0].c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
  storage = nullptr;
  EXPECT_EQ(pool->account().used() + share->files.used() + disk->bytes(), 0u);
  disk->delete_discarded();
  EXPECT_TRUE(files().empty());
  auto again = pool->allocate(kMiB, 2);  // reuses the Storage object
  EXPECT_NE(again->data(), nullptr);
}

TEST_F(Moving, ADamagedFileCostsThatStorage) {
  auto first = make(2 * kMiB, 1), second = make(2 * kMiB, 2);
  ASSERT_TRUE(out(*first).ok());
  const auto path = files()[0];
  ASSERT_TRUE(out(*second).ok());
  const int file = ::open(path.c_str(), O_RDWR);
  char byte;
  ASSERT_EQ(pread(file, &byte, 1, 1'500'000), 1);
  byte ^= 4;
  ASSERT_EQ(pwrite(file, &byte, 1, 1'500'000), 1);
  close(file);
  const core::Status lost = in(*first);
  EXPECT_EQ(lost.code(), Code::kDataLoss);
  EXPECT_THAT(lost.message(), HasSubstr("made by command 1"));
  EXPECT_EQ(first->data(), nullptr);
  EXPECT_EQ(in(*first).code(), Code::kDataLoss);  // the error is permanent
  char some[8];
  EXPECT_EQ(first->read(0, some, 8).code(), Code::kDataLoss);
  EXPECT_EQ(MovedStorages::lost(*first).code(), Code::kDataLoss);
  ASSERT_TRUE(in(*second).ok());
  EXPECT_TRUE(holds(*second, 2));
  first = second = nullptr;
  EXPECT_EQ(pool->account().used() + share->files.used() + disk->bytes(), 0u);
}

TEST_F(Moving, WhereTheDiskIsFullAStorageStays) {
  open(3 * kMiB);
  auto first = make(2 * kMiB, 1), second = make(2 * kMiB, 2);
  ASSERT_TRUE(out(*first).ok());
  EXPECT_EQ(out(*second).code(), Code::kResourceExhausted);
  EXPECT_TRUE(holds(*second, 2));
  EXPECT_THAT(pool->refusal("add", 64 * kMiB).message(),
              HasSubstr("2.0 MiB made by command 1 (on disk)"));
  EXPECT_THAT(pool->refusal("add", 64 * kMiB).message(),
              HasSubstr("on disk: 2.0 MiB of this session's tensors in 2.0 MiB of files, all users "
                        "2.0 MiB of 3.0 MiB"));
  first = nullptr;
  EXPECT_TRUE(out(*second).ok());
}

TEST_F(Moving, AUserHasItsOwnPartOfTheDisk) {
  open(64 * kMiB, 3 * kMiB);
  auto first = make(2 * kMiB, 1), second = make(2 * kMiB, 2);
  const auto bob = disk->share("bob"), also_alice = disk->share("alice");
  ASSERT_TRUE(out(*first).ok());
  const auto go_on = [] { return true; };
  EXPECT_EQ(pool->moved_storages().move_out(*second, *disk, also_alice, go_on).code(),
            Code::kResourceExhausted);
  EXPECT_TRUE(pool->moved_storages().move_out(*second, *disk, bob, go_on).ok());
}

TEST_F(Moving, WhatIsNotWantedAnyMoreHasNotHappened) {
  auto storage = make(4 * kMiB, 3);
  int asked = 0;
  const auto twice = [&] { return ++asked < 3; };
  EXPECT_EQ(pool->moved_storages().move_out(*storage, *disk, share, twice).code(),
            Code::kCancelled);
  EXPECT_TRUE(holds(*storage, 3));
  EXPECT_EQ(share->files.used(), 0u);
  EXPECT_TRUE(files().empty());
  ASSERT_TRUE(out(*storage).ok());
  asked = 0;
  const std::uint64_t used = pool->account().used();
  EXPECT_EQ(pool->moved_storages().move_in(*storage, twice).code(), Code::kCancelled);
  EXPECT_EQ(pool->account().used(), used);
  ASSERT_TRUE(in(*storage).ok());
  EXPECT_TRUE(holds(*storage, 3));
}

TEST_F(Moving, PiecesAreReadWhereverTheyAre) {
  auto storage = make(3 * kMiB + 400, 9);
  std::vector<std::uint32_t> whole(storage->bytes() / 4), part(1000);
  for (const bool away : {false, true}) {
    if (away) {
      ASSERT_TRUE(out(*storage).ok());
    }
    for (std::size_t at = 0; at < storage->bytes(); at += 700'000) {
      const std::size_t bytes = std::min<std::size_t>(700'000, storage->bytes() - at);
      ASSERT_TRUE(storage->read(at, reinterpret_cast<char*>(whole.data()) + at, bytes).ok());
    }
    for (std::size_t i = 0; i < whole.size(); ++i) ASSERT_EQ(whole[i], value(i, 9));
    ASSERT_TRUE(storage->read(2'000'000, part.data(), 4000).ok());  // reads at an earlier offset
    for (std::size_t i = 0; i < part.size(); ++i) ASSERT_EQ(part[i], value(500'000 + i, 9));
  }
}

TEST_F(Moving, OnlyWhatNobodyNeedsWhereItIsMayMove) {
  pool->set_now(1);
  auto plain = make(kMiB, 1), small = make(1000, 2), pinned = make(kMiB, 3), away = make(kMiB, 4);
  auto shared = make(2 * kMiB, 5);
  pool->set_now(2);
  auto younger = make(kMiB, 6);
  auto upload = pool->allocate_shared(kMiB, 7);
  const Pinned pin(pinned);
  ASSERT_TRUE(out(*away).ok());
  ASSERT_GE(pool->share(*shared), 0);
  std::set<std::uint64_t> seqs;
  for (const auto& storage : pool->moved_storages().movable()) seqs.insert(storage->seq());
  EXPECT_THAT(seqs, ::testing::ElementsAre(1, 5, 6));
  upload->unpin();
  EXPECT_EQ(pool->moved_storages().movable().size(), 4u);
  ASSERT_TRUE(out(*shared).ok());
  ASSERT_TRUE(in(*shared).ok());
  EXPECT_TRUE(holds(*shared, 5));
  EXPECT_LT(plain->used_at(), younger->used_at());
}

TEST_F(Moving, WithoutRoomItStaysOnTheDisk) {
  auto first = make(20 * kMiB, 1);
  EXPECT_EQ(pool->room_for(12 * kMiB), Pool::Short::kNothing);
  EXPECT_EQ(pool->room_for(20 * kMiB), Pool::Short::kSession);  // its quota is the whole device
  ASSERT_TRUE(out(*first).ok());
  auto second = make(20 * kMiB, 2);
  EXPECT_EQ(in(*first).code(), Code::kResourceExhausted);
  second = nullptr;
  ASSERT_TRUE(in(*first).ok());
  EXPECT_TRUE(holds(*first, 1));
}

TEST_F(Moving, LeftoversOfDeadProcessesGoAndThoseOfTheLivingStay) {
  const std::string dead = folder.path + "/teletensor-spill-dead";
  const std::string other = folder.path + "/something-else";
  std::filesystem::create_directory(dead);
  std::filesystem::create_directory(other);
  close(creat((dead + "/1").c_str(), 0600));
  {
    auto second = Disk::open(folder.path, kMiB);
    ASSERT_TRUE(second.ok());
    EXPECT_FALSE(std::filesystem::exists(dead));
    // The folder of a running process is kept.
    EXPECT_TRUE(std::filesystem::exists(disk->folder()));
    EXPECT_TRUE(std::filesystem::exists((*second)->folder()));
  }
  EXPECT_TRUE(std::filesystem::exists(other));
  std::filesystem::remove(other);
}

}  // namespace
}  // namespace teletensor::memory
