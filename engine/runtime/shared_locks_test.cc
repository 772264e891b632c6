// Sessions that use a published storage at the same time.
#include "engine/runtime/shared_locks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "engine/runtime/back/back.h"
#include "engine/runtime/kit_test.h"
#include "engine/runtime/lanes/lanes.h"

namespace teletensor::runtime {
namespace {

using namespace testing;  // for the helpers of kit_test.h
using program::ValueRef;
using ::testing::Each;
using ::testing::ElementsAre;

const core::Dims kShape{4};

struct Events : BackEvents {
  void on_completed(std::uint64_t seq) override { completed = seq; }
  void on_fetched(FetchResult result) override {
    const auto* first = reinterpret_cast<const float*>(result.contents.data());
    core::MutexLock lock(mu);
    fetched.emplace_back(first, first + kShape[0]);
  }
  void on_failed(const program::Failure& root) override { code = root.status.code(); }
  void on_continue() override {}
  std::atomic<std::uint64_t> completed{0};
  std::atomic<core::Code> code{core::Code::kOk};
  core::Mutex mu;
  std::vector<std::vector<float>> fetched TT_GUARDED_BY(mu);
};

// A session whose test thread is the frame consumer.
struct Client {
  Client(Box& box, Lanes& lanes, memory::OwnerId owner)
      : back(kit_catalog(), box.devices, lanes, owner, 0, &events) {}

  ValueRef constant(float x) {
    ValueRef value = value_of(kShape);
    const std::vector<float> elements(4, x);
    back.queue().constant(++seq, kShape,
                          std::string(reinterpret_cast<const char*>(elements.data()), 16), value);
    return value;
  }
  ValueRef take(const core::Ref<memory::Storage>& storage) {
    ValueRef value = value_of(kShape);
    value->through = true;
    back.queue().uploaded(++seq, storage, value);
    return value;
  }
  void add(ValueRef& x, double y) {
    ValueRef next = value_of(kShape);
    next->through = x->through;
    program::Instruction i = overwrite(++seq, "add", {whole(x, kShape), number(y)}, next);
    x = next;
    back.queue().instruction(seq) = std::move(i);
  }
  ValueRef unary(const char* op, const ValueRef& x) {
    ValueRef result = value_of(kShape);
    ++seq;
    back.queue().instruction(seq) = apply(seq, op, {whole(x, kShape)}, result, kShape);
    return result;
  }
  void fetch(const ValueRef& x) { back.queue().fetch(++seq, false, whole(x, kShape)); }
  void publish() { back.publish(seq); }
  void finish() {
    publish();
    while (events.completed < seq) std::this_thread::yield();
  }

  Events events;
  Back back;
  std::uint64_t seq = 0;
};

class SharedLocksTest : public ::testing::Test {
 protected:
  void open(int lane_count, std::size_t sessions) {
    lanes = std::make_unique<Lanes>(lane_count);
    for (std::size_t i = 0; i < sessions; ++i) {
      clients.push_back(std::make_unique<Client>(box, *lanes, i + 1));
    }
    ValueRef value = clients[0]->constant(0);
    clients[0]->finish();
    storage = core::Ref<memory::Storage>(static_cast<memory::Storage*>(value->contents.get()));
    storage->share(new memory::Sharing(1));
    for (auto& client : clients) {
      tensor.push_back(client->take(storage));
      client->finish();
    }
  }
  // Session 0 holds the lock from now on, until open_gate().
  void hold(const char* op) {
    gate_open = false;
    result = clients[0]->unary(op, tensor[0]);
    clients[0]->publish();
    while (at_gate == 0) std::this_thread::yield();
  }
  void open_gate() {
    gate_open = true;
    clients[0]->finish();
  }
  ~SharedLocksTest() override {
    gate_open = true;
    tensor.clear();
    result = nullptr;
    clients.clear();
    storage = nullptr;
    EXPECT_EQ(box.devices.at(1).pool().budget().used(), 0u);
  }

  Box box;
  std::unique_ptr<Lanes> lanes;
  std::vector<std::unique_ptr<Client>> clients;
  core::Ref<memory::Storage> storage;
  std::vector<ValueRef> tensor;  // by session
  ValueRef result;
};

// One lane is inside a kernel that does not yield. The other one must not wait for its lock.
TEST_F(SharedLocksTest, NoLaneWaitsForTheLockOfAnotherSession) {
  open(2, 3);
  hold("wall");
  clients[1]->add(tensor[1], 1);
  clients[1]->publish();
  ValueRef own = clients[2]->constant(5);
  for (int i = 0; i < 100; ++i) clients[2]->add(own, 1);
  clients[2]->finish();
  EXPECT_THAT(floats(*own), Each(105));
  EXPECT_THAT(floats(*tensor[0]), Each(0));
  open_gate();
  clients[1]->finish();
  EXPECT_THAT(floats(*tensor[0]), Each(1));
  EXPECT_THAT(floats(*result), Each(0));
}

TEST_F(SharedLocksTest, AKernelThatHoldsALockGivesUpItsLane) {
  open(1, 2);
  hold("gate");
  ValueRef own = clients[1]->constant(5);
  clients[1]->add(own, 1);
  clients[1]->finish();
  EXPECT_THAT(floats(*own), Each(6));
  open_gate();
}

TEST_F(SharedLocksTest, ReadersRunTogether) {
  open(2, 2);
  hold("wall");
  clients[1]->fetch(tensor[1]);
  clients[1]->finish();
  core::MutexLock lock(clients[1]->events.mu);
  EXPECT_THAT(clients[1]->events.fetched, ElementsAre(ElementsAre(0, 0, 0, 0)));
}

TEST_F(SharedLocksTest, AnInterruptEndsTheWaitAndGivesUpThePlace) {
  open(2, 3);
  hold("wall");
  clients[1]->add(tensor[1], 1);
  const std::uint64_t interrupted = clients[1]->seq;
  clients[1]->publish();
  clients[1]->back.cancel_upto(interrupted);
  clients[1]->finish();
  EXPECT_EQ(clients[1]->events.code, core::Code::kCancelled);
  clients[2]->fetch(tensor[2]);  // a reader would wait for an earlier writer
  clients[2]->finish();
  open_gate();
  EXPECT_THAT(floats(*tensor[0]), Each(0));
}

TEST_F(SharedLocksTest, ASessionThatEndsWhileItWaits) {
  open(2, 3);
  hold("wall");
  clients[1]->add(tensor[1], 1);
  clients[1]->publish();
  tensor[1] = nullptr;
  clients[1]->back.stop();
  clients[2]->fetch(tensor[2]);
  clients[2]->finish();
  open_gate();
}

// Every session adds to the tensor, and no addition is lost.
TEST_F(SharedLocksTest, EachInstructionIsAtomic) {
  constexpr std::size_t kSessions = 6;
  open(3, kSessions);
  for (int i = 0; i < 500; ++i) {
    for (std::size_t c = 0; c < kSessions; ++c) {
      clients[c]->add(tensor[c], 1);
      if (i % 50 == 0) clients[c]->fetch(tensor[c]);
      if (i % 7 == 0) clients[c]->publish();
    }
  }
  for (auto& client : clients) client->finish();
  EXPECT_THAT(floats(*tensor[0]), Each(500 * kSessions));
  for (auto& client : clients) {
    core::MutexLock lock(client->events.mu);
    for (const auto& seen : client->events.fetched) EXPECT_THAT(seen, Each(seen[0]));
  }
}

}  // namespace
}  // namespace teletensor::runtime
