// Tests Graphs with the fake driver. It runs the nodes of a graph late and with their parameters at
// launch, and it refuses destroyed graphs and graphs with nodes of another graph.
#include "engine/backends/cuda/device/graphs.h"

#ifdef TT_FAKE_CUDA_LIBRARY

#include <gtest/gtest.h>
#include <stdlib.h>

#include <random>

#include "engine/backends/cuda/device/gpu.h"
#include "engine/memory/on_behalf.h"

namespace teletensor::backends::cuda {
namespace {

using memory::OnBehalf;

constexpr memory::OwnerId kMe = 1, kOther = 2;

class GraphsOfASession : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(load_driver(TT_FAKE_CUDA_LIBRARY, &driver_).message(), "");
    auto made = Gpu::open(driver_, 0, "cuda:0", {});
    ASSERT_EQ(made.status().message(), "");
    gpu_ = std::move(*made);
    for (char*& block : blocks_) {
      block = static_cast<char*>(gpu_->allocate(kBytes));
      ASSERT_NE(block, nullptr);
    }
  }
  void TearDown() override {
    gpu_->end(kMe);
    for (char* block : blocks_) gpu_->free(block);
  }

  static constexpr std::size_t kCells = 12, kCell = 16, kBytes = kCells * kCell;

  // Runs a program of copies between the cells of a block and applies the same copies to `host`.
  // The same seed gives the same program.
  void call(unsigned seed, int tasks, char* block, std::vector<int>& host) {
    const OnBehalf behalf(kMe);
    std::mt19937 random(seed);
    ASSERT_TRUE(gpu_->gather(kMe, true).ok());
    for (int i = 0; i < tasks; ++i) {
      const std::size_t from = random() % kCells, to = random() % kCells;
      if (from == to) {
        ASSERT_TRUE(gpu_->zero(block + to * kCell, kCell).ok());
        host[to] = 0;
      } else {
        ASSERT_TRUE(gpu_->copy(block + to * kCell, block + from * kCell, kCell).ok());
        host[to] = host[from];
      }
    }
    ASSERT_TRUE(gpu_->gather(kMe, false).ok());
  }
  void fill(char* block, std::vector<int>& host, int first) {
    const OnBehalf behalf(kMe);
    host.resize(kCells);
    std::vector<int> bytes(kBytes / 4);
    for (std::size_t i = 0; i < kCells; ++i) {
      host[i] = first + static_cast<int>(i);
      bytes[i * kCell / 4] = host[i];
    }
    ASSERT_TRUE(gpu_->host_to_device().copy(block, bytes.data(), kBytes).ok());
  }
  std::vector<int> cells(const char* block, memory::OwnerId who = kMe) {
    const OnBehalf behalf(who);
    std::vector<int> bytes(kBytes / 4), found(kCells);
    EXPECT_EQ(gpu_->device_to_host().copy(bytes.data(), block, kBytes).message(), "");
    for (std::size_t i = 0; i < kCells; ++i) found[i] = bytes[i * kCell / 4];
    return found;
  }
  std::uint64_t graphs() const { return gpu_->queues().graphs(); }

  Driver driver_;
  std::unique_ptr<Gpu> gpu_;
  char* blocks_[Graphs::kVariants + 3] = {};
};

TEST_F(GraphsOfASession, WhatComesAgainIsAGraph) {
  std::vector<int> host;
  fill(blocks_[0], host, 100);
  for (int i = 1; i <= 6; ++i) {
    call(7, 20, blocks_[0], host);
    EXPECT_EQ(graphs(), i < Graphs::kSightings ? 0u : static_cast<unsigned>(i - 2)) << i;
    if (i % 2 == 0) {
      EXPECT_EQ(cells(blocks_[0]), host);
    }
  }
}

// The memory of a call may have another address each time; here there are more addresses than
// variants that are kept.
TEST_F(GraphsOfASession, OtherAddresses) {
  std::vector<std::vector<int>> host(std::size(blocks_));
  for (std::size_t b = 0; b < std::size(blocks_); ++b) fill(blocks_[b], host[b], 1000 * (int)b);
  std::mt19937 random(5);
  int calls = 0;
  for (int i = 0; i < 60; ++i) {
    const std::size_t b = random() % std::size(blocks_);
    call(11, 24, blocks_[b], host[b]);
    ++calls;
    if (random() % 4 == 0) {
      EXPECT_EQ(cells(blocks_[b]), host[b]) << i;
    }
  }
  for (std::size_t b = 0; b < std::size(blocks_); ++b) EXPECT_EQ(cells(blocks_[b]), host[b]) << b;
  EXPECT_EQ(graphs(), static_cast<unsigned>(calls - Graphs::kSightings + 1));
}

// Many programs of all lengths, where long ones become several graphs, mixed with work that is
// queued directly.
TEST_F(GraphsOfASession, AnyMixtureHasTheBitsOfOneByOne) {
  std::vector<int> host;
  fill(blocks_[0], host, 1);
  std::mt19937 random(17);
  for (int i = 0; i < 150; ++i) {
    const unsigned program = random() % 9;
    call(program, 3 + 9 * static_cast<int>(program), blocks_[0], host);
    if (i % 5 == 0) {
      EXPECT_EQ(cells(blocks_[0]), host) << i;
    }
    if (i % 50 == 49) fill(blocks_[0], host, i);
  }
  EXPECT_EQ(cells(blocks_[0]), host);
  EXPECT_GT(graphs(), 100u);
}

// Gathered work is sent before any operation that depends on it: another session gets the memory,
// uploads run beside, a session waits for all, memory is freed to the driver.
TEST_F(GraphsOfASession, WhatIsGatheredIsNotOvertaken) {
  const OnBehalf behalf(kMe);
  for (int i = 0; i < 20; ++i) {
    std::vector<int> host, none(kCells, 0);
    fill(blocks_[0], host, 50 + i);
    void* passing = gpu_->allocate(kBytes);
    ASSERT_TRUE(gpu_->gather(kMe, true).ok());
    ASSERT_TRUE(gpu_->copy(passing, blocks_[0], kBytes).ok());
    ASSERT_TRUE(gpu_->copy(blocks_[1], passing, kBytes).ok());
    // Gathered tasks read both blocks.
    ASSERT_TRUE(gpu_->transfer_ownership(blocks_[0], kBytes, kMe, kOther).ok());
    gpu_->free(passing);
    EXPECT_EQ(cells(blocks_[0], kOther), none);
    EXPECT_EQ(cells(blocks_[1]), host);

    ASSERT_TRUE(gpu_->copy(blocks_[2], blocks_[1], kBytes).ok());
    {
      const OnBehalf other(kOther);
      ASSERT_TRUE(gpu_->follow_all().ok());
      EXPECT_EQ(cells(blocks_[2], kOther), host);
    }
    ASSERT_TRUE(gpu_->zero(blocks_[2], kBytes).ok());
    ASSERT_TRUE(gpu_->begin_beside(kMe).ok());
    {
      const OnBehalf beside(kMe, true);
      ASSERT_TRUE(gpu_->host_to_device().copy(blocks_[2], &i, 4).ok());
    }
    ASSERT_TRUE(gpu_->copy(blocks_[3], blocks_[2], kBytes).ok());
    none[0] = i;
    EXPECT_EQ(cells(blocks_[3]), none);
    ASSERT_TRUE(gpu_->gather(kMe, false).ok());
  }
  gpu_->end(kOther);
}

TEST_F(GraphsOfASession, ASessionThatEndsLeavesNothingGathered) {
  std::vector<int> host;
  fill(blocks_[0], host, 9);
  {
    const OnBehalf behalf(kMe);
    ASSERT_TRUE(gpu_->gather(kMe, true).ok());
    ASSERT_TRUE(gpu_->copy(blocks_[1], blocks_[0], kBytes).ok());
  }
  gpu_->end(kMe);
  ASSERT_TRUE(gpu_->transfer_ownership(blocks_[0], kBytes, kMe, kOther).ok());
  EXPECT_EQ(cells(blocks_[1], kOther), host);
  gpu_->end(kOther);
}

// With graphs, no more batches are in flight than without, and their time is counted.
TEST_F(GraphsOfASession, TheirTimeIsCounted) {
  std::vector<int> host;
  fill(blocks_[0], host, 9);
  const std::uint64_t before = gpu_->queues().device_ns();
  for (int i = 0; i < 200; ++i) {
    call(3, 60, blocks_[0], host);
    ASSERT_LE(gpu_->queues().in_flight(), Queues::kMaxOpen + 1);
  }
  EXPECT_EQ(cells(blocks_[0]), host);
  (void)gpu_->take_time(kMe);
  ASSERT_TRUE(gpu_->synchronize().ok());
  (void)gpu_->take_time(kMe);
  EXPECT_EQ(gpu_->queues().in_flight(), 0u);
  EXPECT_GE(gpu_->queues().device_ns() - before, 200u * 60 * 5000);  // by the fake driver's clock
  EXPECT_GT(graphs(), 300u);
}

// A library that refuses to start a product.
struct Refusing final : Library {
  int start(const LibraryCall&, Stream) override { return 14; }
};

TEST(Graphs, WhatDoesNotStartLaterIsALoss) {
  Driver driver;
  ASSERT_EQ(load_driver(TT_FAKE_CUDA_LIBRARY, &driver).message(), "");
  auto gpu = Gpu::open(driver, 0, "cuda:0", {});
  ASSERT_EQ(gpu.status().message(), "");
  Refusing library;
  int code = 0;
  const OnBehalf behalf(kMe);
  ASSERT_TRUE((*gpu)->launch(library, Product(), false, &code).ok());
  EXPECT_EQ(code, 14);  // a direct call reports the library's error
  EXPECT_TRUE((*gpu)->health().ok());
  ASSERT_TRUE((*gpu)->gather(kMe, true).ok());
  ASSERT_TRUE((*gpu)->launch(library, Product(), true, &code).ok());
  EXPECT_EQ(code, 0);
  EXPECT_FALSE((*gpu)->gather(kMe, false).ok());
  EXPECT_NE((*gpu)->health().message().find("a library's call failed with 14"), std::string::npos);
}

TEST(Graphs, ListsAreAlikeByWhatTheyAre) {
  Task one, two;
  one.to = 64, one.bytes = 16;
  two.to = 128, two.bytes = 32;
  TaskList a, b;
  a.add(one), b.add(two);
  EXPECT_EQ(a.structure(), b.structure());
  EXPECT_FALSE(a == b);
  two.from = 256;
  b.clear();
  b.add(two);
  EXPECT_NE(a.structure(), b.structure());
  b.clear();
  b.add(one);
  EXPECT_TRUE(a == b);
  a.add(one), a.add(two);
  b.add(two), b.add(one);
  EXPECT_NE(a.structure(), b.structure());
}

}  // namespace
}  // namespace teletensor::backends::cuda

#endif
