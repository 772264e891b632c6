// Tests of programs in a session: define, call, branches, loops, failures, limits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "engine/ops/verify.h"
#include "engine/session/client_test.h"
#include "engine/session/session.h"

namespace teletensor::session {
namespace {

using namespace testing;  // for Client
using core::Code;
using core::DType;
using core::Geometry;
using program::Block;
using program::Operand;
using program::Program;
using program::Step;
using program::StepOperand;
using program::ValueId;
using program::View;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Builds programs of f32 values of one shape and 0-d bools.
struct Builder {
  core::Device device;
  core::Dims shape;
  Program p{};

  View value(DType dtype = DType::kF32, bool scalar = false) {
    const Geometry g(scalar ? core::Dims() : shape);
    p.values.push_back({dtype, device, g.numel()});
    return {static_cast<ValueId>(p.values.size() - 1), g};
  }
  View parameter() {
    p.body.parameters.push_back(value());
    p.parameter_names.push_back("p" + std::to_string(p.body.parameters.size() - 1));
    return p.body.parameters.back();
  }
  static StepOperand of(const View& view) { return {Operand::Kind::kTensor, view, {}}; }
  static StepOperand of(double x, std::uint32_t argument = 0) {
    StepOperand operand{Operand::Kind::kNumber, {}, core::Number::of_float(x)};
    operand.number.argument = argument;
    return operand;
  }
  static Step step(std::string_view op, std::vector<StepOperand> operands, View out,
                   int overwrites = -1) {
    Step s;
    const ops::OpDef& def = *ops::catalog().find(op);
    s.op = ops::catalog().id(def);
    for (StepOperand& operand : operands) s.operands.push_back(operand);
    for (std::size_t i = static_cast<std::size_t>(def.operand_parameters);
         i < def.parameters.size(); ++i) {
      s.attributes.push_back(def.parameters[i].fallback);
    }
    s.results.push_back({out, overwrites});
    return s;
  }
  View add(Block& block, std::string_view op, std::vector<StepOperand> operands,
           DType dtype = DType::kF32, bool scalar = false) {
    const View out = value(dtype, scalar);
    block.steps.push_back(step(op, std::move(operands), out));
    return out;
  }
  std::string bytes() const { return program::serialize(p, ops::op_names(ops::catalog())); }
};

// Doubles its parameter while the sum is below a number given by the call: a loop that runs on the
// daemon.
Builder doubling(core::Device device) {
  Builder b{device, {2}};
  const View x = b.parameter();
  b.p.numbers = {core::Number::of_float(100)};
  Step loop;
  loop.kind = Step::Kind::kWhile;
  loop.operands.push_back(Builder::of(x));
  Block head, body;
  head.parameters = {b.value()};
  const View sum = b.add(head, "sum", {Builder::of(head.parameters[0])}, DType::kF32, true);
  head.results = {b.add(head, "lt", {Builder::of(sum), Builder::of(100, 1)}, DType::kBool, true)};
  body.parameters = {b.value()};
  body.results = {b.add(body, "mul", {Builder::of(body.parameters[0]), Builder::of(2)})};
  const View out = b.value();
  loop.results.push_back({out, -1});
  loop.blocks = {head, body};
  b.p.body.steps.push_back(loop);
  b.p.body.results = {out};
  return b;
}

HandleId call(Client& client, std::uint64_t program, std::vector<HandleId> inputs,
              std::vector<double> numbers = {}, std::uint32_t made = 1) {
  program::Call call;
  call.program = program;
  call.inputs = std::move(inputs);
  for (const double x : numbers) call.numbers.push_back(core::Number::of_float(x));
  call.made = made;
  client.add(call);
  const HandleId first = client.name();
  for (std::uint32_t i = 1; i < made; ++i) client.name();
  return first;
}

TEST(Program, LoopsAndBranchesRunOnTheDaemon) {
  Daemon daemon;
  Client client(daemon);
  client.add(program::Define{1, doubling(kSimDevice).bytes()});
  // A branch: x + 1 if the sum is below 4, x * 10 otherwise.
  Builder b{kSimDevice, {2}};
  const View x = b.parameter();
  const View sum = b.add(b.p.body, "sum", {Builder::of(x)}, DType::kF32, true);
  const View below = b.add(b.p.body, "lt", {Builder::of(sum), Builder::of(4)}, DType::kBool, true);
  Step branch;
  branch.kind = Step::Kind::kIf;
  branch.operands.push_back(Builder::of(below));
  Block yes, no;
  yes.results = {b.add(yes, "add", {Builder::of(x), Builder::of(1), Builder::of(1)})};
  no.results = {b.add(no, "mul", {Builder::of(x), Builder::of(10)})};
  const View out = b.value();
  branch.results.push_back({out, -1});
  branch.blocks = {yes, no};
  b.p.body.steps.push_back(branch);
  b.p.body.results = {out};
  // Whether `add` has an operand `alpha` depends on the catalog.
  if (ops::catalog().find("add")->operand_parameters == 2) {
    auto& operands = b.p.body.steps.back().blocks[0].steps[0].operands;
    operands.pop_back();
  }
  client.add(program::Define{2, b.bytes()});
  const HandleId a = client.constant({2}, {1, 2});
  const HandleId c = client.constant({2}, {3, 4});
  const HandleId doubled = call(client, 1, {a}, {100});
  const HandleId at_once = call(client, 1, {c}, {7});
  const HandleId small = call(client, 2, {a});
  const HandleId large = call(client, 2, {c});
  EXPECT_THAT(client.read(doubled), ElementsAre(64, 128));
  EXPECT_THAT(client.read(at_once), ElementsAre(3, 4));
  EXPECT_THAT(client.read(small), ElementsAre(2, 3));
  EXPECT_THAT(client.read(large), ElementsAre(30, 40));
  EXPECT_THAT(client.read(a), ElementsAre(1, 2));
  client.release({a, c, doubled, at_once, small, large});
  client.add(program::Undefine{1});
  client.synchronize();
  EXPECT_EQ(client.used(), 0u);
}

// A program is charged once, whether or not it is planned, and until nothing uses it any more.
TEST(Program, IsChargedOnceWithItsPlan) {
  constexpr int kSteps = 8000;
  Builder b{kSimDevice, {2}};
  View x = b.parameter();
  for (int i = 0; i < kSteps; ++i) x = b.add(b.p.body, "mul", {Builder::of(x), Builder::of(2)});
  b.p.body.results = {x};
  const auto memory =
      program::memory_of(*program::deserialize(b.bytes(), ops::op_finder(ops::catalog())));
  Daemon daemon;
  Client client(daemon);
  const HandleId a = client.constant({2}, {0, 0});
  client.add(program::Define{1, b.bytes()});
  client.synchronize();
  client.synchronize();
  const std::uint64_t defined = daemon.used(kHostDevice);
  EXPECT_GE(defined + Charge::kFree, memory);
  EXPECT_THAT(client.read(call(client, 1, {a})), ElementsAre(0, 0));
  client.synchronize();
  EXPECT_GT(daemon.used(kHostDevice), defined);
  EXPECT_LT(daemon.used(kHostDevice), defined + memory);
  client.add(program::Undefine{1});
  client.synchronize();
  client.synchronize();
  EXPECT_EQ(daemon.used(kHostDevice), 0u);
}

// Computes x *= n, then x += 1 as a program that rebinds its parameter.
Builder bump(core::Device device) {
  Builder b{device, {2}};
  const View x = b.parameter();
  const View after = b.value();
  b.p.numbers = {core::Number::of_float(1)};
  b.p.body.steps.push_back(Builder::step("mul", {Builder::of(x), Builder::of(1, 1)}, after, 0));
  b.p.rebinds = {{0, after.value}};
  b.p.body.results = {after};
  b.p.aliases = {{0, true, 0}};
  return b;
}

TEST(Program, RebindsAreWritesThatViewsSee) {
  Daemon daemon;
  Client client(daemon);
  client.add(program::Define{7, bump(kSimDevice).bytes()});
  const HandleId base = client.constant({3, 2}, {1, 2, 3, 4, 5, 6});
  const HandleId row =
      client.apply("select", {h(base)}, {core::Attribute::of(0), core::Attribute::of(1)});
  const HandleId same = call(client, 7, {row}, {10});
  EXPECT_THAT(client.read(base), ElementsAre(1, 2, 30, 40, 5, 6));
  EXPECT_THAT(client.read(same), ElementsAre(30, 40));
  const std::uint64_t copied = client.daemon.used(kSimDevice);
  EXPECT_GT(copied, 0u);
  // A loop of calls, each on the result of the previous one.
  program::Call loop;
  loop.program = 7;
  loop.inputs = {row};
  for (const double x : {2.0, 3.0, 0.5}) loop.numbers.push_back(core::Number::of_float(x));
  loop.times = 3;
  loop.made = 1;
  client.add(loop);
  const HandleId rounds = client.name();
  EXPECT_THAT(client.read(rounds), ElementsAre(60, 80, 180, 240, 90, 120));
  EXPECT_THAT(client.read(base), ElementsAre(1, 2, 90, 120, 5, 6));
  client.release({base, row, same, rounds});
  client.synchronize();
  EXPECT_EQ(client.used(), 0u);
}

TEST(Program, AFailureInsideIsRaisedAndTheParameterIsAsItWas) {
  Daemon daemon;
  Client client(daemon);
  client.add(program::Define{1, bump(kSimDevice).bytes()});
  client.add(program::Define{2, doubling(kSimDevice).bytes()});
  const HandleId x = client.constant({2}, {1, 2});
  client.synchronize();
  daemon.sim->faults().fail_instruction(1, core::Status(Code::kUnavailable, "injected"));
  const HandleId same = call(client, 1, {x}, {3});
  const std::uint64_t root = client.last_seq();
  const HandleId doubled = call(client, 2, {x}, {100});  // its operand failed, so the loop ends
  EXPECT_THAT(client.read(doubled), IsEmpty());
  EXPECT_EQ(client.last.root, root);
  EXPECT_THAT(client.read(same), IsEmpty());
  EXPECT_THAT(client.raise(root).rebinds, ElementsAre(root));
  EXPECT_THAT(client.read(x), ElementsAre(1, 2));
  client.release({x, same, doubled});
  client.synchronize();
  EXPECT_EQ(client.used(), 0u);
}

TEST(Program, AnEndlessLoopSharesItsLaneAndEndsWhenInterrupted) {
  Daemon daemon(256u << 20, 1);
  Client client(daemon), neighbour(daemon);
  client.add(program::Define{1, doubling(kSimDevice).bytes()});
  const HandleId x = client.constant({2}, {0, 0});
  const HandleId never = call(client, 1, {x}, {100});
  ASSERT_TRUE(client.send().ok());
  const HandleId y = neighbour.constant({2}, {1, 2});
  EXPECT_THAT(neighbour.read(neighbour.apply("mul", {h(y), number(2)})), ElementsAre(2, 4));
  client.session->interrupt(0);
  EXPECT_THAT(client.read(never), IsEmpty());
  EXPECT_EQ(client.last.status.code(), Code::kCancelled);
  // A program that is not interrupted ends with its session.
  Client other(daemon);
  other.add(program::Define{1, doubling(kSimDevice).bytes()});
  const HandleId z = other.constant({2}, {0, 0});
  call(other, 1, {z}, {100});
  ASSERT_TRUE(other.send().ok());
}

TEST(Program, HostileCallsEndTheirSessionAlone) {
  Daemon daemon;
  const auto refused = [&](auto&& spoil, const char* part) {
    Client client(daemon);
    client.add(program::Define{1, bump(kSimDevice).bytes()});
    const HandleId x = client.constant({2}, {1, 2});
    program::Call call;
    call.program = 1;
    call.inputs = {x};
    call.numbers = {core::Number::of_float(1)};
    call.made = 1;
    spoil(client, call);
    client.add(call);
    const core::Status status = client.send();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(status.message(), HasSubstr(part));
  };
  refused([](Client&, program::Call& c) { c.program = 9; }, "not defined");
  refused([](Client&, program::Call& c) { c.inputs = {77}; }, "unknown");
  refused([](Client&, program::Call& c) { c.inputs = {}; }, "0 inputs for 1");
  refused([](Client&, program::Call& c) { c.numbers = {}; }, "0 numbers for 1");
  refused([](Client&, program::Call& c) { c.numbers = {core::Number::of_int(1)}; }, "another kind");
  refused([](Client&, program::Call& c) { c.made = 4; }, "declares 4");
  refused([](Client&, program::Call& c) { c.sliced = {0}; }, "sliced inputs");
  refused([](Client&, program::Call& c) { c.times = ~0u; }, "times, at most");
  refused(
      [](Client& client, program::Call& c) {
        c.inputs = {client.constant({3}, {1, 2, 3})};
      },
      "p0");
  refused(
      [](Client& client, program::Call& c) {
        const HandleId one = client.constant({1}, {1});
        c.inputs = {client.apply("expand", {h(one)}, {core::Attribute::of(core::Dims{2})})};
      },
      "strides");
  {  // a program whose values are larger than its arguments
    Client client(daemon);
    Builder b = bump(kSimDevice);
    b.p.values[0].elements = b.p.values[1].elements = 1'000'000;
    client.add(program::Define{1, b.bytes()});
    const HandleId x = client.constant({2}, {1, 2});
    call(client, 1, {x}, {2});
    EXPECT_THAT(client.send().message(), HasSubstr("smaller storage"));
  }
  {
    Client client(daemon);
    client.add(program::Define{1, "rubbish"});
    EXPECT_FALSE(client.send().ok());
  }
  EXPECT_EQ(daemon.used(kSimDevice), 0u);
}

// Programs with a few corrupted bytes are refused, or run within their own memory (checked by the
// sanitizers). Every second program has no time for the check and therefore does not run.
TEST(Program, SpoiledProgramsAreRefusedOrHarmless) {
  Daemon daemon;
  std::mt19937_64 random(3);
  const std::string whole[] = {doubling(kSimDevice).bytes(), bump(kSimDevice).bytes()};
  program::Amounts no_time = program::kUsualLimits;
  no_time.plan_ms = 0;
  int ran = 0, unchecked = 0;
  for (int round = 0; round < 3000; ++round) {
    const bool checked = round % 2 == 0;
    const std::size_t which = random() % 2;
    std::string bytes = whole[which];
    bytes.resize(bytes.size() - 9);
    for (std::uint64_t n = 1 + random() % 2; n > 0; --n) {
      bytes[random() % bytes.size()] = static_cast<char>(random() % 24);
    }
    std::uint64_t hash = 14695981039346656037ull;
    for (const char byte : bytes) {
      hash = (hash ^ static_cast<std::uint8_t>(byte)) * 1099511628211ull;
    }
    bytes += static_cast<char>(15 << 3 | 1);
    bytes.append(reinterpret_cast<const char*>(&hash), 8);
    Client client(daemon, kSimDevice, 0, checked ? program::kUsualLimits : no_time);
    client.add(program::Define{1, bytes});
    const HandleId x = client.constant({2}, {1, 2});
    call(client, 1, {x}, {100});
    if (!client.send().ok()) continue;
    if (checked) client.session->interrupt(0);
    client.listener.completed(client.last_seq());
    ++(checked ? ran : unchecked);
    if (checked) continue;
    const auto errors = client.listener.take_errors();
    ASSERT_EQ(errors.size(), 1u);
    EXPECT_THAT(errors[0].status.message(), HasSubstr("limit session_plan_ms"));
  }
  EXPECT_GT(ran, 50);
  EXPECT_GT(unchecked, 50);
  EXPECT_EQ(daemon.used(kSimDevice), 0u);
}

}  // namespace
}  // namespace teletensor::session
