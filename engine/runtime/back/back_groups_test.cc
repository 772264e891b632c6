// Tests of sessions in one daemon whose collectives stay open while later instructions run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <random>
#include <thread>

#include "engine/runtime/back/back.h"
#include "engine/runtime/groups/groups_kit_test.h"

namespace teletensor::runtime::testing {
namespace {

using program::ValueRef;

// A session as one rank of its groups. The test thread is its frame consumer.
class Session : public BackEvents {
 public:
  Session(Box& box, Lanes& lanes, Groups& groups, memory::OwnerId owner, std::uint64_t quota = 0)
      : back(kit_catalog(), box.devices, lanes, owner, quota, this, nullptr, nullptr, &groups) {}

  void join(std::uint64_t number, collective::Rank rank, collective::Rank ranks) {
    Groups::Join join{
        "alice", "g" + std::to_string(number), rank,
        ranks,   milliseconds(600'000),        "session of rank " + std::to_string(rank)};
    back.queue().change_group(++seq, number, std::move(join));
  }
  void leave(std::uint64_t number) { back.queue().change_group(++seq, number, std::nullopt); }
  ValueRef constant(std::vector<float> elements) {
    const core::Dims shape{static_cast<std::int64_t>(elements.size())};
    ValueRef value = value_of(shape, kHost);
    back.queue().constant(++seq, shape,
                          std::string(reinterpret_cast<const char*>(elements.data()),
                                      elements.size() * sizeof(float)),
                          value);
    return value;
  }
  ValueRef unary(const char* op, const ValueRef& x) { return issue(op, {x}, {}); }
  ValueRef add(const ValueRef& x, const ValueRef& y) { return issue("add", {x, y}, {}); }
  ValueRef all_reduce(const ValueRef& x, std::uint64_t group) {
    return issue("all_reduce", {x},
                 {core::Attribute::of(static_cast<std::int64_t>(group)), core::Attribute::of(false),
                  core::Attribute::of("train.py:1")});
  }
  // x = op(x, y); the name x is rebound before the instruction is queued, as the front end does it.
  void inplace(const char* op, ValueRef& x, const ValueRef& y) {
    const core::Dims shape{x->elements};
    ValueRef next = value_of(shape, kHost);
    ++seq;
    program::Instruction made = overwrite(seq, op, {whole(x, shape), whole(y, shape)}, next);
    x = next;
    back.queue().instruction(seq) = std::move(made);
  }
  void all_reduce_inplace(ValueRef& x, std::uint64_t group) {
    inplace("copy", x, all_reduce(x, group));
  }
  // Calls a program of summing() for some rounds and updates x and y. Returns the result of the
  // last round.
  ValueRef call(const std::shared_ptr<const program::Program>& program, ValueRef& x, ValueRef& y,
                std::uint32_t times = 0) {
    program::Invocation call;
    call.program = program;
    call.times = times;
    call.inputs = {whole(x, {x->elements}), whole(y, {y->elements})};
    const auto outcome = [&](program::ValueId id) {
      call.outcomes.push_back({id, value_of({x->elements}, kHost)});
      return call.outcomes.back().becomes;
    };
    x = outcome(4);
    y = outcome(6);
    ValueRef result = outcome(5);
    back.queue().call(++seq, std::move(call));
    return result;
  }
  std::uint64_t fetch(const ValueRef& x) {
    back.queue().fetch(++seq, false, whole(x, {x->elements}));
    return seq;
  }
  void publish() { back.publish(seq); }

  // Waits for the result of a fetch and returns it.
  FetchResult fetched(std::uint64_t fetch) {
    core::MutexLock lock(mu_);
    while (!fetched_.contains(fetch)) changed_.wait(mu_);
    return fetched_.at(fetch);
  }
  bool has_fetched(std::uint64_t fetch) {
    core::MutexLock lock(mu_);
    return fetched_.contains(fetch);
  }
  std::uint64_t completed() {
    core::MutexLock lock(mu_);
    return completed_;
  }
  void wait_for_completed(std::uint64_t upto) {
    core::MutexLock lock(mu_);
    while (completed_ < upto) changed_.wait(mu_);
  }
  void wait_until_drained() {
    publish();
    if (!back.wait_until_drained()) return;
    core::MutexLock lock(mu_);
    while (!continued_) changed_.wait(mu_);
    continued_ = false;
  }
  std::vector<std::uint64_t> failed() {
    core::MutexLock lock(mu_);
    return failed_;
  }

  void on_completed(std::uint64_t upto) override {
    core::MutexLock lock(mu_);
    EXPECT_GT(upto, completed_);
    completed_ = upto;
    changed_.notify_all();
  }
  void on_fetched(FetchResult result) override {
    core::MutexLock lock(mu_);
    fetched_.emplace(result.seq, std::move(result));
    changed_.notify_all();
  }
  void on_failed(const program::Failure& root) override {
    core::MutexLock lock(mu_);
    failed_.push_back(root.seq);
  }
  void on_continue() override {
    core::MutexLock lock(mu_);
    continued_ = true;
    changed_.notify_all();
  }

 private:
  core::Mutex mu_;
  core::CondVar changed_;
  std::map<std::uint64_t, FetchResult> fetched_ TT_GUARDED_BY(mu_);
  std::vector<std::uint64_t> failed_ TT_GUARDED_BY(mu_);
  std::uint64_t completed_ TT_GUARDED_BY(mu_) = 0;
  bool continued_ TT_GUARDED_BY(mu_) = false;

  ValueRef issue(const char* op, const std::vector<ValueRef>& operands,
                 const core::Attributes& attributes) {
    const core::Dims shape{operands[0]->elements};
    std::vector<program::Operand> all;
    for (const ValueRef& operand : operands) all.push_back(whole(operand, shape));
    ValueRef result = value_of(shape, kHost);
    ++seq;
    program::Instruction made = apply(seq, op, std::move(all), result, shape);
    made.attributes = interned(attributes);
    back.queue().instruction(seq) = std::move(made);
    return result;
  }

 public:
  std::uint64_t seq = 0;
  Back back;  // destroyed first, because it calls this object
};

// A program that maps x, y to: s = the sum of y over all ranks; x = s; y = y + s; result s + 2 y.
// Its third step needs nothing of other ranks.
std::shared_ptr<const program::Program> summing(std::uint64_t group, std::int64_t elements) {
  auto made = std::make_shared<program::Program>();
  made->values.resize(7, {core::DType::kF32, kHost, elements});
  const auto view = [&](program::ValueId id) {
    return program::View{id, core::Geometry(core::Dims{elements})};
  };
  const auto step = [&](const char* name, std::vector<program::ValueId> operands,
                        program::ValueId result, int overwrites = -1) {
    program::Step& added = made->body.steps.emplace_back();
    added.op = op(name);
    for (const program::ValueId id : operands) {
      program::StepOperand& operand = added.operands.emplace_back();
      operand.kind = program::Operand::Kind::kTensor;
      operand.view = view(id);
    }
    added.results.push_back({view(result), overwrites});
    return &added;
  };
  made->body.parameters = {view(0), view(1)};
  made->parameter_names = {"x", "y"};
  step("all_reduce", {1}, 2)->attributes = {core::Attribute::of(static_cast<std::int64_t>(group)),
                                            core::Attribute::of(false),
                                            core::Attribute::of("train.py:1")};
  step("add", {1, 1}, 3);
  step("copy", {0, 2}, 4, 0);
  step("add", {4, 3}, 5);
  step("add", {1, 4}, 6, 0);
  made->body.results = {view(5)};
  made->rebinds = {{0, 4}, {1, 6}};
  return made;
}

class OpenCollectives : public GroupsKit {
 protected:
  std::unique_ptr<Session> session(collective::Rank rank, collective::Rank ranks,
                                   std::uint64_t quota = 0) {
    auto made = std::make_unique<Session>(box_, lanes_, groups_, rank + 2, quota);
    for (const std::uint64_t group : {1, 2}) made->join(group, rank, ranks);
    made->publish();
    made->wait_for_completed(made->seq);
    return made;
  }
  std::vector<float> value(Session& session, std::uint64_t fetch) {
    const FetchResult result = session.fetched(fetch);
    EXPECT_TRUE(result.status.ok()) << result.status.message();
    return result.status.ok() ? floats(result.contents) : std::vector<float>();
  }

  Groups groups_{adder_};
  Lanes lanes_{2};
};

TEST_F(OpenCollectives, LaterLinesRunWhileARankIsWaitedFor) {
  const auto first = session(0, 2), second = session(1, 2);
  const ValueRef x = first->constant({1, 2});
  const std::uint64_t before = first->seq;
  const ValueRef sum = first->all_reduce(x, 1);
  const std::uint64_t apart = first->fetch(first->add(x, x));
  const std::uint64_t of_sum = first->fetch(sum);
  const std::uint64_t behind = first->fetch(x);
  first->publish();
  EXPECT_EQ(value(*first, apart), (std::vector<float>{2, 4}));
  first->wait_for_completed(before);
  EXPECT_EQ(first->completed(), before);
  EXPECT_FALSE(first->has_fetched(of_sum));
  EXPECT_FALSE(first->has_fetched(behind));
  second->all_reduce(second->constant({10, 20}), 1);
  second->publish();
  EXPECT_EQ(value(*first, of_sum), (std::vector<float>{11, 22}));
  EXPECT_EQ(value(*first, behind), (std::vector<float>{1, 2}));
  first->wait_for_completed(behind);
  second->wait_for_completed(second->seq);
}

// The operand keeps the value that it had when the collective was issued.
TEST_F(OpenCollectives, AnOperandMayBeOverwrittenMeanwhile) {
  const auto first = session(0, 2), second = session(1, 2);
  ValueRef x = first->constant({1, 2});
  const ValueRef sum = first->all_reduce(x, 1);
  first->inplace("add", x, first->constant({5, 5}));
  const std::uint64_t changed = first->fetch(x), of_sum = first->fetch(sum);
  first->publish();
  EXPECT_EQ(value(*first, changed), (std::vector<float>{6, 7}));
  second->all_reduce(second->constant({10, 20}), 1);
  second->publish();
  EXPECT_EQ(value(*first, of_sum), (std::vector<float>{11, 22}));
}

// The copy of a result over a whole tensor waits separately, and needs no second storage.
TEST_F(OpenCollectives, LaterLinesRunWhileAResultIsToBeWrittenInPlace) {
  constexpr std::size_t kElements = 100'000;
  const auto first = session(0, 2), second = session(1, 2);
  ValueRef x = first->constant(std::vector<float>(kElements, 1));
  ValueRef y = first->constant({5});
  const std::uint64_t before = first->seq;
  first->all_reduce_inplace(x, 1);
  first->inplace("add", y, y);
  const std::uint64_t apart = first->fetch(y), of_x = first->fetch(x);
  first->publish();
  EXPECT_EQ(value(*first, apart), std::vector<float>{10});
  first->wait_for_completed(before);
  EXPECT_EQ(first->completed(), before);
  second->all_reduce(second->constant(std::vector<float>(kElements, 2)), 1);
  second->publish();
  EXPECT_EQ(value(*first, of_x), std::vector<float>(kElements, 3));
  first->wait_until_drained();
  EXPECT_LT(first->back.executor().pool(0).account().used(), 2 * kElements * sizeof(float));
  // Values that share the storage are not changed by a later write.
  const ValueRef sum = first->all_reduce(x, 1);
  first->inplace("copy", x, sum);
  first->inplace("add", x, x);
  second->all_reduce(second->constant(std::vector<float>(kElements, 2)), 1);
  first->publish();
  second->publish();
  const std::uint64_t doubled = first->fetch(x), whole = first->fetch(sum);
  first->publish();
  EXPECT_EQ(value(*first, doubled), std::vector<float>(kElements, 10));
  EXPECT_EQ(value(*first, whole), std::vector<float>(kElements, 5));
}

// A value that a failed collective would have overwritten can be restored.
TEST_F(OpenCollectives, ATensorKeepsItsLastGoodValue) {
  const auto first = session(0, 2), second = session(1, 2);
  const ValueRef old = first->constant({1});
  ValueRef x = old;
  first->all_reduce_inplace(x, 1);
  first->publish();
  second->all_reduce(second->constant({1, 2}), 1);
  second->publish();
  first->wait_until_drained();
  ASSERT_EQ(first->failed().size(), 1u);
  EXPECT_EQ(x->good, old);
  EXPECT_THAT(first->back.take_failed_rebinds(first->failed()[0]),
              ::testing::ElementsAre(first->seq));
}

TEST_F(OpenCollectives, TwoGroupsInDifferentOrdersDoNotBlockEachOther) {
  const auto first = session(0, 2), second = session(1, 2);
  const ValueRef a = first->all_reduce(first->constant({1}), 1);
  const ValueRef b = first->all_reduce(first->constant({2}), 2);
  const ValueRef c = second->all_reduce(second->constant({20}), 2);
  const ValueRef d = second->all_reduce(second->constant({10}), 1);
  const std::uint64_t of_first = first->fetch(first->add(a, b));
  const std::uint64_t of_second = second->fetch(second->add(c, d));
  first->publish();
  second->publish();
  EXPECT_EQ(value(*first, of_first), std::vector<float>{33});
  EXPECT_EQ(value(*second, of_second), std::vector<float>{33});
}

// A session is not drained (for a snapshot, a Raise or leaving a group) while a collective is open.
TEST_F(OpenCollectives, ASessionIsDrainedWhenItsCollectivesHaveEnded) {
  const auto first = session(0, 2), second = session(1, 2);
  const ValueRef sum = first->all_reduce(first->constant({1}), 1);
  first->leave(1);
  first->publish();
  std::atomic<bool> drained{false};
  std::thread waits([&] {
    first->wait_until_drained();
    drained = true;
  });
  const ValueRef other = second->all_reduce(second->constant({2}), 1);
  second->publish();
  waits.join();
  EXPECT_TRUE(drained);
  EXPECT_EQ(first->completed(), first->seq);
  EXPECT_EQ(testing::floats(*sum), std::vector<float>{3});
  second->wait_for_completed(second->seq);
  EXPECT_EQ(testing::floats(*other), std::vector<float>{3});
}

TEST_F(OpenCollectives, AnInterruptEndsWhatIsOpen) {
  const auto first = session(0, 2), second = session(1, 2);
  const ValueRef sum = first->all_reduce(first->constant({1}), 1);
  const std::uint64_t issued = first->seq;
  const std::uint64_t behind = first->fetch(first->constant({5}));
  first->publish();
  EXPECT_EQ(value(*first, behind), std::vector<float>{5});
  first->back.cancel_upto(behind);
  const std::uint64_t of_sum = first->fetch(sum);
  first->publish();
  EXPECT_EQ(first->fetched(of_sum).status.code(), Code::kCancelled);
  EXPECT_THAT(first->failed(), ::testing::ElementsAre(issued));
  const std::uint64_t of_other = second->fetch(second->all_reduce(second->constant({2}), 1));
  second->publish();
  EXPECT_THAT(second->fetched(of_other).status.message(), HasSubstr("rank 0 was interrupted"));
  // The other group is not affected.
  const std::uint64_t a = first->fetch(first->all_reduce(first->constant({1}), 2));
  const std::uint64_t b = second->fetch(second->all_reduce(second->constant({2}), 2));
  first->publish();
  second->publish();
  EXPECT_EQ(value(*first, a), std::vector<float>{3});
  EXPECT_EQ(value(*second, b), std::vector<float>{3});
}

TEST_F(OpenCollectives, ASessionMayEndWithOpenCollectives) {
  for (int round = 0; round < 50; ++round) {
    auto first = session(0, 2);
    const auto second = session(1, 2);
    for (int i = 0; i < 3; ++i) {
      first->all_reduce(first->constant({1}), static_cast<std::uint64_t>(1 + i % 2));
    }
    first->publish();
    const std::uint64_t of_other = second->fetch(second->all_reduce(second->constant({2}), 1));
    if (round % 2 == 0) first.reset();
    second->publish();
    first.reset();
    (void)second->fetched(of_other);
  }
}

// An instruction that does not fit in memory beside the operands and results of open collectives
// waits until these end.
TEST_F(OpenCollectives, MemoryOfOpenCollectivesIsWaitedFor) {
  constexpr std::size_t kElements = 100'000;
  const auto first = session(0, 2, 4 * kElements * sizeof(float) + (64u << 10));
  const auto second = session(1, 2);
  ValueRef x = first->constant(std::vector<float>(kElements, 1));
  std::vector<ValueRef> sums;
  ValueRef sum = first->all_reduce(x, 1);
  x = first->unary("clone", x);
  ValueRef y = first->add(x, x);
  y = first->add(y, y);
  const std::uint64_t of_y = first->fetch(y);
  y = nullptr;
  x = nullptr;
  const std::uint64_t of_sum = first->fetch(sum);
  first->publish();
  second->all_reduce(second->constant(std::vector<float>(kElements, 2)), 1);
  second->publish();
  EXPECT_EQ(value(*first, of_y), std::vector<float>(kElements, 4));
  EXPECT_EQ(value(*first, of_sum), std::vector<float>(kElements, 3));
}

TEST_F(OpenCollectives, ASessionThatLacksMemoryGoesOnWhenItsGroupHasEnded) {
  constexpr std::size_t kElements = 100'000;
  const auto first = session(0, 2, 6 * kElements * sizeof(float) + (64u << 10));
  const auto second = session(1, 2);
  for (int i = 0; i < 5; ++i) {
    ValueRef x = first->constant(std::vector<float>(kElements, 1));
    first->all_reduce_inplace(x, 1);
  }
  const std::uint64_t last = first->fetch(first->constant({7}));
  first->publish();
  while (groups_.kept() < 4 * kElements * sizeof(float)) std::this_thread::yield();
  second->leave(1);
  second->publish();
  EXPECT_EQ(value(*first, last), std::vector<float>{7});
  EXPECT_FALSE(first->failed().empty());
}

TEST_F(OpenCollectives, ARankThatRunsAheadLeavesMemoryToTheOthers) {
  constexpr std::size_t kElements = 200'000, kKept = 2 * kElements * sizeof(float);
  constexpr std::uint64_t kPart = 64u << 20;  // the permitted part of the host's memory
  const auto first = session(0, 2), second = session(1, 2);
  const auto reduce = [](Session& session) {
    ValueRef x;
    for (int i = 0; i < 60; ++i) {
      x = session.constant(std::vector<float>(kElements, static_cast<float>(i)));
      session.all_reduce_inplace(x, 1);
    }
    return session.fetch(x);
  };
  const std::uint64_t of_first = reduce(*first);
  first->publish();
  while (groups_.kept() < kPart) std::this_thread::yield();
  for (int i = 0; i < 100; ++i) {
    EXPECT_LT(groups_.kept(), kPart + kKept);
    std::this_thread::sleep_for(milliseconds(1));
  }
  const std::uint64_t of_second = reduce(*second);
  second->publish();
  const std::vector<float> sum(kElements, 118);
  EXPECT_EQ(value(*first, of_first), sum);
  EXPECT_EQ(value(*second, of_second), sum);
  while (groups_.kept() > 0) std::this_thread::yield();
}

TEST_F(OpenCollectives, AProgramRunsOnWhileARankIsWaitedFor) {
  const auto first = session(0, 2), second = session(1, 2);
  const auto program = summing(1, 2);
  ValueRef x = first->constant({0, 0}), y = first->constant({1, 2});
  const std::uint64_t before = first->seq;
  const std::uint64_t of_result = first->fetch(first->call(program, x, y));
  const std::uint64_t of_y = first->fetch(y);
  first->publish();
  ValueRef v = second->constant({5, 5}), w = second->constant({10, 20});
  const ValueRef alone = second->constant({3, 4});
  const std::uint64_t apart = second->fetch(second->add(alone, alone));
  second->publish();
  EXPECT_EQ(value(*second, apart), (std::vector<float>{6, 8}));
  first->wait_for_completed(before);
  EXPECT_EQ(first->completed(), before);
  const std::uint64_t of_other = second->fetch(second->call(program, v, w));
  second->publish();
  EXPECT_EQ(value(*first, of_result), (std::vector<float>{13, 26}));
  EXPECT_EQ(value(*first, of_y), (std::vector<float>{12, 24}));
  EXPECT_EQ(value(*second, of_other), (std::vector<float>{31, 62}));
  first->wait_until_drained();
  EXPECT_TRUE(first->failed().empty());
}

// An interrupted rank that ends its rounds early ends the group; a failing rank informs the others.
TEST_F(OpenCollectives, AnInterruptEndsTheRoundsOfAProgram) {
  const auto first = session(0, 2), second = session(1, 2);
  const auto program = summing(1, 1);
  ValueRef x = first->constant({0}), y = first->constant({1});
  first->call(program, x, y, 40);
  const std::uint64_t of_y = first->fetch(y);
  first->publish();
  ValueRef v = second->constant({0}), w = second->constant({1});
  second->call(program, v, w, 3);
  const std::uint64_t of_w = second->fetch(w);
  second->publish();
  EXPECT_EQ(value(*second, of_w), std::vector<float>{27});
  first->back.cancel_upto(first->seq);
  EXPECT_EQ(first->fetched(of_y).status.code(), Code::kCancelled);
  second->call(program, v, w, 37);
  const std::uint64_t of_lost = second->fetch(w);
  second->publish();
  const FetchResult lost = second->fetched(of_lost);
  EXPECT_THAT(std::string(lost.status.message()), HasSubstr("rank 0 was interrupted"));
}

TEST_F(OpenCollectives, ACallThatDoesNotRunLeavesItsGroups) {
  const auto first = session(0, 2), second = session(1, 2);
  const auto program = summing(1, 1);
  ValueRef x = first->constant({0});
  program::Invocation call;
  call.program = program;
  call.inputs = {whole(x, {1}), whole(x, {1})};
  call.outcomes.push_back({5, value_of({1}, kHost)});
  first->back.queue().failed_call(++first->seq, core::invalid("no time"), std::move(call));
  first->publish();
  ValueRef v = second->constant({0}), w = second->constant({1});
  const std::uint64_t of_lost = second->fetch(second->call(program, v, w));
  second->publish();
  const FetchResult lost = second->fetched(of_lost);
  EXPECT_THAT(std::string(lost.status.message()), HasSubstr("rank 0 has left the group"));
}

// Random programs of all ranks over two groups, whose commands arrive in random pieces. Every rank
// must read the results of running the commands one after another.
TEST_F(OpenCollectives, RandomHistories) {
  constexpr int kNames = 4, kLines = 60, kHistories = 60;
  const std::vector<std::shared_ptr<const program::Program>> programs{summing(1, 1), summing(2, 1)};
  for (unsigned seed = 1; seed <= kHistories; ++seed) {
    std::mt19937 dice(seed);
    const auto ranks = static_cast<collective::Rank>(2 + dice() % 4);
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<std::vector<ValueRef>> names(ranks);
    std::vector<std::vector<float>> reference(ranks, std::vector<float>(kNames));
    struct Read {
      collective::Rank rank;
      std::uint64_t fetch;
      float wanted;
    };
    std::vector<Read> reads;
    std::vector<std::vector<std::function<void()>>> lines(ranks);
    for (collective::Rank rank = 0; rank < ranks; ++rank) {
      sessions.push_back(session(rank, ranks));
      for (int name = 0; name < kNames; ++name) {
        reference[rank][name] = static_cast<float>(dice() % 8);
        names[rank].push_back(sessions[rank]->constant({reference[rank][name]}));
      }
    }
    for (int line = 0; line < kLines; ++line) {
      const std::size_t to = dice() % kNames, from = dice() % kNames, kind = dice() % 7;
      const std::uint32_t times = dice() % 3;
      const std::uint64_t group = 1 + dice() % 2;
      const auto sum_of_all = [&] {
        float sum = 0;
        for (collective::Rank rank = 0; rank < ranks; ++rank) sum += reference[rank][from];
        return sum;
      };
      const float sum = sum_of_all();
      if (kind == 5 && to != from) {
        for (std::uint32_t round = 0; round < std::max(times, 1u); ++round) {
          const float now = sum_of_all();
          for (collective::Rank rank = 0; rank < ranks; ++rank) {
            reference[rank][to] = now + 2 * reference[rank][from];
            reference[rank][from] += now;
          }
        }
      }
      for (collective::Rank rank = 0; rank < ranks; ++rank) {
        Session& own = *sessions[rank];
        std::vector<ValueRef>& mine = names[rank];
        float& changed = reference[rank][to];
        const float other = reference[rank][from];
        switch (kind) {
          case 0:
            lines[rank].push_back([&, to, from, group] {
              own.inplace("copy", mine[to], own.all_reduce(mine[from], group));
            });
            changed = sum;
            break;
          case 1:
            lines[rank].push_back(
                [&, to, from, group] { mine[to] = own.all_reduce(mine[from], group); });
            changed = sum;
            break;
          case 2:
            if (to == from) break;
            lines[rank].push_back([&, to, from] { own.inplace("add", mine[to], mine[from]); });
            changed += other;
            break;
          case 3:
            lines[rank].push_back([&, to, from] { mine[to] = own.add(mine[to], mine[from]); });
            changed += other;
            break;
          case 4:
            lines[rank].push_back([&, to, from] { mine[to] = own.unary("clone", mine[from]); });
            changed = other;
            break;
          case 5:
            if (to == from) break;
            lines[rank].push_back([&, to, from, group, times] {
              mine[to] = own.call(programs[group - 1], mine[to], mine[from], times);
            });
            break;
          default: {
            const float wanted = other;
            lines[rank].push_back([&, rank, from, wanted] {
              reads.push_back({rank, own.fetch(mine[from]), wanted});
            });
          }
        }
      }
      // Restricts sums to values that float32 represents exactly.
      for (const std::size_t name : {to, from}) {
        const bool large = std::any_of(reference.begin(), reference.end(),
                                       [&](const auto& own) { return own[name] >= 1e4f; });
        for (collective::Rank each = 0; large && each < ranks; ++each) {
          lines[each].push_back(
              [&, each, name] { names[each][name] = sessions[each]->constant({1}); });
          reference[each][name] = 1;
        }
      }
    }
    std::vector<std::size_t> at(ranks);
    for (bool more = true; more;) {
      more = false;
      for (collective::Rank rank = 0; rank < ranks; ++rank) {
        const std::size_t piece = dice() % 12;
        for (std::size_t i = 0; i < piece && at[rank] < lines[rank].size(); ++i) {
          lines[rank][at[rank]++]();
        }
        sessions[rank]->publish();
        more = more || at[rank] < lines[rank].size();
      }
    }
    for (const Read& read : reads) {
      ASSERT_EQ(value(*sessions[read.rank], read.fetch), std::vector<float>{read.wanted})
          << "seed " << seed << ", rank " << read.rank;
    }
    for (collective::Rank rank = 0; rank < ranks; ++rank) {
      sessions[rank]->wait_until_drained();
      ASSERT_EQ(sessions[rank]->completed(), sessions[rank]->seq) << seed;
      ASSERT_TRUE(sessions[rank]->failed().empty()) << seed;
      for (int name = 0; name < kNames; ++name) {
        ASSERT_EQ(testing::floats(*names[rank][name]), std::vector<float>{reference[rank][name]})
            << seed;
      }
    }
  }
}

}  // namespace
}  // namespace teletensor::runtime::testing
