// Tests Gpu with the fake driver, whose streams run late, whose memory the host cannot access, and
// whose devices can fail.
#include "engine/backends/cuda/device/gpu.h"

#ifdef TT_FAKE_CUDA_LIBRARY

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>

#include "engine/memory/on_behalf.h"

namespace teletensor::backends::cuda {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A device that has failed stays lost, so each test of a failure has its own device.
enum Ordinal {
  kSound = 0,
  kOther = 1,
  kSticky = 2,
  kLost = 3,
  kHung = 4,
  kFull = 5,
  kIdle = 6,
  kGone = 7
};

std::string control_path() {
  return (std::filesystem::temp_directory_path() / ("fake-" + std::to_string(getpid()))).string();
}

// Set before any test loads the library, which reads the variable once.
[[maybe_unused]] const int kEnvironment =
    setenv("TT_FAKE_CUDA", ("devices=8,memory=64,pace=5,control=" + control_path()).c_str(), 1);

const Driver& driver() {
  static const Driver loaded = [] {
    Driver made;
    EXPECT_EQ(load_driver(TT_FAKE_CUDA_LIBRARY, &made).message(), "");
    return made;
  }();
  return loaded;
}

void happens(const std::string& what) {
  std::ofstream(control_path() + ".part") << what << "\n";
  std::filesystem::rename(control_path() + ".part", control_path());
}

struct Opened {
  explicit Opened(int ordinal, double patience = 60) {
    auto made = Gpu::open(driver(), ordinal, "cuda:" + std::to_string(ordinal),
                          {patience, [this](bool bad, const std::string& line) {
                             core::MutexLock lock(mu);
                             told += (bad ? "bad: " : "") + line;
                           }});
    EXPECT_EQ(made.status().message(), "");
    gpu = std::move(*made);
  }
  std::string log() {
    core::MutexLock lock(mu);
    return told;
  }
  core::Mutex mu;
  std::string told;
  std::unique_ptr<Gpu> gpu;
};

std::vector<int> numbers(std::size_t count, int first = 0) {
  std::vector<int> made(count);
  std::iota(made.begin(), made.end(), first);
  return made;
}

std::vector<int> read(Gpu& gpu, const void* memory, std::size_t count) {
  std::vector<int> made(count, -1);
  EXPECT_EQ(gpu.device_to_host().copy(made.data(), memory, 4 * count).message(), "");
  return made;
}

bool eventually(const std::function<bool()>& true_) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(240);
  while (!true_()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

TEST(Gpu, KnowsItself) {
  Opened device(kSound);
  EXPECT_EQ(device.gpu->facts().model, "Fake GPU");
  EXPECT_EQ(device.gpu->facts().capability, 90);
  EXPECT_EQ(device.gpu->facts().free_at_start, 64u << 20);
  EXPECT_TRUE(device.gpu->health().ok());
}

TEST(Gpu, FreshMemoryIsZeroAndNotTheHosts) {
  Opened device(kSound);
  void* memory = device.gpu->allocate(4000);
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(read(*device.gpu, memory, 1000), std::vector<int>(1000, 0));
  EXPECT_DEATH((void)*static_cast<volatile int*>(memory), "");
  device.gpu->free(memory);
}

TEST(Gpu, CopiesOfAllSizesThroughTheSlots) {
  Opened device(kSound);
  for (const std::size_t count : {std::size_t{1}, std::size_t{100}, std::size_t{1} << 18,
                                  (std::size_t{1} << 18) + 1, (std::size_t{3} << 20) + 17}) {
    void* memory = device.gpu->allocate(4 * count);
    ASSERT_NE(memory, nullptr);
    std::vector<int> source = numbers(count, 7);
    ASSERT_TRUE(device.gpu->host_to_device().copy(memory, source.data(), 4 * count).ok());
    source.assign(count, 0);  // the host memory may be changed now
    EXPECT_EQ(read(*device.gpu, memory, count), numbers(count, 7));
    device.gpu->free(memory);
  }
}

TEST(Gpu, LockedMemoryIsCopiedStraight) {
  Opened device(kSound);
  Gpu& gpu = *device.gpu;
  const auto go_on = [] { return true; };
  const std::size_t count = (std::size_t{9} << 20) + 17, bytes = 4 * count;  // two parts
  std::vector<int> host = numbers(count, 7);
  void* memory = gpu.allocate(bytes);
  ASSERT_NE(memory, nullptr);
  ASSERT_TRUE(gpu.lock(host.data(), bytes));
  EXPECT_FALSE(gpu.lock(host.data(), bytes));  // it is already locked
  ASSERT_TRUE(gpu.host_to_device().copy_locked(memory, host.data(), bytes, go_on).ok());
  std::fill(host.begin(), host.end(), 0);  // the copy must have read everything
  ASSERT_TRUE(gpu.device_to_host().copy_locked(host.data(), memory, bytes, go_on).ok());
  EXPECT_EQ(host, numbers(count, 7));
  for (int i = 0; i < 20; ++i) {  // the copy runs after all work queued before
    const std::vector<int> some(1000, i);
    ASSERT_TRUE(gpu.host_to_device().copy(memory, some.data(), 4000).ok());
    ASSERT_TRUE(gpu.device_to_host().copy_locked(host.data(), memory, 4000, go_on).ok());
    EXPECT_EQ(std::vector<int>(host.begin(), host.begin() + 1000), some);
  }
  EXPECT_TRUE(gpu.unlock(host.data()));
  EXPECT_FALSE(gpu.unlock(host.data()));
  // The memory is no longer locked, so the fake driver refuses it.
  EXPECT_EQ(gpu.device_to_host().copy_locked(host.data(), memory, bytes, go_on).code(),
            core::Code::kInternal);
  EXPECT_TRUE(gpu.health().ok());
  gpu.free(memory);
}

TEST(Gpu, ACopyThatIsNotWantedAnyMoreHasEndedOnReturn) {
  Opened device(kSound);
  Gpu& gpu = *device.gpu;
  const std::size_t count = std::size_t{9} << 20, bytes = 4 * count;
  std::vector<int> host = numbers(count);
  void* memory = gpu.allocate(bytes);
  ASSERT_TRUE(gpu.lock(host.data(), bytes));
  for (const bool out : {true, false}) {
    int asked = 0;
    const auto once = [&] { return ++asked < 2; };
    EXPECT_EQ((out ? gpu.device_to_host().copy_locked(host.data(), memory, bytes, once)
                   : gpu.host_to_device().copy_locked(memory, host.data(), bytes, once))
                  .code(),
              core::Code::kCancelled);
    EXPECT_EQ(asked, 2);
    // A cancelled copy neither writes to nor reads from the host memory after it has returned.
    std::fill(host.begin(), host.end(), out ? 5 : 6);
    ASSERT_TRUE(gpu.synchronize().ok());
    EXPECT_EQ(host, std::vector<int>(count, out ? 5 : 6));
    EXPECT_EQ(read(gpu, memory, 1)[0], out ? 0 : 5);
  }
  EXPECT_TRUE(gpu.unlock(host.data()));
  EXPECT_TRUE(gpu.health().ok());
  gpu.free(memory);
}

TEST(Gpu, WhatIsAskedRunsInItsOrder) {
  Opened device(kSound);
  char* a = static_cast<char*>(device.gpu->allocate(4000));
  char* b = static_cast<char*>(device.gpu->allocate(4000));
  std::vector<int> host_a(1000, 0), host_b(1000, 0);
  std::mt19937 random(3);
  for (int i = 0; i < 400; ++i) {
    const std::size_t at = random() % 900, n = 1 + random() % 100;
    switch (random() % 3) {
      case 0: {
        const std::vector<int> some(n, i);
        ASSERT_TRUE(device.gpu->host_to_device().copy(a + 4 * at, some.data(), 4 * n).ok());
        std::fill_n(host_a.begin() + static_cast<long>(at), n, i);
        break;
      }
      case 1:
        ASSERT_TRUE(device.gpu->copy(b + 4 * at, a + 4 * at, 4 * n).ok());
        std::copy_n(host_a.begin() + static_cast<long>(at), n,
                    host_b.begin() + static_cast<long>(at));
        break;
      default:
        ASSERT_TRUE(device.gpu->zero(b + 4 * at, 4 * n).ok());
        std::fill_n(host_b.begin() + static_cast<long>(at), n, 0);
    }
  }
  EXPECT_EQ(read(*device.gpu, a, 1000), host_a);
  EXPECT_EQ(read(*device.gpu, b, 1000), host_b);
  device.gpu->free(a), device.gpu->free(b);
}

TEST(Gpu, ManyThreadsShareIt) {
  Opened device(kSound);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        const std::size_t count = 1000u * static_cast<unsigned>(t + 1);
        void* memory = device.gpu->allocate(4 * count);
        const std::vector<int> source = numbers(count, 1000 * t + i);
        EXPECT_TRUE(device.gpu->host_to_device().copy(memory, source.data(), 4 * count).ok());
        EXPECT_EQ(read(*device.gpu, memory, count), source);
        device.gpu->free(memory);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Gpu, CopiesFromAnotherDeviceWaitForItAndHoldItUp) {
  Opened one(kSound), two(kOther);
  void* from = one.gpu->allocate(4000);
  void* to = two.gpu->allocate(4000);
  for (int i = 0; i < 30; ++i) {
    const std::vector<int> source = numbers(1000, i);
    ASSERT_TRUE(one.gpu->host_to_device().copy(from, source.data(), 4000).ok());
    ASSERT_TRUE(two.gpu->copy_from(*one.gpu, to, from, 4000).ok());
    // Runs after the copy, in whatever order the streams run.
    ASSERT_TRUE(one.gpu->zero(from, 4000).ok());
    EXPECT_EQ(read(*two.gpu, to, 1000), source) << i;
  }
  one.gpu->free(from), two.gpu->free(to);
}

using memory::OnBehalf;

// Two sessions use memory in turn: each handover clears it after the earlier session's work and
// before the later session's work.
TEST(Gpu, SessionsRunBesideEachOtherAndWaitWhereMemoryIsHandedOver) {
  Opened device(kSound);
  Gpu& gpu = *device.gpu;
  void* memory = gpu.allocate(4000);
  for (int i = 0; i < 60; ++i) {
    const memory::OwnerId one = 1 + static_cast<unsigned>(i) % 2, two = 3 - one;
    void* private_copy = gpu.allocate(4000);
    const std::vector<int> source = numbers(1000, 1000 * i + 1);
    {
      const OnBehalf behalf(one);
      ASSERT_TRUE(gpu.host_to_device().copy(memory, source.data(), 4000).ok());
      ASSERT_TRUE(gpu.copy(private_copy, memory, 4000).ok());
    }
    ASSERT_TRUE(gpu.transfer_ownership(memory, 4000, one, two).ok());
    {
      const OnBehalf behalf(two);
      EXPECT_EQ(read(gpu, memory, 1000), std::vector<int>(1000, 0)) << i;
    }
    {
      const OnBehalf behalf(one);  // the copy was read before the memory was cleared
      EXPECT_EQ(read(gpu, private_copy, 1000), source) << i;
    }
    gpu.free(private_copy);
  }
  gpu.free(memory);
  gpu.end(1), gpu.end(2);
}

TEST(Gpu, SharedMemoryIsOrderedAmongAll) {
  Opened device(kSound);
  Gpu& gpu = *device.gpu;
  void* memory = gpu.allocate(4);
  for (int i = 1; i < 100; ++i) {
    const OnBehalf behalf(static_cast<unsigned>(i) % 5 + 1);
    ASSERT_TRUE(gpu.follow_all().ok());
    int before = -1;
    if (i % 7 == 0) {
      ASSERT_TRUE(gpu.device_to_host().copy(&before, memory, 4).ok());
      EXPECT_EQ(before, i - 1);
    }
    ASSERT_TRUE(gpu.host_to_device().copy(memory, &i, 4).ok());
    ASSERT_TRUE(gpu.make_all_follow().ok());
  }
  gpu.free(memory);
}

TEST(Gpu, AnEndedSessionsWorkIsWaitedFor) {
  Opened device(kSound);
  Gpu& gpu = *device.gpu;
  for (unsigned i = 1; i < 40; ++i) {
    void* memory = gpu.allocate(4000);
    const std::vector<int> source = numbers(1000, 7);
    {
      const OnBehalf behalf(i);
      ASSERT_TRUE(gpu.host_to_device().copy(memory, source.data(), 4000).ok());
    }
    gpu.end(i);
    ASSERT_TRUE(gpu.transfer_ownership(memory, 2000, i, i + 1000).ok());
    const OnBehalf behalf(i + 1000);
    std::vector<int> wanted = source;
    std::fill_n(wanted.begin(), 500, 0);
    EXPECT_EQ(read(gpu, memory, 1000), wanted) << i;
    gpu.free(memory);
    gpu.end(i + 1000);
  }
}

TEST(Gpu, UploadsRunBesideAndWhatComesLaterWaitsForThem) {
  Opened device(kSound);
  Gpu& gpu = *device.gpu;
  constexpr std::size_t kCount = (std::size_t{3} << 18) + 5;  // more than one slot
  char* block = static_cast<char*>(gpu.allocate(4 * kCount));
  void* copy = gpu.allocate(4 * kCount);
  for (int i = 0; i < 20; ++i) {
    const std::vector<int> source = numbers(kCount, i);
    {
      const OnBehalf behalf(1);
      ASSERT_TRUE(gpu.zero(block, 4 * kCount).ok());  // an earlier use of the memory
    }
    ASSERT_TRUE(gpu.begin_beside(1).ok());
    {
      const OnBehalf behalf(1, true);
      ASSERT_TRUE(gpu.host_to_device().copy(block, source.data(), 4000).ok());
      ASSERT_TRUE(
          gpu.host_to_device().copy(block + 4000, source.data() + 1000, 4 * kCount - 4000).ok());
    }
    const OnBehalf behalf(1);
    ASSERT_TRUE(gpu.copy(copy, block, 4 * kCount).ok());
    EXPECT_EQ(read(gpu, copy, kCount), source) << i;
  }
  gpu.free(block), gpu.free(copy);
}

// Copies of idle storages to the host (design 0014): no event may make the work of other sessions,
// or later work of the same session, wait for them. Copies that are held back would show such an
// event; all other work runs in any legal order.
TEST(Gpu, WhatMovesToTheHostHoldsUpNobody) {
  Opened device(kSound);
  Gpu& gpu = *device.gpu;
  constexpr std::size_t kCount =
      (std::size_t{5} << 17) + 3;  // several halves of the page-locked slots
  for (int round = 0; round < 8; ++round) {
    void* idle = gpu.allocate(4 * kCount);
    const std::vector<int> source = numbers(kCount, round);
    {
      const OnBehalf behalf(1);
      ASSERT_TRUE(gpu.host_to_device().copy(idle, source.data(), 4 * kCount).ok());
      ASSERT_TRUE(gpu.synchronize().ok());
    }
    happens("hold 0");
    std::vector<int> moved(kCount);
    std::atomic<bool> there{false};
    std::thread mover([&] {
      const OnBehalf behalf(1);
      EXPECT_TRUE(gpu.device_to_host().copy(moved.data(), idle, 4 * kCount).ok());
      there = true;
    });
    for (const memory::OwnerId busy : {2, 3, 1}) {
      const OnBehalf behalf(busy);
      void* a = gpu.allocate(4000);
      void* b = gpu.allocate(4000);
      for (int i = 0; i < 30; ++i) {
        const std::vector<int> some = numbers(1000, 100 * round + i);
        ASSERT_TRUE(gpu.host_to_device().copy(a, some.data(), 4000).ok());
        ASSERT_TRUE(gpu.copy(b, a, 4000).ok());
        ASSERT_TRUE(gpu.zero(a, 4000).ok());
        ASSERT_EQ(read(gpu, b, 1000), some);
      }
      gpu.free(a), gpu.free(b);
    }
    EXPECT_FALSE(there);
    happens("release 0");
    mover.join();
    EXPECT_EQ(moved, source) << round;
    gpu.free(idle);
  }
  for (const memory::OwnerId each : {1, 2, 3}) gpu.end(each);
}

// However much a session queues, a bounded number of batches is in flight at once, and the reported
// time covers all of them.
TEST(Gpu, WhatASessionHasInFlightIsBounded) {
  Opened device(kSound);
  Gpu& gpu = *device.gpu;
  void* a = gpu.allocate(4000);
  void* b = gpu.allocate(4000);
  const OnBehalf behalf(1);
  for (int i = 0; i < 3000; ++i) {
    ASSERT_TRUE(gpu.copy(a, b, 4000).ok());
    ASSERT_LE(gpu.queues().in_flight(), Queues::kMaxOpen + 1);
  }
  (void)gpu.take_time(1);
  ASSERT_TRUE(gpu.synchronize().ok());
  (void)gpu.take_time(1);
  EXPECT_EQ(gpu.queues().in_flight(), 0u);
  EXPECT_GT(gpu.queues().device_ns(), 0u);
  EXPECT_EQ(gpu.take_time(1).device_ns, 0u);  // each time is reported only once
  gpu.free(a), gpu.free(b);
}

TEST(Gpu, OutOfMemoryIsNoLoss) {
  Opened device(kFull);
  void* half = device.gpu->allocate(32u << 20);
  ASSERT_NE(half, nullptr);
  EXPECT_EQ(device.gpu->allocate(40u << 20), nullptr);
  device.gpu->free(half);
  // The memory was freed in stream order, so there is room when the stream has reached that point.
  ASSERT_TRUE(device.gpu->synchronize().ok());
  void* most = device.gpu->allocate(40u << 20);
  EXPECT_NE(most, nullptr);
  happens("full 5");
  EXPECT_EQ(device.gpu->allocate(16), nullptr);
  EXPECT_TRUE(device.gpu->health().ok());
  EXPECT_EQ(device.log(), "");
}

TEST(Gpu, OpenMemoryIsOfWholeUnitsClearAndGivenBack) {
  Opened device(kOther);
  Gpu& gpu = *device.gpu;
  const std::size_t unit = gpu.mappable().unit();
  ASSERT_EQ(unit, 2u << 20);
  const auto use = [&] {
    std::size_t free = 0, total = 0;
    EXPECT_EQ(driver().cuMemGetInfo(&free, &total), kSuccess);
    return total - free;
  };
  void* source = gpu.allocate(4000);
  const std::vector<int> wanted = numbers(1000);
  ASSERT_TRUE(gpu.host_to_device().copy(source, wanted.data(), 4000).ok());
  ASSERT_TRUE(gpu.synchronize().ok());
  const std::size_t before = use();
  for (int round = 0; round < 3; ++round) {
    void* memory = nullptr;
    const int descriptor = gpu.mappable().allocate(2 * unit, &memory);
    ASSERT_GE(descriptor, 0);
    EXPECT_EQ(use(), before + 2 * unit);
    EXPECT_EQ(read(gpu, memory, unit / 2), std::vector<int>(unit / 2));
    ASSERT_TRUE(gpu.copy_now(memory, source, 4000).ok());
    // No further wait is needed: the bytes are there.
    std::vector<int> there(1000);
    ASSERT_EQ(pread(descriptor, there.data(), 4000, 0), 4000);  // for the fake driver it is a file
    EXPECT_EQ(there, wanted);
    gpu.mappable().withdraw(descriptor, memory, 2 * unit);
    EXPECT_EQ(use(), before);
  }
  void* none = nullptr;
  EXPECT_EQ(gpu.mappable().allocate(64u << 20, &none), -1);  // more memory than the device has
  gpu.free(source);
  EXPECT_TRUE(gpu.health().ok());
}

TEST(Gpu, AnErrorThatEndsTheContextIsForGood) {
  Opened device(kSticky);
  void* memory = device.gpu->allocate(4000);
  ASSERT_TRUE(device.gpu->synchronize().ok());
  happens("sticky 2");
  (void)device.gpu->zero(memory, 4000);
  int one = 0;
  const core::Status status = device.gpu->device_to_host().copy(&one, memory, 4);
  EXPECT_EQ(status.code(), core::Code::kUnknown);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("DEVICE_LOST: cuda:2 (Fake GPU)"),
                                      HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS (700)")));
  EXPECT_EQ(device.gpu->health().message(), status.message());
  EXPECT_EQ(device.gpu->allocate(16), nullptr);
  EXPECT_EQ(device.gpu->zero(memory, 4).message(), status.message());
  EXPECT_EQ(device.gpu->synchronize().message(), status.message());
  EXPECT_EQ(device.log(), "bad: " + status.message());  // logged only once
}

TEST(Gpu, WhatALostDeviceHasLockedIsTheHosts) {
  Opened device(kGone);
  Gpu& gpu = *device.gpu;
  const auto go_on = [] { return true; };
  std::vector<int> kept = numbers(1000), other(1000);
  void* memory = gpu.allocate(4000);
  ASSERT_TRUE(gpu.lock(kept.data(), 4000) && gpu.lock(other.data(), 4000));
  happens("sticky 7");
  EXPECT_THAT(gpu.device_to_host().copy_locked(other.data(), memory, 4000, go_on).message(),
              HasSubstr("DEVICE_LOST: cuda:7"));
  EXPECT_THAT(gpu.host_to_device().copy_locked(memory, kept.data(), 4000, go_on).message(),
              HasSubstr("DEVICE_LOST: cuda:7"));
  EXPECT_FALSE(gpu.unlock(kept.data()));
  std::vector<int> more(1000);
  EXPECT_FALSE(gpu.lock(more.data(), 4000));
  EXPECT_EQ(kept, numbers(1000));
}

TEST(Gpu, ALossIsNoticedWhereNobodyWaits) {
  Opened device(kLost, 2);
  void* memory = device.gpu->allocate(4000);
  happens("lost 3");
  (void)device.gpu->zero(memory, 4000);
  EXPECT_TRUE(eventually([&] { return !device.gpu->health().ok(); }));
  EXPECT_THAT(device.gpu->health().message(), HasSubstr("CUDA_ERROR_UNKNOWN (999)"));
}

TEST(Gpu, AHangEndsWithPatience) {
  Opened device(kHung, 3);
  void* memory = device.gpu->allocate(4000);
  ASSERT_TRUE(device.gpu->synchronize().ok());
  happens("hang 4");
  int one = 0;
  const core::Status status = device.gpu->device_to_host().copy(&one, memory, 4);
  EXPECT_EQ(status.code(), core::Code::kUnknown);
  EXPECT_THAT(status.message(), HasSubstr("it has made no progress for 3 seconds"));
}

TEST(Gpu, AnIdleDeviceIsNotLost) {
  Opened device(kIdle, 2);
  void* memory = device.gpu->allocate(4000);
  const std::vector<int> source = numbers(1000);
  ASSERT_TRUE(device.gpu->host_to_device().copy(memory, source.data(), 4000).ok());
  EXPECT_EQ(read(*device.gpu, memory, 1000), source);
  std::this_thread::sleep_for(std::chrono::milliseconds(2300));
  EXPECT_TRUE(device.gpu->health().ok());
  EXPECT_EQ(read(*device.gpu, memory, 1000), source);
}

}  // namespace
}  // namespace teletensor::backends::cuda

#endif
