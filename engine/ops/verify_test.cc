// Tests programs as bytes, and the reasons for which hostile programs are refused.
#include "engine/ops/verify.h"

#include <gtest/gtest.h>

#include <random>

namespace teletensor::ops {
namespace {

using core::Code;
using core::DType;
using core::Geometry;
using program::Block;
using program::Operand;
using program::Program;
using program::Step;
using program::View;

OpId op(std::string_view name) { return catalog().id(*catalog().find(name)); }

View view(program::ValueId value, core::Dims shape) { return {value, Geometry(shape)}; }

Step add(View a, View b, View out) {
  Step step;
  step.op = op("add");
  step.operands.push_back({Operand::Kind::kTensor, a, {}});
  step.operands.push_back({Operand::Kind::kTensor, b, {}});
  for (std::size_t i = 0; i < catalog().at(step.op).parameters.size() - 2; ++i) {
    const Parameter& p = catalog().at(step.op).parameters[i + 2];
    if (p.is_operand()) {
      step.operands.push_back({Operand::Kind::kNumber, {}, core::Number::of_int(1)});
    } else {
      step.attributes.push_back(p.fallback);
    }
  }
  step.results.push_back({out, -1});
  return step;
}

// v2 = v0 + v1; v3 = v2 + v2, with shape [2, 3].
Program small() {
  Program p;
  p.name = "small";
  for (int i = 0; i < 4; ++i) p.values.push_back({DType::kF32, {}, 6});
  p.body.parameters = {view(0, {2, 3}), view(1, {2, 3})};
  p.parameter_names = {"a", "b"};
  p.body.steps = {add(view(0, {2, 3}), view(1, {2, 3}), view(2, {2, 3})),
                  add(view(2, {2, 3}), view(2, {2, 3}), view(3, {2, 3}))};
  p.body.results = {view(3, {2, 3})};
  return p;
}

Step fill(View target, View out) {
  Step step;
  step.op = op("fill");
  step.operands.push_back({Operand::Kind::kTensor, target, {}});
  step.operands.push_back({Operand::Kind::kNumber, {}, core::Number::of_float(2)});
  step.results.push_back({out, 0});
  return step;
}

// A loop that adds v1 to its value while v2 (a bool) is true, followed by an `if`.
Program controlled() {
  Program p = small();
  p.values.push_back({DType::kBool, {}, 1});
  for (int i = 0; i < 5; ++i) p.values.push_back({DType::kF32, {}, 6});
  p.body.parameters.push_back(view(4, {}));
  p.parameter_names.push_back("go");
  Step loop;
  loop.kind = Step::Kind::kWhile;
  loop.operands.push_back({Operand::Kind::kTensor, view(3, {2, 3}), {}});
  loop.results.push_back({view(5, {2, 3}), -1});
  Block head, body;
  head.parameters = {view(6, {2, 3})};
  head.results = {view(4, {})};
  body.parameters = {view(7, {2, 3})};
  body.steps = {add(view(7, {2, 3}), view(1, {2, 3}), view(8, {2, 3}))};
  body.results = {view(8, {2, 3})};
  loop.blocks = {head, body};
  p.body.steps.push_back(loop);
  Step branch;
  branch.kind = Step::Kind::kIf;
  branch.operands.push_back({Operand::Kind::kTensor, view(4, {}), {}});
  branch.results.push_back({view(9, {2, 3}), -1});
  Block yes, no;
  yes.results = {view(5, {2, 3})};
  no.results = {view(0, {2, 3})};
  branch.blocks = {yes, no};
  p.body.steps.push_back(branch);
  p.body.results = {view(9, {2, 3})};
  return p;
}

std::string bytes_of(const Program& p) { return program::serialize(p, op_names(catalog())); }
core::Result<Program> read(std::string_view bytes) {
  return program::deserialize(bytes, op_finder(catalog()));
}

#define EXPECT_REFUSED(program, part)                                                \
  do {                                                                               \
    const core::Status refused = verify(program, catalog());                         \
    EXPECT_EQ(refused.code(), Code::kInvalidArgument) << refused.message();          \
    EXPECT_NE(refused.message().find(part), std::string::npos) << refused.message(); \
  } while (false)

TEST(Program, RoundTrip) {
  for (const Program& p : {small(), controlled()}) {
    ASSERT_TRUE(verify(p, catalog()).ok()) << verify(p, catalog()).message();
    const auto again = read(bytes_of(p));
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_TRUE(*again == p);
    EXPECT_EQ(bytes_of(*again), bytes_of(p));
  }
}

// Without time for all checks, the facts that a caller of the program relies on are still checked.
TEST(Program, NoTimeToCheck) {
  const auto now = core::Clock::now();
  const auto late = [&](const Program& p) { return verify(p, catalog(), now); };
  for (const Program& p : {small(), controlled()}) {
    EXPECT_EQ(late(p).code(), Code::kDeadlineExceeded) << late(p).message();
    EXPECT_TRUE(verify(p, catalog(), now + std::chrono::hours(1)).ok());
    Program wrong = p;
    wrong.body.results[0].value = 99;
    EXPECT_EQ(late(wrong).code(), Code::kInvalidArgument);
    wrong = p;
    wrong.body.results[0].geometry.offset = 1 << 20;
    EXPECT_EQ(late(wrong).code(), Code::kInvalidArgument);
    for (const int overwrites : {-2, 7}) {
      wrong = p;
      wrong.body.steps[0].results[0].overwrites = overwrites;
      EXPECT_EQ(late(wrong).code(), Code::kInvalidArgument) << overwrites;
    }
    wrong = p;
    wrong.body.steps[0].results[0].view.value = wrong.body.parameters[0].value;  // made twice
    EXPECT_EQ(late(wrong).code(), Code::kInvalidArgument);
  }
}

// Names occur in errors and in the log, so no name may end a line or be no text.
TEST(Program, NamesAreTextsOnOneLine) {
  for (const char* good : {"", "räumen 日本", "<lambda> \"x\""}) {
    Program p = controlled();
    p.name = p.parameter_names.back() = good;
    EXPECT_TRUE(read(bytes_of(p)).ok()) << good;
  }
  for (const char* bad : {"x\ntime=2026", "\xff", "\x1b[31m", "a\tb", "\xe2\x80\xae", "\xc2\x85"}) {
    Program named = small(), parameter = controlled(), attribute = small(), origin = small();
    named.name = bad;
    parameter.parameter_names.back() = bad;
    attribute.body.steps[0].attributes.push_back(core::Attribute::of(std::string_view(bad)));
    for (const Program& p : {named, parameter, attribute}) {
      const core::Status status = read(bytes_of(p)).status();
      EXPECT_EQ(status.code(), Code::kInvalidArgument);
      EXPECT_NE(status.message().find("control characters"), std::string::npos) << status.message();
    }
    origin.origins.push_back(bad);
    const auto again = read(bytes_of(origin));
    ASSERT_TRUE(again.ok());
    EXPECT_NE(again->origins.back(), bad);
  }
}

TEST(Program, DamageAndStrangersAreNamed) {
  std::string bytes = bytes_of(small());
  std::string damaged = bytes;
  damaged[damaged.size() / 2] ^= 1;
  EXPECT_EQ(read(damaged).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(read(bytes.substr(0, bytes.size() - 3)).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(read("").status().code(), Code::kInvalidArgument);
  const auto future = [](OpId) { return std::make_pair(std::string("add"), 99); };
  const auto status = read(program::serialize(small(), future)).status();
  EXPECT_EQ(status.code(), Code::kUnimplemented);
  EXPECT_NE(status.message().find("'add' has revision 99 there"), std::string::npos);
  const auto unknown = [](OpId) { return std::make_pair(std::string("frobnicate"), 1); };
  EXPECT_NE(read(program::serialize(small(), unknown)).status().message().find("'frobnicate'"),
            std::string::npos);
}

TEST(Program, LimitsBound) {
  Program p = small();
  program::ProgramLimits limits;
  limits.steps = 1;
  EXPECT_EQ(program::deserialize(bytes_of(p), op_finder(catalog()), limits).status().code(),
            Code::kResourceExhausted);
  limits = {};
  limits.items = 10;
  EXPECT_EQ(program::deserialize(bytes_of(p), op_finder(catalog()), limits).status().code(),
            Code::kResourceExhausted);
  limits = {};
  limits.depth = 0;
  EXPECT_EQ(
      program::deserialize(bytes_of(controlled()), op_finder(catalog()), limits).status().code(),
      Code::kResourceExhausted);
}

TEST(Verify, RefusesWhatIsNotThere) {
  Program p = small();
  p.body.steps[0].operands[0].view.value = 3;  // made later
  EXPECT_REFUSED(p, "not made here");
  p = small();
  p.body.steps[0].operands[0].view.value = 77;
  EXPECT_REFUSED(p, "no such value");
  p = small();
  p.body.steps[1].results[0].view.value = 2;
  EXPECT_REFUSED(p, "made twice");
  p = controlled();
  p.body.results = {view(8, {2, 3})};  // belongs to the body of the loop
  EXPECT_REFUSED(p, "not made here");
}

TEST(Verify, RefusesViewsOutside) {
  for (const Geometry& g : {Geometry({2, 4}), Geometry({2, 3}, {3, 2}), Geometry({2, 3}, {3, 1}, 1),
                            Geometry({2, 3}, {3, -1}, 3), Geometry({2, 3}, {INT64_MAX, 1}),
                            Geometry({2, 3}, {3, 1}, -1), Geometry({2, 3}, {3, 1}, INT64_MAX)}) {
    Program p = small();
    p.body.steps[0].operands[0].view.geometry = g;
    EXPECT_FALSE(verify(p, catalog()).ok());
    p = small();
    p.body.parameters[0].geometry = g;
    EXPECT_FALSE(verify(p, catalog()).ok());
    p = small();
    p.body.results[0].geometry = g;
    EXPECT_FALSE(verify(p, catalog()).ok());
  }
  Program p = small();
  p.values[0].elements = INT64_MAX;
  EXPECT_REFUSED(p, "too large");
}

// The indices broadcast to 2^61 + 8 positions, whose size in bytes wraps to 64.
TEST(Verify, RefusesIndicesThatBroadcastBeyondMemory) {
  for (const bool inplace : {false, true}) {
    Program p;
    p.name = "places";
    p.values = {{DType::kF32, {}, 125}, {DType::kI64, {}, 1}, {DType::kF32, {}, 125}};
    p.body.parameters = {view(0, {5, 5, 5}), view(1, {1, 1, 1})};
    p.parameter_names = {"x", "i"};
    Step step;
    step.op = op("index_put");
    step.operands.push_back({Operand::Kind::kTensor, view(0, {5, 5, 5}), {}});
    step.operands.push_back({Operand::Kind::kNumber, {}, core::Number::of_float(1)});
    for (const core::Dims& shape :
         {core::Dims{40, 1, 1}, core::Dims{1, 107367629, 1}, core::Dims{1, 1, 536903681}}) {
      step.operands.push_back({Operand::Kind::kTensor, {1, Geometry(shape, core::Dims(3, 0))}, {}});
    }
    step.counts.push_back(3);
    step.attributes.push_back(core::Attribute::of(core::Dims{0, 1, 2}));
    step.attributes.push_back(core::Attribute::of(false));
    step.results.push_back({view(2, {5, 5, 5}), inplace ? 0 : -1});
    p.body.steps = {step};
    p.body.results = {view(2, {5, 5, 5})};
    EXPECT_REFUSED(p, "indexing tensors broadcast to shape [40, 107367629, 536903681]");
  }
}

TEST(Verify, RefusesOtherLayoutsThanInfers) {
  Program p = small();
  p.body.steps[0].results[0].view.geometry = Geometry({3, 2});
  EXPECT_REFUSED(p, "another layout");
  p = small();
  p.values[2].dtype = DType::kF64;
  EXPECT_REFUSED(p, "another layout");
  p = small();
  p.values[2].elements = 600;
  EXPECT_REFUSED(p, "another size");
  p = small();
  p.body.steps[0].results[0].overwrites = 0;  // writes the parameter without a rebind
  EXPECT_REFUSED(p, "without a rebind");
}

TEST(Verify, RebindsFollowTheChain) {
  Program p = small();
  p.values.push_back({DType::kF32, {}, 6});
  p.body.steps.push_back(fill(view(0, {2, 3}), view(4, {2, 3})));
  EXPECT_REFUSED(p, "without a rebind");
  p.rebinds = {{0, 4}};
  EXPECT_TRUE(verify(p, catalog()).ok()) << verify(p, catalog()).message();
  p.rebinds = {{1, 4}};
  EXPECT_REFUSED(p, "does not overwrite");
  p.rebinds = {{0, 4}, {0, 4}};
  EXPECT_REFUSED(p, "twice");
  p.rebinds = {{9, 4}};
  EXPECT_REFUSED(p, "a parameter that does not exist");
}

// The maximum number of results of a program; each is a view on the value that a parameter has
// after as many overwriting steps as possible.
TEST(Verify, LongChainsAndManyAliases) {
  constexpr std::uint32_t kSteps = 1 << 14, kResults = 1 << 19;
  Program p;
  p.values.assign(kSteps + 1, {DType::kF32, {}, 6});
  p.body.parameters = {view(0, {2, 3})};
  p.parameter_names = {"a"};
  for (std::uint32_t i = 0; i < kSteps; ++i) {
    p.body.steps.push_back(fill(view(i, {2, 3}), view(i + 1, {2, 3})));
  }
  p.rebinds = {{0, kSteps}};
  for (std::uint32_t i = 0; i < kResults; ++i) {
    p.body.results.push_back(view(kSteps, {2, 3}));
    p.aliases.push_back({i, true, 0});
  }
  EXPECT_TRUE(verify(p, catalog()).ok()) << verify(p, catalog()).message();
  p.body.results.back().value = kSteps / 2;
  EXPECT_REFUSED(p, "a parameter but is no view of it");
}

TEST(Verify, ControlFlowKeepsItsTypes) {
  Program p = controlled();
  p.body.steps[2].blocks[0].results = {view(6, {2, 3})};
  EXPECT_REFUSED(p, "0-d bool");
  p = controlled();
  p.body.steps[2].blocks[1].results.clear();
  EXPECT_REFUSED(p, "number of results");
  p = controlled();
  p.body.steps[3].blocks[1].results = {view(4, {})};
  EXPECT_REFUSED(p, "another type than the value that it is passed to");
  p = controlled();
  p.body.steps[2].blocks.pop_back();
  EXPECT_REFUSED(p, "two blocks");
  p = controlled();
  p.body.steps[3].operands.clear();
  EXPECT_REFUSED(p, "the condition");
}

TEST(Verify, CollectivesStandOutsideOfBranchesAndLoops) {
  Program p = controlled();
  p.values.push_back({DType::kF32, {}, 6});
  Step sum;
  sum.op = catalog().id(*catalog().find("all_reduce"));
  sum.operands.push_back({Operand::Kind::kTensor, view(0, {2, 3}), {}});
  sum.results.push_back({view(10, {2, 3}), -1});
  sum.attributes = {core::Attribute::of(1), core::Attribute::of(false), core::Attribute::of("a:1")};
  EXPECT_FALSE(has_collectives(p, catalog()));
  Program inside = p;
  for (Step& step : inside.body.steps) {
    if (step.kind == Step::Kind::kWhile) step.blocks[1].steps.push_back(sum);
  }
  EXPECT_REFUSED(inside, "is a collective, which cannot be in a branch or a loop");
  p.body.steps.push_back(sum);
  EXPECT_TRUE(verify(p, catalog()).ok()) << verify(p, catalog()).message();
  EXPECT_TRUE(has_collectives(p, catalog()));
}

TEST(Verify, RandomNumbersAndOthersAreTheProgramsOwn) {
  Program p = small();
  p.body.steps[0].origin = 4;
  EXPECT_REFUSED(p, "origin");
  p = small();
  p.gradients = {{0, 5}};
  EXPECT_REFUSED(p, "gradient");
  p = small();
  p.aliases = {{0, true, 0}};
  EXPECT_REFUSED(p, "a parameter but is no view of it");
  p = small();
  p.parameter_names.pop_back();
  EXPECT_REFUSED(p, "names");
  p = small();
  for (auto& operand : p.body.steps[0].operands) {
    if (operand.kind == Operand::Kind::kNumber) operand.number.argument = 3;
  }
  bool number = false;
  for (auto& operand : p.body.steps[0].operands) number |= operand.kind == Operand::Kind::kNumber;
  if (number) {
    EXPECT_REFUSED(p, "no call gives");
  }
}

// Bytes are changed at random (with a matching checksum). The program that is read from them is
// refused or valid, and it never exceeds the limits.
TEST(Program, SpoiledBytes) {
  std::mt19937_64 random(7);
  const std::string whole[] = {bytes_of(small()), bytes_of(controlled())};
  int refused = 0, good = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = whole[random() % 2];
    bytes.resize(bytes.size() - 9);
    for (std::uint64_t n = 1 + random() % 3; n > 0; --n) {
      const std::size_t at = random() % bytes.size();
      switch (random() % 3) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.erase(at, 1 + random() % 4);
          if (bytes.empty()) bytes = "x";
          break;
        default:
          bytes.insert(at, 1, static_cast<char>(random() % 32));
      }
    }
    std::uint64_t hash = 14695981039346656037ull;
    for (const char byte : bytes)
      hash = (hash ^ static_cast<std::uint8_t>(byte)) * 1099511628211ull;
    bytes += static_cast<char>(15 << 3 | 1);
    bytes.append(reinterpret_cast<const char*>(&hash), 8);
    const auto p = read(bytes);
    const bool ok = p.ok() && verify(*p, catalog()).ok();
    ++(ok ? good : refused);
    if (ok) {
      EXPECT_TRUE(*read(bytes_of(*p)) == *p);
    }
  }
  EXPECT_GT(refused, 10'000);
  EXPECT_GT(good, 100);
}

}  // namespace
}  // namespace teletensor::ops
