// Tests properties of Alarm that hold on a busy machine: an alarm is never early.
#include "clients/session/stream/alarm.h"

#include <gtest/gtest.h>

#include <thread>

namespace teletensor::client {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

TEST(Alarm, AnEarlierTimeTakesThePlaceOfALaterOne) {
  Alarm alarm;
  alarm.set(std::chrono::hours(1));
  std::thread other([&] { alarm.set(milliseconds(1)); });
  alarm.wait();
  other.join();
}

TEST(Alarm, ALaterTimeTakesThePlaceOfAnEarlierOne) {
  Alarm alarm;
  const Clock::time_point began = Clock::now();
  alarm.set(milliseconds(50));
  alarm.set(milliseconds(100));
  alarm.wait();
  EXPECT_GE(Clock::now() - began, milliseconds(100));
}

TEST(Alarm, WhatHasGoneOffUnseenCanBeMovedAsWell) {
  Alarm alarm;
  alarm.set(milliseconds(1));
  std::this_thread::sleep_for(milliseconds(10));
  const Clock::time_point began = Clock::now();
  alarm.set(milliseconds(50));
  alarm.wait();
  EXPECT_GE(Clock::now() - began, milliseconds(50));
}

}  // namespace
}  // namespace teletensor::client
