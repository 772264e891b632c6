#include "engine/core/memory/reserve.h"

#include <gtest/gtest.h>

#include <new>
#include <thread>

#include "engine/core/with_memory.h"

namespace teletensor::core {
namespace {

class Reserve : public ::testing::Test {
 protected:
  Reserve() { keep_reserve(); }
  ~Reserve() override { std::set_new_handler(nullptr); }

  // What operator new does when the system has no memory.
  static void fail_an_allocation() { std::get_new_handler()(); }

  const std::size_t all_ = (refill_reserve(), reserve_left());
};

TEST_F(Reserve, AFailedAllocationUsesItUntilItIsRefilled) {
  fail_an_allocation();
  EXPECT_LT(reserve_left(), all_);
  EXPECT_GT(reserve_left(), 0u);
  refill_reserve();
  EXPECT_EQ(reserve_left(), all_);
}

TEST_F(Reserve, AnAllocationFailsWhenNothingIsLeft) {
  while (reserve_left() > 0) fail_an_allocation();
  EXPECT_THROW(fail_an_allocation(), std::bad_alloc);
  refill_reserve();
  EXPECT_EQ(reserve_left(), all_);
}

TEST_F(Reserve, ARequestMayNotUseIt) {
  const Status status = with_memory("a test", [] {
    fail_an_allocation();
    return Status();
  });
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_EQ(status.message(), "the daemon is out of memory for a test");
  EXPECT_EQ(reserve_left(), all_);
}

TEST_F(Reserve, WhatEndsARequestMayUseIt) {
  const Status status = with_memory("a test", [] {
    const UsesReserve reserve;
    fail_an_allocation();
    return Status();
  });
  EXPECT_TRUE(status.ok());
  EXPECT_LT(reserve_left(), all_);
}

TEST_F(Reserve, APermissionEndsWithItsObjectAndConcernsOneThread) {
  const UsesReserve forbidden(false);
  {
    const UsesReserve permitted;
    EXPECT_NO_THROW(fail_an_allocation());
  }
  EXPECT_THROW(fail_an_allocation(), std::bad_alloc);
  std::thread([] { EXPECT_NO_THROW(fail_an_allocation()); }).join();
}

}  // namespace
}  // namespace teletensor::core
