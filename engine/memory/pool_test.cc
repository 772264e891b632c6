#include "engine/memory/pool.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <new>
#include <optional>
#include <random>
#include <thread>

namespace {

thread_local int allocations_left = 0;  // the allocation with this number fails; 0: none fails

}  // namespace

[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (allocations_left > 0 && --allocations_left == 0) throw std::bad_alloc();
  if (void* const memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace teletensor::memory {
namespace {

constexpr core::Device kHost{core::DeviceKind::kCpu, 0};

// Counts the bytes obtained from the operating system.
class CountingSource : public Source {
 public:
  void* allocate(std::size_t bytes) override {
    if (refuse) return nullptr;
    mapped += bytes;
    return map_pages(bytes);
  }
  void deallocate(void* memory, std::size_t bytes) override {
    mapped -= bytes;
    unmap_pages(memory, bytes);
  }
  void zero(void* memory, std::size_t bytes, OwnerId, OwnerId) override {
    zeroed += bytes;
    std::memset(memory, 0, bytes);
  }
  std::size_t open_unit() const override { return unit; }
  std::size_t unit = kPage;
  std::atomic<std::uint64_t> mapped{0}, zeroed{0};
  std::atomic<bool> refuse{false};
};

PoolHandle open(DevicePool& device, OwnerId owner, std::uint64_t quota = 0) {
  return PoolHandle(Pool::create(device, owner, quota));
}

// Makes each allocation for a pool's own records fail in turn. Either the storage is refused and
// nothing stays charged, or it is freed as usual.
TEST(Pool, WithoutMemoryForItsRecords) {
  int refused = 0;
  for (int n = 1; n < 40; ++n) {
    for (const std::size_t bytes : {std::size_t{100}, std::size_t{1} << 20}) {
      for (const bool strand : {true, false}) {
        CountingSource source;
        DevicePool device(kHost, 64 << 20, &source);
        PoolHandle pool = open(device, 1);
        allocations_left = n;
        if (strand) {
          const SessionTaskScope scope(1);
          refused += pool->allocate(bytes, 1) == nullptr;
        } else {
          refused += pool->allocate_shared(bytes, 1) == nullptr;
        }
        allocations_left = 0;
        EXPECT_EQ(pool->account().used(), 0u) << n;
        // Memory that could not be cached was returned to the source.
        const std::uint64_t mapped = source.mapped;
        EXPECT_EQ(device.held(), mapped) << n;
        const SessionTaskScope scope(1);
        EXPECT_TRUE(pool->allocate(bytes, 2)) << n;
      }
    }
  }
  EXPECT_GT(refused, 3);
}

TEST(Guarantee, IsKeptFreeAndTheRestIsBorrowed) {
  CountingSource source;
  DevicePool device(kHost, 100 << 20, &source);
  ASSERT_TRUE(device.guarantee("alice", 40 << 20, 80 << 20).ok());
  EXPECT_EQ(device.guarantee("greedy", 61 << 20, 0).code(), core::Code::kResourceExhausted);
  EXPECT_EQ(device.budget().used(), 0u);
  device.enroll(1, "alice", 0);
  device.enroll(2, "bob", 0);
  device.enroll(3, "alice", 0);
  {
    PoolHandle alice = open(device, 1), bob = open(device, 2), second = open(device, 3);
    const auto taken = bob->allocate_shared(60 << 20, 1);
    ASSERT_TRUE(taken);
    EXPECT_FALSE(bob->allocate_shared(1 << 20, 2));  // the rest is reserved for alice
    const std::string text = bob->refusal("add", 2 << 20).message();
    EXPECT_NE(text.find("free on the device 0 B, reserved for other users 40.0 MiB"),
              std::string::npos)
        << text;
    auto a = alice->allocate_shared(30 << 20, 1), b = second->allocate_shared(10 << 20, 1);
    ASSERT_TRUE(a && b);
    EXPECT_EQ(device.budget().used(), 100u << 20);
    EXPECT_EQ(device.budget().held_back(), 0u);
    EXPECT_FALSE(alice->allocate_shared(1 << 20, 2));  // everything is in use
    a = nullptr;
    EXPECT_EQ(device.budget().used(), 70u << 20);
    EXPECT_FALSE(bob->allocate_shared(1 << 20, 3));  // the freed bytes are reserved for alice again
    a = alice->allocate_shared(30 << 20, 3);
    EXPECT_TRUE(a);
  }
  EXPECT_EQ(device.budget().used(), 0u);
  EXPECT_EQ(device.budget().held_back(), 40u << 20);
  device.enroll(4, "alice", 0);
  PoolHandle alice = open(device, 4);
  const auto most = alice->allocate_shared(80 << 20, 1);  // 40 MiB beyond the guarantee
  ASSERT_TRUE(most);
  EXPECT_FALSE(alice->allocate_shared(2 << 20, 2));  // beyond alice's limit
  EXPECT_NE(
      alice->refusal("add", 2 << 20)
          .message()
          .find(
              "all sessions of this user 80.0 MiB of 80.0 MiB, free on the device 20.0 MiB, other "
              "users use 0 B"),
      std::string::npos);
}

TEST(Guarantee, AddsUpWhileManyThreadsTakeAndGiveBack) {
  CountingSource source;
  DevicePool device(kHost, 64 << 20, &source);
  ASSERT_TRUE(device.guarantee("a", 8 << 20, 0).ok());
  ASSERT_TRUE(device.guarantee("b", 8 << 20, 16 << 20).ok());
  const char* users[] = {"a", "b", "c", "a"};
  for (OwnerId i = 0; i < 4; ++i) device.enroll(i + 1, users[i], 0);
  std::vector<PoolHandle> pools;
  for (OwnerId i = 0; i < 4; ++i) pools.push_back(open(device, i + 1));
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937 random(static_cast<unsigned>(i));
      std::deque<core::Ref<Storage>> held;
      for (int round = 0; round < 2000; ++round) {
        if (auto storage = pools[i]->allocate_shared(random() % (3 << 20), 1)) {
          held.push_back(std::move(storage));
        }
        EXPECT_LE(device.budget().used(), 64u << 20);
        while (held.size() > random() % 12) held.pop_front();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(device.budget().used(), 0u);
  EXPECT_EQ(device.budget().held_back(), 16u << 20);
}

TEST(SizeClass, EachHoldsItsSizesWithAtMostAQuarterMore) {
  for (int c = 0; c < kSizeClasses; ++c) {
    EXPECT_EQ(size_class(class_bytes(c)), c);
    EXPECT_EQ(class_bytes(c) % kAlignment, 0u);
    if (c > 0) {
      EXPECT_EQ(size_class(class_bytes(c - 1) + 1), c);
      EXPECT_LE(class_bytes(c) * 4, class_bytes(c - 1) * 5);
    }
  }
  EXPECT_EQ(class_bytes(kSizeClasses - 1), kLargestSmall);
  EXPECT_EQ(size_class(0), 0);
  EXPECT_EQ(charged_bytes(kLargestSmall + 1), kLargestSmall + kPage);
}

TEST(Pages, LargeOnesStartOnHugePages) {
  void* memory = map_pages(3 << 20);
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % kHugePage, 0u);
  std::memset(memory, 1, 3 << 20);
  unmap_pages(memory, 3 << 20);
  EXPECT_EQ(map_pages(SIZE_MAX / 2), nullptr);
}

TEST(Pool, ChargesAndReturnsExactly) {
  CountingSource source;
  DevicePool device(kHost, 64 << 20, &source);
  PoolHandle pool = open(device, 1);
  SessionTaskScope strand(1);
  auto a = pool->allocate(100, 1);
  auto b = pool->allocate(5000, 2);
  auto c = pool->allocate(3 << 20, 3);
  EXPECT_EQ(pool->account().used(), 256u + 5120u + (3u << 20));
  EXPECT_EQ(device.budget().used(), pool->account().used());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a->data()) % kAlignment, 0u);
  b = nullptr;
  EXPECT_EQ(pool->account().used(), 256u + (3u << 20));
  a = nullptr, c = nullptr;
  EXPECT_EQ(pool->account().used(), 0u);
  EXPECT_EQ(pool->account().peak(), 256u + 5120u + (3u << 20));
  EXPECT_EQ(device.budget().used(), 0u);
}

TEST(Pool, RefusesBeyondQuotaAndDeviceAndSaysWhy) {
  CountingSource source;
  DevicePool device(kHost, 16 << 20, &source);
  PoolHandle a = open(device, 1, 8 << 20), b = open(device, 2);
  SessionTaskScope strand(1);
  auto kept = a->allocate(6 << 20, 41);
  auto small = a->allocate(1 << 10, 42);
  EXPECT_FALSE(a->allocate(3 << 20, 43));
  const std::string text = a->refusal("add", 3 << 20).message();
  EXPECT_NE(text.find("add: out of memory on cpu: requested 3.0 MiB"), text.npos) << text;
  EXPECT_NE(text.find("quota of 8.0 MiB"), text.npos) << text;
  EXPECT_NE(text.find("largest tensors of this session: 6.0 MiB made by command 41, 1.0 KiB made "
                      "by command 42"),
            text.npos)
      << text;
  EXPECT_NE(text.find("ask for a larger session memory"), text.npos) << text;
  // The refused request left no trace, and the other session fails only on the device's total.
  EXPECT_EQ(device.budget().used(), (6u << 20) + 1024u);
  EXPECT_FALSE(b->allocate_shared(12 << 20, 1));
  EXPECT_NE(b->refusal("add", 12 << 20).message().find("other sessions use 6.0 MiB"),
            std::string::npos);
  EXPECT_TRUE(b->allocate_shared(9 << 20, 1));
  EXPECT_FALSE(b->allocate_shared(SIZE_MAX, 1));
  EXPECT_EQ(b->account().used(), 0u);
}

TEST(Pool, OfEqualStoragesTheOldestAreTheLargest) {
  CountingSource source;
  DevicePool device(kHost, 64 << 20, &source);
  PoolHandle pool = open(device, 1);
  SessionTaskScope strand(1);
  std::vector<decltype(pool->allocate(1, 1))> kept;
  for (const std::uint64_t seq : {7u, 3u, 9u, 1u, 8u, 2u, 6u, 4u}) {
    kept.push_back(pool->allocate(1 << 16, seq));
  }
  kept.push_back(pool->allocate(1 << 17, 50));
  const auto seqs = [&](std::size_t most) {
    std::vector<std::uint64_t> found;
    for (const auto& living : pool->record().largest(most)) found.push_back(living.seq);
    return found;
  };
  EXPECT_EQ(seqs(4), (std::vector<std::uint64_t>{50, 1, 2, 3}));
  EXPECT_EQ(seqs(7), (std::vector<std::uint64_t>{50, 1, 2, 3, 4, 6, 7}));
  kept.clear();
}

TEST(Pool, AnEmptyDeviceRefusesLikeAFullOne) {
  CountingSource source;
  source.refuse = true;
  DevicePool device(kHost, 16 << 20, &source);
  PoolHandle pool = open(device, 1);
  SessionTaskScope strand(1);
  EXPECT_FALSE(pool->allocate(100, 1));
  EXPECT_FALSE(pool->allocate(4 << 20, 1));
  EXPECT_FALSE(pool->allocate_shared(100, 1));
  EXPECT_EQ(device.budget().used(), 0u);
  source.refuse = false;
  EXPECT_TRUE(pool->allocate(100, 1));
}

TEST(Pool, ReusesItsOwnBlocksWithoutZeroing) {
  CountingSource source;
  DevicePool device(kHost, 64 << 20, &source);
  PoolHandle pool = open(device, 1);
  SessionTaskScope strand(1);
  for (std::size_t bytes : {100ul, 300000ul, 5ul << 20}) {
    auto first = pool->allocate(bytes, 1);
    void* data = first->data();
    std::memset(data, 7, bytes);
    first = nullptr;
    auto second = pool->allocate(bytes, 2);
    EXPECT_EQ(second->data(), data);
    EXPECT_EQ(static_cast<char*>(data)[bytes - 1], 7);
  }
  EXPECT_EQ(source.zeroed, 0u);
}

TEST(Pool, LargeBlocksAreReusedByBestFitBelowTwice) {
  CountingSource source;
  DevicePool device(kHost, 1 << 30, &source);
  PoolHandle pool = open(device, 1);
  SessionTaskScope strand(1);
  void* data = pool->allocate(8 << 20, 1)->data();
  EXPECT_NE(pool->allocate(4 << 20, 1)->data(), data);  // a block of twice the size is not reused
  auto reused = pool->allocate(5 << 20, 1);
  EXPECT_EQ(reused->data(), data);
  EXPECT_EQ(pool->account().used(), 5u << 20);  // charges the requested size, not the block's
}

TEST(Pool, AnotherOwnerSeesZeros) {
  CountingSource source;
  DevicePool device(kHost, 64 << 20, &source);
  for (std::size_t bytes : {256ul, 100000ul, 1ul << 20, 5ul << 20}) {
    {
      PoolHandle first = open(device, 10);
      SessionTaskScope strand(10);
      std::vector<core::Ref<Storage>> many;
      for (int i = 0; i < 6; ++i) {
        many.push_back(first->allocate(bytes, 1));
        std::memset(many.back()->data(), 0xee, bytes);
      }
    }
    PoolHandle second = open(device, 11);
    SessionTaskScope strand(11);
    std::vector<core::Ref<Storage>> many;
    for (int i = 0; i < 6; ++i) {
      many.push_back(i % 2 != 0 ? second->allocate(bytes, 1) : second->allocate_shared(bytes, 1));
      const char* data = static_cast<const char*>(many.back()->data());
      EXPECT_TRUE(std::all_of(data, data + bytes, [](char c) { return c == 0; })) << bytes;
    }
  }
}

TEST(Pool, CachedBlocksGoBackWhenTheDeviceIsFull) {
  CountingSource source;
  DevicePool device(kHost, 16 << 20, &source);
  PoolHandle pool = open(device, 1);
  SessionTaskScope strand(1);
  { auto a = pool->allocate(10 << 20, 1); }
  EXPECT_EQ(source.mapped, 10u << 20);  // kept in the cache
  { auto b = pool->allocate(2 << 20, 1); }
  EXPECT_EQ(source.mapped, 12u << 20);
  auto c = pool->allocate(16 << 20, 1);
  ASSERT_TRUE(c);
  EXPECT_EQ(source.mapped, 16u << 20);
}

TEST(Pool, TheLastStorageOfAClosedPoolReturnsEverything) {
  CountingSource source;
  DevicePool device(kHost, 64 << 20, &source);
  core::Ref<Storage> small, large;
  {
    PoolHandle pool = open(device, 1);
    SessionTaskScope strand(1);
    small = pool->allocate(100, 1);
    large = pool->allocate(2 << 20, 1);
    pool->allocate(4000, 1);
  }
  EXPECT_EQ(device.budget().used(), 256u + (2u << 20));
  large = nullptr;
  small = nullptr;
  EXPECT_EQ(device.budget().used(), 0u);
}

// Two sessions, each with a session task that allocates, a thread that frees, and one that
// uploads.
TEST(Pool, AccountsAreExactUnderThreads) {
  CountingSource source;
  DevicePool device(kHost, 256 << 20, &source);
  struct Session {
    PoolHandle pool;
    core::Mutex mu;
    std::vector<core::Ref<Storage>> passed TT_GUARDED_BY(mu);
  };
  Session sessions[2];
  std::vector<std::thread> threads;
  std::atomic<int> running{4};
  for (int s = 0; s < 2; ++s) {
    Session& session = sessions[s];
    session.pool = open(device, 1 + s, 128 << 20);
    auto work = [&, s](unsigned seed, bool strand) {
      std::optional<SessionTaskScope> scope;
      if (strand) scope.emplace(1 + s);
      std::mt19937 random(seed);
      std::vector<core::Ref<Storage>> own;
      for (int i = 0; i < 4000; ++i) {
        const std::size_t bytes = random() % 50 == 0 ? random() % (3 << 20) : random() % 20000;
        auto storage =
            strand ? session.pool->allocate(bytes, i) : session.pool->allocate_shared(bytes, i);
        if (!storage) continue;
        ASSERT_GE(storage->bytes(), bytes);
        if (bytes > 0) std::memset(storage->data(), s + 1, std::min<std::size_t>(bytes, 64));
        if (random() % 2 == 0) {
          own.push_back(std::move(storage));
        } else {
          core::MutexLock lock(session.mu);
          session.passed.push_back(std::move(storage));
        }
        if (own.size() > 50) own.erase(own.begin(), own.begin() + 40);
        if (i % 500 == 0) {
          EXPECT_FALSE(session.pool->refusal("test", 1).ok());
        }
      }
      --running;
    };
    threads.emplace_back(work, 2 * s + 1, true);
    threads.emplace_back(work, 2 * s + 2, false);
    threads.emplace_back([&] {
      while (running > 0) {
        std::vector<core::Ref<Storage>> taken;
        core::MutexLock lock(session.mu);
        taken.swap(session.passed);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (Session& session : sessions) {
    core::MutexLock lock(session.mu);
    session.passed.clear();
  }
  for (Session& session : sessions) EXPECT_EQ(session.pool->account().used(), 0u);
  EXPECT_EQ(device.budget().used(), 0u);
}

// The bytes that another process sees through the descriptor.
std::string seen_by_other_process(int descriptor, std::size_t bytes) {
  void* mapped = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (mapped == MAP_FAILED) return "cannot be mapped";
  std::string seen(static_cast<const char*>(mapped), bytes);
  munmap(mapped, bytes);
  return seen;
}

TEST(Pool, SharedMemoryKeepsItsAddressAndContents) {
  CountingSource source;
  DevicePool device(kHost, 64 << 20, &source);
  PoolHandle pool = open(device, 1);
  const std::size_t bytes = (3 << 20) + 100;
  core::Ref<Storage> storage = pool->allocate_shared(bytes, 1);
  std::memset(storage->data(), 7, bytes);
  const std::uint64_t used = pool->account().used(), held = device.held();
  const int descriptor = pool->share(*storage);
  ASSERT_GE(descriptor, 0);
  EXPECT_EQ(pool->share(*storage), descriptor);
  EXPECT_EQ(pool->account().used(), used);  // not charged twice
  EXPECT_EQ(device.held(), held);
  EXPECT_EQ(seen_by_other_process(descriptor, bytes), std::string(bytes, 7));
  std::memset(storage->data(), 8, bytes);  // the owner may still write
  EXPECT_EQ(seen_by_other_process(descriptor, bytes), std::string(bytes, 8));
  // Other processes can neither write nor change the size.
  EXPECT_EQ(mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0), MAP_FAILED);
  EXPECT_LT(write(descriptor, "x", 1), 0);
  EXPECT_NE(ftruncate(descriptor, 0), 0);
  EXPECT_NE(ftruncate(descriptor, 1 << 30), 0);
  storage = nullptr;
  EXPECT_EQ(pool->account().used(), 0u);
}

TEST(Pool, SharedMemoryGoesToItsOwnerAloneAgain) {
  CountingSource source;
  DevicePool device(kHost, 64 << 20, &source);
  PoolHandle one = open(device, 1), two = open(device, 2);
  core::Ref<Storage> storage = one->allocate_shared(4 << 20, 1);
  ASSERT_GE(one->share(*storage), 0);
  void* const data = storage->data();
  storage = nullptr;
  const core::Ref<Storage> other = two->allocate_shared(4 << 20, 1);
  EXPECT_NE(other->data(), data);
  EXPECT_EQ(other->descriptor(), -1);
  const core::Ref<Storage> again = one->allocate_shared(4 << 20, 1);
  EXPECT_EQ(again->data(), data);
  EXPECT_GE(again->descriptor(), 0);
}

TEST(Pool, SharedMemoryMakesRoomForOthersAndEndsWithItsOwner) {
  CountingSource source;
  DevicePool device(kHost, 16 << 20, &source);
  {
    PoolHandle one = open(device, 1);
    core::Ref<Storage> storage = one->allocate_shared(12 << 20, 1);
    ASSERT_GE(one->share(*storage), 0);
    storage = nullptr;
    EXPECT_EQ(device.held(), 12u << 20);  // kept in the cache
    PoolHandle two = open(device, 2);
    EXPECT_TRUE(two->allocate_shared(12 << 20, 1));
    EXPECT_LE(device.held(), 16u << 20);
    storage = one->allocate_shared(2 << 20, 1);
    ASSERT_GE(one->share(*storage), 0);
  }
  EXPECT_EQ(device.budget().used(), 0u);
  EXPECT_EQ(device.held() - source.mapped, 0u);
}

TEST(Pool, MemoryThatNobodyNeedsGoesBack) {
  CountingSource source;
  DevicePool device(kHost, 256 << 20, &source);
  PoolHandle stays = open(device, 1);
  const core::Ref<Storage> used = stays->allocate_shared(3 << 20, 1);
  const core::Ref<Storage> small = stays->allocate_shared(100 << 10, 1);
  {
    PoolHandle pool = open(device, 2);
    std::vector<core::Ref<Storage>> storages;
    for (int i = 0; i < 200; ++i) storages.push_back(pool->allocate_shared(100 << 10, 1));
    for (int i = 0; i < 5; ++i) storages.push_back(pool->allocate_shared(8 << 20, 1));
  }
  device.release_idle();  // the blocks were in use since the last call
  EXPECT_GT(device.held(), 60u << 20);
  device.release_idle();
  EXPECT_LE(device.held(), (3u << 20) + 2 * kSlab);
  EXPECT_EQ(device.held() - source.mapped, 0u);
  // Blocks that are needed repeatedly stay cached.
  for (int i = 0; i < 3; ++i) {
    (void)stays->allocate_shared(8 << 20, 1);
    device.release_idle();
  }
  EXPECT_GE(device.held(), 11u << 20);
  EXPECT_EQ(static_cast<const char*>(used->data())[0] + static_cast<char*>(small->data())[0], 0);
}

// A session keeps a bounded number of free small blocks. The other ones are reused by other
// sessions.
TEST(Pool, ManySmallBlocksThatAreFreeServeAnotherSession) {
  CountingSource source;
  DevicePool device(kHost, 256 << 20, &source);
  constexpr std::size_t kBytes = 1000;
  constexpr int kMany = 16000;  // about eight times what a session keeps
  PoolHandle first = open(device, 1), second = open(device, 2);
  std::vector<core::Ref<Storage>> storages;
  {
    SessionTaskScope scope(1);
    for (int i = 0; i < kMany; ++i) storages.push_back(first->allocate(kBytes, 1));
    storages.clear();
  }
  const std::uint64_t held = device.held();
  {
    SessionTaskScope scope(2);
    for (int i = 0; i < kMany / 2; ++i) storages.push_back(second->allocate(kBytes, 1));
    EXPECT_EQ(device.held(), held);
    storages.clear();
  }
}

TEST(Pool, HoldsLittleMoreThanItsBudget) {
  CountingSource source;
  const std::uint64_t total = std::uint64_t{2} << 30;
  DevicePool device(kHost, total, &source);
  PoolHandle pool = open(device, 1);
  std::vector<core::Ref<Storage>> storages;
  // Each size is a little more than half of the previous one.
  for (const std::size_t bytes :
       {std::size_t{100} << 10, std::size_t{15} << 20, std::size_t{8} << 20, std::size_t{5} << 20,
        std::size_t{3} << 20, std::size_t{2} << 20, std::size_t{5} << 18}) {
    while (true) {
      core::Ref<Storage> storage = pool->allocate_shared(bytes, 1);
      if (!storage) break;
      storages.push_back(std::move(storage));
    }
    EXPECT_GT(device.budget().used(), total - (64 << 20)) << bytes;
    EXPECT_LE(device.held(), total + DevicePool::kMaxOverhead) << bytes;
    EXPECT_EQ(device.held() - source.mapped, 0u);
    storages.clear();
  }
}

TEST(Pool, OpenMemoryIsWithdrawn) {
  CountingSource source;
  DevicePool device(kHost, 16 << 20, &source);
  PoolHandle pool = open(device, 1, 4 << 20);
  core::Ref<Storage> storage = pool->allocate_open(10'000, 1);
  ASSERT_TRUE(storage);
  EXPECT_EQ(pool->account().used(), 12'288u);
  const int descriptor = dup(storage->descriptor());
  EXPECT_NE(ftruncate(descriptor, 0), 0);
  char* theirs =
      static_cast<char*>(mmap(nullptr, 10'000, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0));
  ASSERT_NE(static_cast<void*>(theirs), MAP_FAILED);
  theirs[9'999] = 5;
  EXPECT_EQ(static_cast<const char*>(storage->data())[9'999], 5);
  EXPECT_EQ(pool->share(*storage), -1);
  storage = nullptr;
  EXPECT_EQ(theirs[9'999], 0);
  EXPECT_EQ(pool->account().used(), 0u);
  EXPECT_EQ(device.held(), 0u);
  EXPECT_FALSE(pool->allocate_open(5 << 20, 1));  // exceeds the quota
  munmap(theirs, 10'000);
  close(descriptor);
}

TEST(Pool, SmallMemoryIsNotShared) {
  CountingSource source;
  DevicePool device(kHost, 16 << 20, &source);
  PoolHandle pool = open(device, 1);
  const core::Ref<Storage> storage = pool->allocate_shared(kLargestSmall, 1);
  EXPECT_EQ(pool->share(*storage), -1);
  CountingSource closed;
  closed.unit = 0;
  DevicePool elsewhere({core::DeviceKind::kSim, 0}, 16 << 20, &closed);
  PoolHandle sim = open(elsewhere, 1);
  const core::Ref<Storage> there = sim->allocate_shared(4 << 20, 1);
  EXPECT_EQ(sim->share(*there), -1);
  EXPECT_FALSE(sim->allocate_open(4096, 1));
}

}  // namespace
}  // namespace teletensor::memory
