// Tests that a repeated instruction has the effects of the Apply that it stands for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/runtime/back/back.h"
#include "engine/session/client_test.h"

namespace teletensor::session {
namespace {

using namespace testing;  // for Client
using core::Attribute;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// An instruction that a client repeats, with handles in all places where `arguments` has 0.
class Repeats {
 public:
  Repeats(Client& client, std::string_view op, std::vector<Argument> arguments, bool record,
          core::Attributes attributes = {})
      : client_(client),
        known_(core::make_ref<const program::KnownApply>(
            apply_of(op, std::move(arguments), std::move(attributes), record))) {}

  HandleId operator()(std::initializer_list<HandleId> handles) {
    program::Repeated repeated{known_, {}};
    std::copy(handles.begin(), handles.end(), repeated.handles.begin());
    client_.add(repeated);
    return client_.name();
  }

 private:
  Client& client_;
  const core::Ref<const program::KnownApply> known_;
};

const Argument kHandle{Argument::Kind::kHandle, 0, {}};

TEST(KnownCall, ComputesWithTheOperandsOfEachRound) {
  Daemon daemon;
  Client client(daemon);
  Repeats mul(client, "mul", {kHandle, kHandle}, false);
  Repeats twice(client, "mul", {kHandle, Argument::of(core::Number::of_float(2))}, false);
  const HandleId b = client.constant({2}, {3, 5});
  HandleId x = client.constant({2}, {1, 1});
  std::vector<HandleId> made{b, x};
  for (int round = 0; round < 5; ++round) {
    made.push_back(x = mul({x, b}));
    made.push_back(x = twice({x}));
  }
  EXPECT_THAT(client.read(x), ElementsAre(7776, 100000));
  client.release(made);
  client.synchronize();
  EXPECT_EQ(client.used(), 0u);
  EXPECT_EQ(client.session->handles(), 0u);
}

TEST(KnownCall, OperandsOfOtherLayoutsGiveOtherLayouts) {
  Daemon daemon;
  Client client(daemon);
  Repeats add(client, "add", {kHandle, kHandle}, false, {Attribute::of(1.0)});
  const HandleId row = client.constant({1, 2}, {1, 2});
  const HandleId column = client.constant({2, 1}, {10, 20});
  const HandleId square = client.constant({2, 2}, {1, 2, 3, 4});
  const HandleId turned =
      client.apply("transpose", {h(square)}, {Attribute::of(0), Attribute::of(1)});
  for (int round = 0; round < 3; ++round) {
    EXPECT_THAT(client.read(add({row, column})), ElementsAre(11, 12, 21, 22));
    EXPECT_THAT(client.read(add({row, row})), ElementsAre(2, 4));
    EXPECT_THAT(client.read(add({square, turned})), ElementsAre(2, 5, 5, 8));
    EXPECT_THAT(client.read(add({turned, square})), ElementsAre(2, 5, 5, 8));
    EXPECT_THAT(client.read(add({turned, turned})), ElementsAre(2, 6, 4, 8));
    EXPECT_THAT(client.read(add({square, row})), ElementsAre(2, 4, 4, 6));
    EXPECT_THAT(client.read(add({column, column})), ElementsAre(20, 40));
  }
}

TEST(KnownCall, RecordsOnTheTapeIfAnOperandRequiresAGradient) {
  Daemon daemon;
  Client client(daemon);
  Repeats mul(client, "mul", {kHandle, kHandle}, true);
  const HandleId plain = client.constant({2}, {1, 2});
  for (int round = 0; round < 3; ++round) mul({plain, plain});  // it is known without a record
  const HandleId w = client.constant({2}, {3, 4});
  client.requires_grad(w);
  const HandleId whole = client.apply("detach", {h(w)});
  EXPECT_THAT(client.read(mul({whole, plain})), ElementsAre(3, 8));
  const HandleId y = mul({plain, w});
  const HandleId z = mul({y, y});
  const HandleId loss = client.apply("sum", {h(z)}, {}, true);
  program::Backward backward;
  backward.roots = {loss};
  backward.made = 1;
  client.add(backward);
  EXPECT_THAT(client.read(client.name()), ElementsAre(6, 32));
}

TEST(KnownCall, ReadsAValueThatWasOverwritten) {
  Daemon daemon;
  Client client(daemon);
  Repeats twice(client, "mul", {kHandle, Argument::of(core::Number::of_float(2))}, false);
  const HandleId x = client.constant({2}, {1, 2});
  for (int round = 0; round < 4; ++round) {
    const HandleId y = twice({x});
    client.inplace("add", {h(x), number(1)}, {Attribute::of(1.0)});
    EXPECT_THAT(client.read(y), ElementsAre(2 * (1 + round), 2 * (2 + round)));
  }
}

TEST(KnownCall, UnknownAndFailedOperandsAreReportedAsUsual) {
  Daemon daemon;
  Client client(daemon);
  Repeats add(client, "add", {kHandle, kHandle}, false, {Attribute::of(1.0)});
  const HandleId x = client.constant({2}, {1, 2}), three = client.constant({3}, {1, 2, 3});
  for (int round = 0; round < 3; ++round) add({x, x});
  EXPECT_TRUE(client.send().ok());
  add({x, three});
  EXPECT_THAT(client.send().message(), HasSubstr("[2]"));
  Client other(daemon);
  Repeats again(other, "add", {kHandle, kHandle}, false, {Attribute::of(1.0)});
  const HandleId gone = other.constant({2}, {1, 2});
  for (int round = 0; round < 3; ++round) again({gone, gone});
  other.release({gone});
  again({gone, gone});
  EXPECT_THAT(other.send().message(), HasSubstr("unknown or released"));
}

// A client that computes with more layouts than an interner keeps.
TEST(KnownCall, LastsBeyondTheInternerOfTheQueue) {
  Daemon daemon;
  Client client(daemon);
  Repeats twice(client, "mul", {kHandle, Argument::of(core::Number::of_float(2))}, false);
  const HandleId x = client.constant({1}, {21});
  for (int size = 1; size < 3 * static_cast<int>(runtime::QueueWriter::kMaxInterned); ++size) {
    const HandleId wide = client.apply("expand", {h(x)}, {Attribute::of(core::Dims{size})});
    const HandleId narrow =
        client.apply("select", {h(wide)}, {Attribute::of(0), Attribute::of(size - 1)});
    const HandleId y = twice({x});
    const HandleId z = twice({narrow});
    if (size % 500 == 1) {
      EXPECT_THAT(client.read(y), ElementsAre(42));
      EXPECT_THAT(client.read(z), ElementsAre(42));
    }
    client.release({wide, narrow, y, z});
  }
  EXPECT_THAT(client.read(twice({x})), ElementsAre(42));
}

}  // namespace
}  // namespace teletensor::session
