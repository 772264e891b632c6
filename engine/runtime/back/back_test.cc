#include "engine/runtime/back/back.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "engine/runtime/kit_test.h"

namespace teletensor::runtime {
namespace {

using namespace testing;  // for the helpers of kit_test.h
using program::ValueRef;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Recorder : BackEvents {
  void on_completed(std::uint64_t seq) override {
    EXPECT_GT(seq, completed.exchange(seq));
    ++reports;
  }
  void on_fetched(FetchResult result) override {
    core::MutexLock lock(mu);
    fetched.push_back(std::move(result));
  }
  void on_failed(const program::Failure& root) override {
    core::MutexLock lock(mu);
    failed.push_back(root.seq);
  }
  void on_continue() override { ++continued; }
  void on_slow(std::uint64_t seq, program::OpId, std::uint64_t ns) override {
    EXPECT_GE(ns, Back::kSlow);
    core::MutexLock lock(mu);
    slow.push_back(seq);
  }
  void wait_for(std::uint64_t seq) const {
    while (completed < seq) std::this_thread::yield();
  }
  std::atomic<std::uint64_t> completed{0};
  std::atomic<int> reports{0}, continued{0};
  core::Mutex mu;
  std::vector<FetchResult> fetched TT_GUARDED_BY(mu);
  std::vector<std::uint64_t> failed TT_GUARDED_BY(mu);
  std::vector<std::uint64_t> slow TT_GUARDED_BY(mu);
};

// A back end whose test thread is the frame consumer.
struct Client {
  Client(Box& box, Lanes& lanes, memory::OwnerId owner)
      : box(box), back(kit_catalog(), box.devices, lanes, owner, 0, &events) {}

  ValueRef constant(std::vector<float> elements) {
    ValueRef value = value_of({static_cast<std::int64_t>(elements.size())});
    back.queue().constant(++seq, {static_cast<std::int64_t>(elements.size())},
                          std::string(reinterpret_cast<const char*>(elements.data()),
                                      elements.size() * sizeof(float)),
                          value);
    return value;
  }
  // x = op(x); the name x is rebound before the instruction is queued, as the front end does it.
  void inplace(ValueRef& x, const char* op, double y = 1) {
    const core::Dims shape{x->elements};
    ValueRef next = value_of(shape);
    program::Instruction i = overwrite(++seq, op, {whole(x, shape), number(y)}, next);
    x = next;
    const std::uint64_t number = i.seq;
    back.queue().instruction(number) = std::move(i);
  }
  ValueRef unary(const char* op, const ValueRef& x) {
    const core::Dims shape{x->elements};
    ValueRef result = value_of(shape);
    ++seq;
    back.queue().instruction(seq) = apply(seq, op, {whole(x, shape)}, result, shape);
    return result;
  }
  void finish() {
    back.publish(seq);
    events.wait_for(seq);
  }
  // Raises the failures of all instructions so far.
  std::vector<std::uint64_t> raise(std::uint64_t root) {
    finish();
    while (back.wait_until_drained()) {
      while (events.continued == 0) std::this_thread::yield();
      events.continued = 0;
    }
    return back.take_failed_rebinds(root);
  }
  std::uint64_t used() const { return back.executor().pool(1).account().used(); }

  Box& box;
  Recorder events;
  Back back;
  std::uint64_t seq = 0;
};

TEST(Back, RunsInOrderAndReportsProgressOfCommandsWithoutInstructions) {
  Box box;
  Lanes lanes(2);
  Client client(box, lanes, 1);
  EXPECT_EQ(client.back.load().wait_seconds(), 0);  // nothing is queued, and nothing has run
  ValueRef x = client.constant({1, 2});
  for (int i = 0; i < 1000; ++i) client.inplace(x, "add");
  client.finish();
  EXPECT_THAT(floats(*x), ElementsAre(1001, 1002));
  EXPECT_LT(client.events.reports, 200);
  EXPECT_EQ(client.back.load().entries(), 0u);
  EXPECT_EQ(client.back.load().wait_seconds(), 0);
  client.seq += 5;  // commands that add no entries to the queue
  client.finish();
  EXPECT_EQ(client.back.completed_upto(), client.seq);
  x = nullptr;
  EXPECT_EQ(client.used(), 0u);
}

TEST(Back, ReportsAnInstructionThatTakesLong) {
  Box box;
  Lanes lanes(1);
  Client client(box, lanes, 1);
  const ValueRef x = client.constant(std::vector<float>(1 << 15));
  slow_ms = static_cast<int>(Back::kSlow / 1'000'000) + 10;
  const ValueRef y = client.unary("slow", x);
  const std::uint64_t seq = client.seq;
  client.finish();
  slow_ms = 0;
  const auto reported = [&] {
    core::MutexLock lock(client.events.mu);
    return client.events.slow;
  };
  // The report may follow the progress.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (reported().empty() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_THAT(reported(), ::testing::Contains(seq));
}

// Publishes a small instruction repeatedly until it runs on this thread at once; a large one never
// does.
TEST(Back, WhatIsSmallRunsWhereItIsPublishedOnceALaneIsFree) {
  Box box;
  Lanes lanes(1);
  struct Threads : Recorder {
    void on_fetched(FetchResult) override { thread = std::this_thread::get_id(); }
    std::thread::id thread;
  } events;
  Back back(kit_catalog(), box.devices, lanes, 1, 0, &events);
  std::uint64_t seq = 0;
  const auto ran_here = [&](std::int64_t n) {
    const core::Dims shape{n};
    ValueRef x = value_of(shape, kHost), y = value_of(shape, kHost);
    back.queue().constant(++seq, shape,
                          std::string(static_cast<std::size_t>(n) * sizeof(float), '\0'), x);
    back.publish(seq);
    events.wait_for(seq);
    ++seq;
    back.queue().instruction(seq) = apply(seq, "clone", {whole(x, shape)}, y, shape);
    back.queue().fetch(++seq, false, whole(y, shape));
    back.publish(seq, true);
    events.wait_for(seq);
    return events.thread == std::this_thread::get_id();
  };
  while (!ran_here(16)) std::this_thread::yield();  // until the lane sleeps
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(ran_here(1 << 12));
}

TEST(Back, FetchesAreBoundAtTheirPosition) {
  Box box;
  Lanes lanes(2);
  Client client(box, lanes, 1);
  ValueRef x = client.constant({1, 2, 3, 4});
  client.back.queue().fetch(++client.seq, false, view(x, core::Geometry({2, 2}).transpose(0, 1)));
  client.back.queue().fetch(++client.seq, true, whole(x, {4}));
  client.inplace(x, "add");
  client.inplace(x, "add");
  client.back.queue().fetch(++client.seq, false, whole(x, {4}));
  client.back.queue().fetch(++client.seq, false,
                            view(x, core::Geometry({std::int64_t{1} << 50}, {0}, 0)));
  client.finish();
  core::MutexLock lock(client.events.mu);
  ASSERT_EQ(client.events.fetched.size(), 4u);
  auto read = [](const FetchResult& result) {
    EXPECT_TRUE(result.status.ok());
    const float* data = reinterpret_cast<const float*>(
        static_cast<const char*>(result.contents.storage->data()) + result.contents.offset);
    return std::vector<float>(data, data + result.contents.bytes / sizeof(float));
  };
  EXPECT_THAT(read(client.events.fetched[0]), ElementsAre(1, 3, 2, 4));
  EXPECT_THAT(read(client.events.fetched[1]),
              // The fetch refers to the old value, so the later writes copied.
              ElementsAre(1, 2, 3, 4));
  EXPECT_TRUE(client.events.fetched[1].bulk);
  EXPECT_THAT(read(client.events.fetched[2]), ElementsAre(3, 4, 5, 6));
  EXPECT_EQ(client.events.fetched[3].status.code(), core::Code::kInvalidArgument);
}

TEST(Back, FailedRebindsAreKnownByRoot) {
  Box box;
  Lanes lanes(2);
  Client client(box, lanes, 1);
  ValueRef x = client.constant({1});
  client.inplace(x, "refuse");            // command 2
  client.inplace(x, "add");               // command 3
  ValueRef y = client.unary("clone", x);  // command 4, not a rebind
  // Commands 5 and 6, an independent root.
  ValueRef z = client.unary("refuse", client.constant({1}));
  EXPECT_THAT(client.raise(2), ElementsAre(2, 3));
  EXPECT_THAT(client.raise(2), IsEmpty());
  EXPECT_EQ(client.back.failures().open(), 1u);
  EXPECT_THAT(client.raise(6), IsEmpty());
  EXPECT_EQ(client.back.failures().open(), 0u);
  core::MutexLock lock(client.events.mu);
  EXPECT_THAT(client.events.failed, ElementsAre(2, 6));
}

TEST(Back, TheQueueIsBoundedAndAsksToGoOnOnce) {
  Box box;
  Lanes lanes(1);
  Client client(box, lanes, 1);
  ValueRef x = client.constant({1});
  gate_open = false;
  ValueRef y = client.unary("gate", x);
  int writes = 0;
  for (; !client.back.load().full(); ++writes) client.inplace(x, "add");
  EXPECT_EQ(client.back.load().entries(), QueueLoad::kMaxQueued);
  client.back.publish(client.seq);
  EXPECT_TRUE(client.back.wait_for_room());
  EXPECT_EQ(client.events.continued, 0);
  gate_open = true;
  while (client.events.continued == 0) std::this_thread::yield();
  EXPECT_LE(client.back.load().entries(), QueueLoad::kMaxQueued / 2);
  client.finish();
  EXPECT_EQ(client.events.continued, 1);
  EXPECT_FALSE(client.back.wait_for_room());
  EXPECT_EQ(floats(*x)[0], 1 + writes);
}

TEST(Back, InterruptCancelsWhatIsQueuedAndWhatRuns) {
  Box box;
  Lanes lanes(2);
  Client client(box, lanes, 1);
  ValueRef x = client.constant({1});  // command 1
  gate_open = false;
  ValueRef y = client.unary("gate", x);  // command 2
  client.inplace(x, "add");              // command 3
  client.inplace(x, "add");              // command 4
  client.back.queue().fetch(++client.seq, false, whole(x, {1}));
  client.back.publish(client.seq);
  while (at_gate == 0) std::this_thread::yield();
  client.back.cancel_upto(client.seq);
  client.events.wait_for(client.seq);
  gate_open = true;
  EXPECT_EQ(y->failure->status.code(), core::Code::kCancelled);
  ASSERT_TRUE(x->failure);
  EXPECT_EQ(x->failure->seq, 3u);
  EXPECT_EQ(floats(*x->good)[0], 1);
  EXPECT_THAT(client.raise(3), ElementsAre(3, 4));
  EXPECT_THAT(client.raise(2), IsEmpty());
  {
    core::MutexLock lock(client.events.mu);
    EXPECT_EQ(client.events.fetched[0].root, 3u);
    EXPECT_THAT(client.events.failed, ElementsAre(2, 3));
  }
  ValueRef z = client.constant({5});
  client.inplace(z, "add");
  client.finish();
  EXPECT_EQ(floats(*z)[0], 6);
}

TEST(Back, OneFloodingSessionDoesNotStarveAnother) {
  Box box;
  Lanes lanes(1);
  Client flood(box, lanes, 1), victim(box, lanes, 2);
  ValueRef x = flood.constant({1});
  slow_ms = 1;
  for (int i = 0; i < 100'000; ++i) flood.unary("slow", x);
  flood.back.publish(flood.seq);
  ValueRef y = victim.constant({0});
  for (int i = 0; i < 100; ++i) {
    victim.inplace(y, "add");
    victim.finish();
  }
  EXPECT_EQ(floats(*y)[0], 100);
  // The flood must be far from its end when the other session has had its hundred turns.
  EXPECT_GT(flood.back.load().entries(), 1500u);
  EXPECT_GT(flood.back.used_ns(), victim.back.used_ns());
}

TEST(Back, StopDuringWorkReturnsEveryByteWhileOthersGoOn) {
  Box box;
  Lanes lanes(2);
  Client other(box, lanes, 99);
  ValueRef kept = other.constant({1});
  for (int round = 0; round < 20; ++round) {
    auto client = std::make_unique<Client>(box, lanes, 1 + round);
    ValueRef x = client->constant(std::vector<float>(1000, 1));
    for (int i = 0; i < 2000; ++i) {
      client->inplace(x, "add");
      if (i % 7 == 0) client->unary("clone", x);
    }
    client->back.publish(client->seq);
    for (int i = 0; i < 50; ++i) other.inplace(kept, "add");
    other.back.publish(other.seq);
    x = nullptr;
    client->back.stop();
    EXPECT_EQ(client->used(), 0u);
  }
  other.finish();
  EXPECT_EQ(floats(*kept)[0], 1001);
  kept = nullptr;
  EXPECT_EQ(box.devices.at(1).pool().budget().used(), 0u);
}

TEST(Back, PartsOfSeveralSessionsShareTheLanes) {
  Box box;
  Lanes lanes(3);
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<ValueRef> values;
  for (int c = 0; c < 4; ++c) {
    clients.push_back(std::make_unique<Client>(box, lanes, 1 + c));
    ValueRef x = clients.back()->constant(std::vector<float>(50, 0));
    for (int i = 0; i < 100; ++i) x = clients.back()->unary("split", x);
    clients.back()->back.publish(clients.back()->seq);
    values.push_back(x);
  }
  for (auto& client : clients) client->finish();
  for (ValueRef& value : values) {
    EXPECT_THAT(floats(*value), ::testing::Each(100));
    value = nullptr;
  }
  clients.clear();
}

}  // namespace
}  // namespace teletensor::runtime
