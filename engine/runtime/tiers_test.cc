#include "engine/runtime/tiers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <thread>
#include <vector>

#include "engine/core/folder_test.h"
#include "engine/runtime/back/back.h"
#include "engine/runtime/kit_test.h"

namespace teletensor::runtime {
namespace {

using namespace testing;  // for the helpers of kit_test.h
using program::ValueRef;
using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr std::int64_t kMillion = 1 << 20;  // number of elements: 4 MiB

class Quiet : public BackEvents {
 public:
  void on_completed(std::uint64_t) override {}
  void on_fetched(FetchResult) override {}
  void on_failed(const program::Failure& root) override {
    core::MutexLock lock(mu);
    last = root.status;
  }
  void on_continue() override {
    core::MutexLock lock(mu);
    drained = true;
    changed.notify_all();
  }
  core::Mutex mu;
  core::CondVar changed;
  bool drained = false;
  core::Status last;
};

// A session whose values are on one device.
class Client {
 public:
  Client(Box& box, Lanes& lanes, Tiers* tiers, memory::OwnerId owner, core::Device device)
      : device(device), back(kit_catalog(), box.devices, lanes, owner, 0, &events, nullptr, tiers) {
    back.tiers().join("");
  }
  ~Client() { back.stop(); }

  ValueRef constant(float x, std::int64_t elements = kMillion) {
    ValueRef value = value_of({elements}, device);
    std::string bytes(static_cast<std::size_t>(elements) * 4, '\0');
    auto* floats = reinterpret_cast<float*>(bytes.data());
    for (std::int64_t i = 0; i < elements; ++i) floats[i] = x + static_cast<float>(i % 7);
    back.queue().constant(++seq, {value->elements}, std::move(bytes), value);
    back.publish(seq);
    return value;
  }
  ValueRef add(const ValueRef& a, double x) {
    return run("add", {whole(a, {kMillion}), number(x)});
  }
  ValueRef run(const char* op, std::vector<program::Operand> operands) {
    ValueRef value = value_of({kMillion}, device);
    program::Instruction& out = back.queue().instruction(++seq);
    out = apply(seq, op, std::move(operands), value, {kMillion});
    back.publish(seq);
    return value;
  }
  void drain() {
    events.drained = false;
    if (!back.wait_until_drained()) return;
    core::MutexLock lock(events.mu);
    while (!events.drained) events.changed.wait(events.mu);
  }
  bool away(const ValueRef& value) const {
    return static_cast<memory::Storage*>(value->contents.get())->data() == nullptr;
  }
  // Reads an element, wherever the contents are.
  float at(const ValueRef& value, std::size_t i) const {
    float x = -1;
    EXPECT_TRUE(static_cast<memory::Storage*>(value->contents.get())->read(i * 4, &x, 4).ok());
    return x;
  }

  const core::Device device;
  Quiet events;
  Back back;
  std::uint64_t seq = 0;
};

class TiersTest : public ::testing::Test {
 protected:
  void open(std::uint64_t total = std::uint64_t{1} << 30) {
    disk = std::move(*memory::Disk::open(folder.path, total));
    tiers = std::make_unique<Tiers>(disk.get());
  }
  ~TiersTest() override {
    a.reset(), b.reset();
    for (std::size_t i = 0; i < box.devices.size(); ++i) {
      EXPECT_EQ(box.devices.at(i).pool().budget().used(), 0u);
      EXPECT_EQ(box.devices.at(i).pool().moved().away, 0u);
    }
    EXPECT_TRUE(!disk || disk->budget().used() + disk->bytes() == 0);
    tiers.reset();
    disk.reset();
  }
  void two(core::Device device) {
    a = std::make_unique<Client>(box, lanes, tiers.get(), 1, device);
    b = std::make_unique<Client>(box, lanes, tiers.get(), 2, device);
  }
  memory::DevicePool& sim() { return box.devices.at(1).pool(); }

  const core::TestFolder folder;
  Box box{32u << 20};
  std::unique_ptr<memory::Disk> disk;
  Lanes lanes{2};
  std::unique_ptr<Tiers> tiers;
  std::unique_ptr<Client> a, b;
};

// Tests storages of the host, which are moved to the disk, and of a device, which are moved to the
// host and then to the disk.
class TiersOn : public TiersTest, public ::testing::WithParamInterface<core::Device> {};
INSTANTIATE_TEST_SUITE_P(Devices, TiersOn, ::testing::Values(kHost, kSim),
                         [](const auto& on) { return on.index == 0 ? "Host" : "Sim"; });

TEST_P(TiersOn, AnIdleSessionGivesWayAndGetsItsValuesBack) {
  open();
  two(GetParam());
  std::vector<ValueRef> first, second;
  for (int k = 0; k < 6; ++k) first.push_back(a->constant(static_cast<float>(k)));
  a->drain();
  for (int k = 0; k < 6; ++k) second.push_back(b->constant(static_cast<float>(10 * k)));
  b->drain();
  EXPECT_TRUE(a->away(first[0]));
  EXPECT_FALSE(b->away(second[5]));
  EXPECT_EQ(a->at(first[0], 8), 1.0f);  // read where it is, without moving it back
  std::vector<ValueRef> sums;
  for (int k = 0; k < 6; ++k) sums.push_back(a->add(first[static_cast<std::size_t>(k)], 0.5));
  a->drain();
  for (std::size_t k = 0; k < 6; ++k) {
    EXPECT_EQ(a->at(sums[k], 3), static_cast<float>(k) + 3.5f);
    EXPECT_EQ(b->at(second[k], 3), static_cast<float>(10 * k) + 3.0f);
  }
}

TEST_P(TiersOn, ASessionMovesItsOwnWhereNobodyElseHasAny) {
  open();
  two(GetParam());
  std::vector<ValueRef> values;
  for (int k = 0; k < 20; ++k) values.push_back(a->constant(static_cast<float>(k)));
  for (std::size_t k = 0; k < 20; ++k) values[k] = a->add(values[k], 100);
  a->drain();
  for (std::size_t k = 0; k < 20; ++k) {
    EXPECT_EQ(a->at(values[k], 1), static_cast<float>(k) + 101.0f);
  }
}

TEST_F(TiersTest, WhereNothingIsLeftToMoveItIsOutOfMemory) {
  open(3u << 20);  // not enough for a single tensor
  two(kHost);
  std::vector<ValueRef> values;
  for (int k = 0; k < 20; ++k) values.push_back(a->constant(static_cast<float>(k)));
  a->drain();
  EXPECT_EQ(a->events.last.code(), core::Code::kResourceExhausted);
  EXPECT_THAT(a->events.last.message(), HasSubstr("; on disk: "));
  EXPECT_NE(values[19]->failure, nullptr);
  EXPECT_EQ(values[2]->failure, nullptr);
  EXPECT_EQ(a->at(values[2], 0), 2.0f);
}

TEST_P(TiersOn, BothRunAndTakeTurns) {
  open();
  two(GetParam());
  const auto work = [](Client& client, float x, float* result) {
    std::vector<ValueRef> values;
    for (int k = 0; k < 5; ++k) values.push_back(client.constant(x));
    for (int round = 0; round < 40; ++round) {
      for (ValueRef& value : values) value = client.add(value, 1);
    }
    client.drain();
    *result = client.at(values[4], 0);
  };
  float first = 0, second = 0;
  std::thread other([&] { work(*b, 1000, &second); });
  work(*a, 0, &first);
  other.join();
  EXPECT_EQ(first, 40.0f);
  EXPECT_EQ(second, 1040.0f);
}

// A session within its turn continues, although the other session was first to request memory that
// both need.
TEST_P(TiersOn, TurnsAreNotSpentWaiting) {
  open();
  two(GetParam());
  std::vector<ValueRef> first, second;
  for (int k = 0; k < 5; ++k) first.push_back(a->constant(1));
  a->drain();
  for (int round = 0; round < 4; ++round) {
    second.clear();
    for (int k = 0; k < 5; ++k) second.push_back(b->constant(2));
    for (ValueRef& value : first) value = a->add(value, 1);
    a->drain();
    b->drain();
  }
  for (const ValueRef& value : first) EXPECT_EQ(a->at(value, 0), 5.0f);
  for (const ValueRef& value : second) EXPECT_EQ(b->at(value, 0), 2.0f);
}

TEST_P(TiersOn, ASessionThatWaitsMayBeInterruptedAndMayEnd) {
  open();
  two(GetParam());
  std::vector<ValueRef> first, second;
  for (int k = 0; k < 7; ++k) first.push_back(a->constant(1));
  a->drain();
  for (int round = 0; round < 20; ++round) {
    for (int k = 0; k < 7; ++k) second.push_back(b->constant(2));
    if (round % 2 == 0) b->back.cancel_upto(b->seq);
    second.clear();
  }
  b.reset();
  const ValueRef sum = a->add(first[0], 1);
  a->drain();
  EXPECT_EQ(a->at(sum, 0), 2.0f);
}

TEST_P(TiersOn, StoragesForOthersThanTheStrand) {
  open();
  two(GetParam());
  std::vector<ValueRef> first;
  for (int k = 0; k < 7; ++k) first.push_back(a->constant(1));
  a->drain();
  const std::size_t device = GetParam() == kHost ? 0 : 1;
  core::Ref<memory::Storage> now = b->back.tiers().allocate_now(device, 8u << 20, 1);
  ASSERT_TRUE(now);
  EXPECT_TRUE(now->pinned());
  std::promise<bool> later;
  b->back.tiers().allocate(device, 8u << 20, 1, [&](core::Ref<memory::Storage> storage) {
    later.set_value(static_cast<bool>(storage));
  });
  EXPECT_TRUE(later.get_future().get());
  EXPECT_FALSE(b->back.tiers().allocate_now(device, 33u << 20, 1));  // more than the device has
  now = nullptr;
}

// Storages of a device without a disk are moved to the host only; when that is full as well, the
// error is "out of memory".
TEST_F(TiersTest, WhatNeitherTheDeviceNorTheHostHasRoomForIsOutOfMemory) {
  tiers = std::make_unique<Tiers>(nullptr);
  two(kSim);
  std::vector<ValueRef> values;
  for (int k = 0; k < 20; ++k) values.push_back(a->constant(static_cast<float>(k)));
  a->drain();
  EXPECT_EQ(a->events.last.code(), core::Code::kResourceExhausted);
  EXPECT_THAT(
      a->events.last.message(),
      ::testing::AllOf(HasSubstr("out of memory on sim:0: requested 4.0 MiB"),
                       HasSubstr("quota of 32.0 MiB"), HasSubstr("(moved off the device)")));
  EXPECT_EQ(box.devices.at(0).pool().budget().used(), 32u << 20);
  EXPECT_NE(values[19]->failure, nullptr);
  // The host has room for eight storages, and the device for seven besides its records.
  for (std::size_t k = 0; k < 15; ++k) {
    ASSERT_EQ(values[k]->failure, nullptr) << k;
    EXPECT_EQ(a->at(values[k], 9), static_cast<float>(k) + 2.0f);
  }
}

// Each instruction of both sessions needs most of the memory, so that only one session at a time
// can have what it needs. Memory reserved for one session must not be given to the other.
TEST_F(TiersTest, TwoThatNeedNearlyAllOfItGoOnByTurns) {
  open();
  a = std::make_unique<Client>(box, lanes, tiers.get(), 1, kSim);
  b = std::make_unique<Client>(box, lanes, tiers.get(), 2, kSim);
  // 20 MiB are left: two tensors of each session, and one more.
  auto* const taken = memory::Pool::create(sim(), 3, 0);
  ASSERT_TRUE(taken->reserve(12u << 20));
  std::vector<ValueRef> first, second;
  for (Client* client : {a.get(), b.get()}) {
    std::vector<ValueRef>& mine = client == a.get() ? first : second;
    for (int k = 0; k < 2; ++k) mine.push_back(client->constant(client == a.get() ? 1 : 2));
    for (int round = 0; round < 6; ++round) {
      for (ValueRef& value : mine) value = client->add(value, 1);
    }
  }
  a->drain();
  b->drain();
  for (const ValueRef& value : first) EXPECT_EQ(a->at(value, 0), 7.0f);
  for (const ValueRef& value : second) EXPECT_EQ(b->at(value, 0), 8.0f);
  taken->release(12u << 20);
  taken->close();
}

// A member of Tiers that is controlled by the test.
class Stub : public Tiers::Member {
 public:
  Stub(Box& box, Tiers& tiers, memory::OwnerId owner) : tiers_(tiers) {
    for (std::size_t i = 0; i < box.devices.size(); ++i) {
      pools_.emplace_back(memory::Pool::create(box.devices.at(i).pool(), owner, 0));
    }
    tiers.join(this, "");
  }
  ~Stub() override { tiers_.leave(this); }

  void hold(std::size_t bytes) {
    hold_pinned(bytes);
    unpin();
  }
  void hold_pinned(std::size_t bytes) {
    held_ = pools_[1]->allocate_shared(bytes, 1);
    ASSERT_TRUE(held_);
  }
  void unpin() { held_->unpin(); }
  void stays() { held_->stays(); }
  void drop() { held_ = nullptr; }
  bool away() const { return held_->data() == nullptr; }
  std::future<bool> wait_for_room(std::size_t bytes) {
    went_on_ = {};
    std::future<bool> result = went_on_.get_future();
    EXPECT_TRUE(tiers_.wait(this, {{}, {}, {0, bytes}}));
    return result;
  }

  std::function<void()> on_freeze;  // called on the spiller's thread
  std::atomic<bool> idle{true}, asked{false};
  std::atomic<int> frozen{0};

 private:
  bool freeze() override {
    if (idle) ++frozen;
    if (on_freeze) std::exchange(on_freeze, nullptr)();
    return idle;
  }
  void thaw() override {}
  bool has_work() const override { return false; }
  void ask_to_yield(bool yes) override { asked = asked || yes; }
  void go_on(bool room, std::vector<std::uint64_t> granted) override {
    for (std::size_t i = 0; i < granted.size(); ++i) pools_[i]->release(granted[i]);
    std::promise<bool> went_on = std::move(went_on_);  // the next request may begin
    went_on.set_value(room);
  }
  memory::Pool& pool(std::size_t device) override { return *pools_[device]; }
  std::size_t device_of(const memory::Storage&) const override { return 1; }
  bool kept(std::unordered_set<const void*>&) override { return true; }

  Tiers& tiers_;
  std::vector<memory::PoolHandle> pools_;
  core::Ref<memory::Storage> held_;
  std::promise<bool> went_on_;
};

// A session that had nothing to move is examined again after the other sessions, because it may
// have storages by then.
TEST_F(TiersTest, WhoHadNothingToGiveMayHaveSomethingLater) {
  open();
  Stub first(box, *tiers, 1), second(box, *tiers, 2), poor(box, *tiers, 3);
  second.hold(16u << 20);
  second.idle = false;
  std::future<bool> room = poor.wait_for_room(24u << 20);
  while (first.frozen < 2 || !second.asked) std::this_thread::yield();
  first.idle = false;  // keeps its new memory from being moved too early
  first.hold(16u << 20);
  second.drop();
  first.idle = second.idle = true;
  EXPECT_TRUE(room.get());
  EXPECT_TRUE(first.away());
}

// A session leaves while its storages are moved: that stops only this move, not the next one.
TEST_F(TiersTest, WhoLeavesWhileItMovesStopsNobodyElse) {
  open();
  Stub leaves(box, *tiers, 1), poor(box, *tiers, 2);
  leaves.hold(12u << 20);
  poor.hold(12u << 20);
  std::thread leaving;
  leaves.on_freeze = [&] {
    leaving = std::thread([&] { tiers->leave(&leaves); });
    while (tiers->yielded(&leaves)) std::this_thread::yield();  // until it is no longer a member
  };
  EXPECT_TRUE(poor.wait_for_room(16u << 20).get());
  EXPECT_TRUE(poor.away());
  ASSERT_TRUE(leaving.joinable());
  leaving.join();
}

// Memory that is pinned, as by an upload or download in progress, is waited for.
TEST_F(TiersTest, WhatIsPinnedIsToBeHadOnceItIsNot) {
  disk = std::move(*memory::Disk::open(folder.path, std::uint64_t{1} << 30));
  tiers = std::make_unique<Tiers>(disk.get(), 24h);
  Stub first(box, *tiers, 1), poor(box, *tiers, 2);
  first.hold_pinned(16u << 20);
  std::future<bool> room = poor.wait_for_room(24u << 20);
  while (first.frozen < 5 && room.wait_for(0s) != std::future_status::ready) {
    std::this_thread::yield();
  }
  first.unpin();
  EXPECT_TRUE(room.get());
  EXPECT_TRUE(first.away());
}

// The wait ends even if two sessions have pinned the memory that the other one waits for.
TEST_F(TiersTest, WhatStaysPinnedIsNotWaitedForForEver) {
  disk = std::move(*memory::Disk::open(folder.path, std::uint64_t{1} << 30));
  tiers = std::make_unique<Tiers>(disk.get(), 100ms);
  Stub first(box, *tiers, 1), second(box, *tiers, 2), third(box, *tiers, 3);
  first.hold_pinned(14u << 20);
  second.hold_pinned(14u << 20);
  std::future<bool> room = first.wait_for_room(16u << 20);
  EXPECT_FALSE(second.wait_for_room(16u << 20).get());
  EXPECT_FALSE(room.get());
  // The next request does not wait again: it examines each session twice, first without the
  // storages kept by name, then with them.
  const int before = first.frozen;
  EXPECT_FALSE(third.wait_for_room(16u << 20).get());
  EXPECT_EQ(first.frozen - before, 2);
  // After unpinning, the memory can be used again.
  first.unpin();
  EXPECT_TRUE(third.wait_for_room(16u << 20).get());
  EXPECT_TRUE(first.away());
}

// A request does not wait for pins that cannot help: the session's own, which only later commands
// would unpin; storages that are too small; and pins that last.
TEST_F(TiersTest, WhatCannotHelpIsNotWaitedFor) {
  disk = std::move(*memory::Disk::open(folder.path, std::uint64_t{1} << 30));
  tiers = std::make_unique<Tiers>(disk.get(), 24h);
  Stub first(box, *tiers, 1), poor(box, *tiers, 2);
  poor.hold_pinned(24u << 20);
  EXPECT_FALSE(poor.wait_for_room(16u << 20).get());
  first.hold_pinned(4u << 20);
  EXPECT_FALSE(poor.wait_for_room(16u << 20).get());
  poor.drop();
  first.hold_pinned(24u << 20);
  first.stays();
  EXPECT_FALSE(poor.wait_for_room(16u << 20).get());
}

// If an instruction needs more than the device has, nothing is moved for it.
TEST_F(TiersTest, AnInstructionLargerThanTheMemoryFailsAtOnce) {
  open();
  two(kSim);
  const ValueRef idle = b->constant(5);
  b->drain();
  const std::int64_t large = 4 * kMillion;  // 16 MiB
  const ValueRef x = a->constant(1, large), y = a->constant(2, large);
  a->drain();
  const std::uint64_t before = sim().moved().out;
  const ValueRef sum = a->run("add", {whole(x, {large}), whole(y, {large})});
  a->drain();
  ASSERT_NE(sum->failure, nullptr);
  EXPECT_THAT(sum->failure->status.message(), HasSubstr("out of memory on sim:0"));
  EXPECT_EQ(sim().moved().out, before);
  EXPECT_EQ(a->at(x, 0) + a->at(y, 0) + b->at(idle, 0), 8.0f);
}

}  // namespace
}  // namespace teletensor::runtime
