// Tests each pass on a small graph by comparing the printed program before and after.
#include "engine/passes/passes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "engine/ops/verify.h"
#include "engine/passes/loop.h"
#include "engine/passes/plan.h"

namespace teletensor::passes {
namespace {

using core::Attribute;
using core::Attributes;
using core::DType;
using core::Geometry;
using core::Number;
using program::Step;
using program::StepOperand;
using program::ValueId;
using program::View;

// Builds programs step by step; the ops' own inference lays out the results.
class Maker {
 public:
  Maker() { program_.name = "f"; }
  View parameter(const char* name, const core::Dims& shape, DType dtype = DType::kF32) {
    const View view = value(dtype, Geometry(shape));
    program_.body.parameters.push_back(view);
    program_.parameter_names.push_back(name);
    return view;
  }
  View literal(DType dtype, const core::Dims& shape, std::string bytes) {
    const View view = value(dtype, Geometry(shape));
    program_.literals.push_back({view.value, std::move(bytes)});
    return view;
  }
  View call(const char* name, std::vector<StepOperand> operands, Attributes attributes = {}) {
    Step& step = program_.body.steps.emplace_back(make(name, operands, attributes));
    return step.results[0].view;
  }
  // The result replaces the value of operand 0.
  View inplace(const char* name, std::vector<StepOperand> operands, Attributes attributes = {}) {
    Step& step = program_.body.steps.emplace_back(make(name, operands, attributes));
    step.results[0].overwrites = 0;
    return step.results[0].view;
  }
  Step make(const char* name, const std::vector<StepOperand>& operands,
            const Attributes& given = {}) {
    const ops::OpDef& op = *ops::catalog().find(name);
    Step step;
    step.op = ops::catalog().id(op);
    step.attributes = given;
    for (std::size_t p = static_cast<std::size_t>(op.operand_parameters) + given.size();
         p < op.parameters.size(); ++p) {
      step.attributes.push_back(op.parameters[p].fallback);
    }
    std::vector<core::Layout> layouts(operands.size());
    std::vector<ops::OperandInfo> infos(operands.size());
    for (std::size_t i = 0; i < operands.size(); ++i) {
      step.operands.push_back(operands[i]);
      if (operands[i].kind == program::Operand::Kind::kTensor) {
        layouts[i] = {program_.values[operands[i].view.value].dtype, {}, operands[i].view.geometry};
        infos[i].layout = &layouts[i];
      } else if (operands[i].kind == program::Operand::Kind::kNumber) {
        infos[i].number = &operands[i].number;
      }
    }
    ops::InferContext context{.op = op.name,
                              .operands = infos,
                              .counts = {},
                              .attributes = step.attributes,
                              .device = {},
                              .results = {}};
    EXPECT_TRUE(op.infer(context).ok()) << name;
    for (const core::Layout& layout : context.results) {
      step.results.push_back({value(layout.dtype, layout.geometry), -1});
    }
    return step;
  }
  void returns(std::vector<View> views) { program_.body.results = std::move(views); }
  void rebind(const View& parameter, const View& value) {
    for (std::uint32_t p = 0; p < program_.body.parameters.size(); ++p) {
      if (program_.body.parameters[p] == parameter) program_.rebinds.push_back({p, value.value});
    }
  }
  View value(DType dtype, const Geometry& geometry) {
    program_.values.push_back({dtype, {}, geometry.numel()});
    return {static_cast<ValueId>(program_.values.size() - 1), geometry};
  }
  Program& program() { return program_; }

 private:
  Program program_;
};

StepOperand t(const View& view) {
  StepOperand operand;
  operand.kind = program::Operand::Kind::kTensor;
  operand.view = view;
  return operand;
}
StepOperand n(double x) {
  StepOperand operand;
  operand.kind = program::Operand::Kind::kNumber;
  operand.number = Number::of_float(x);
  return operand;
}
View transposed(const View& view) { return {view.value, view.geometry.transpose(0, 1)}; }

TEST(Printer, ShowsViewsAttributesRebindsAndLines) {
  Maker m;
  const View w = m.parameter("w", {2, 3}), x = m.parameter("x", {3});
  const View y = m.call("add", {t(transposed(w)), n(0.5)}, {Attribute::of(2.0)});
  m.program().origins.push_back("train.py:3: y = w.t() + 1");
  m.program().body.steps.back().origin = 1;
  const View z = m.inplace("mul", {t(w), t(x)});
  m.rebind(w, z);
  m.returns({y, z});
  EXPECT_EQ(to_string(m.program()),
            "program f(w: float32[2, 3], x: float32[3]):\n"
            "  v2: float32[3, 2 | 1, 3] = add(w[3, 2 | 1, 3], 0.5, alpha=2.0)"
            "  # train.py:3: y = w.t() + 1\n"
            "  v3: float32[2, 3] = mul(mut w, x)\n"
            "  w := v3\n"
            "  return v2[3, 2 | 1, 3], v3\n");
}

TEST(Dce, LeavesOutWhatNobodyReadsButNotWhatMayFail) {
  Maker m;
  const View x = m.parameter("x", {4}), i = m.parameter("i", {4}, DType::kI64);
  m.call("exp", {t(m.call("sin", {t(x)}))});
  m.call("floor_divide", {t(i), t(i)});
  m.returns({m.call("cos", {t(x)})});
  EXPECT_EQ(to_string(dce(m.program())),
            "program f(x: float32[4], i: int64[4]):\n"
            "  v4: int64[4] = floor_divide(i, i)\n"
            "  v5: float32[4] = cos(x)\n"
            "  return v5\n");
}

TEST(Cse, MergesEqualStepsButNotZerosOfTwoSigns) {
  Maker m;
  const View x = m.parameter("x", {4});
  const View a = m.call("mul", {t(x), n(0.0)}), b = m.call("mul", {t(x), n(0.0)});
  const View c = m.call("mul", {t(x), n(-0.0)});
  m.returns({m.call("add", {t(a), t(b)}), c});
  EXPECT_EQ(to_string(cse(m.program())),
            "program f(x: float32[4]):\n"
            "  v1: float32[4] = mul(x, 0.0)\n"
            "  v3: float32[4] = mul(x, -0.0)\n"
            "  v4: float32[4] = add(v1, v1)\n"
            "  return v4, v3\n");
}

TEST(Cse, ANumberOfTheCallIsNoConstantOfItsExample) {
  Maker m;
  const View x = m.parameter("x", {4});
  m.program().numbers.push_back(Number::of_float(0.5));
  StepOperand given = n(0.5);
  given.number.argument = 1;
  m.returns({m.call("mul", {t(x), n(0.5)}), m.call("mul", {t(x), given})});
  EXPECT_EQ(cse(m.program()), m.program());
}

TEST(Cse, KeepsRandomStepsAndValuesThatAreOverwritten) {
  Maker m;
  const View x = m.parameter("x", {4});
  const View a = m.call("sin", {t(x)}), b = m.call("sin", {t(x)});
  m.returns({m.inplace("add", {t(a), n(1)}), b});
  EXPECT_EQ(cse(m.program()), m.program());
}

TEST(Peephole, CastsCopiesAndDoubleNegation) {
  Maker m;
  const View x = m.parameter("x", {2, 3});
  const View wide = m.call("cast", {t(x)}, {Attribute::of(DType::kF64)});
  const View back = m.call("cast", {t(wide)}, {Attribute::of(DType::kF32)});
  const View copy = m.call("contiguous", {t(back)});
  const View twice = m.call("neg", {t(m.call("neg", {t(copy)}))});
  const View half = m.call("cast", {t(twice)}, {Attribute::of(DType::kF16)});
  // The cast to f16 loses bits, so the cast back to f32 stays.
  const View other = m.call("cast", {t(half)}, {Attribute::of(DType::kF32)});
  m.returns({m.call("exp", {t(other)})});
  EXPECT_EQ(to_string(peephole(m.program())),
            "program f(x: float32[2, 3]):\n"
            "  v6: float16[2, 3] = cast(x, dtype=float16)\n"
            "  v7: float32[2, 3] = cast(v6, dtype=float32)\n"
            "  v8: float32[2, 3] = exp(v7)\n"
            "  return v8\n");
}

TEST(Peephole, AReshapeOfARowMajorValueIsAView) {
  Maker m;
  const View x = m.parameter("x", {2, 3});
  const View y = m.call("reshape", {t(x)}, {Attribute::of(core::Dims{6})});
  const View z = m.call("reshape", {t(transposed(x))}, {Attribute::of(core::Dims{6})});
  m.returns({m.call("exp", {t(y)}), m.call("exp", {t(z)})});
  EXPECT_EQ(to_string(peephole(m.program())),
            "program f(x: float32[2, 3]):\n"
            "  v2: float32[6] = reshape(x[3, 2 | 1, 3], size=[6])\n"
            "  v3: float32[6] = exp(x)\n"
            "  v4: float32[6] = exp(v2)\n"
            "  return v3, v4\n");
}

TEST(Peephole, AReturnedCopyOfAParameterStaysOne) {
  Maker m;
  const View x = m.parameter("x", {2, 3});
  const View copy = m.call("clone", {t(x)});
  const View second = m.call("clone", {t(m.call("sin", {t(x)}))});
  m.returns({copy, second});
  EXPECT_EQ(to_string(peephole(m.program())),
            "program f(x: float32[2, 3]):\n"
            "  v1: float32[2, 3] = clone(x)\n"
            "  v2: float32[2, 3] = sin(x)\n"
            "  return v1, v2\n");
}

TEST(Fold, WhatIsMadeOfNothingFoldsWithItsReader) {
  Maker m;
  const View x = m.parameter("x", {2});
  const View zeros = m.call("full", {n(0)}, {Attribute::of(core::Dims{2})});
  const View ones = m.call("full", {n(1)}, {Attribute::of(core::Dims{2})});
  m.returns({m.call("add", {t(x), t(m.call("cos", {t(zeros)}))}), ones});
  std::vector<std::string> evaluated;
  const Program folded =
      optimize(m.program(), ops::catalog(),
               [&](const Step& step, const Program&, std::span<const std::string_view>,
                   std::vector<std::string>& results) {
                 evaluated.push_back(ops::catalog().at(step.op).name);
                 results.emplace_back(8, '\0');
                 return true;
               });
  EXPECT_EQ(evaluated, (std::vector<std::string>{"full", "cos"}));
  EXPECT_EQ(to_string(folded),
            "program f(x: float32[2]):\n"
            "  v3: float32 x 2 = literal\n"
            "  v2: float32[2] = full(1.0, size=[2])\n"
            "  v4: float32[2] = add(x, v3)\n"
            "  return v4, v2\n");
}

TEST(Fold, StepsOverLiteralsBecomeLiterals) {
  Maker m;
  const float two = 2;
  const View a =
      m.literal(DType::kF32, {1}, std::string(reinterpret_cast<const char*>(&two), sizeof two));
  const View x = m.parameter("x", {1});
  const View b = m.call("neg", {t(a)});
  m.returns({m.call("add", {t(x), t(m.call("neg", {t(b)}))})});
  int evaluated = 0;
  const Program folded =
      fold(m.program(), [&](const Step&, const Program&, std::span<const std::string_view> operands,
                            std::vector<std::string>& results) {
        ++evaluated;
        float value;
        std::memcpy(&value, operands[0].data(), sizeof value);
        value = -value;
        results.emplace_back(reinterpret_cast<const char*>(&value), sizeof value);
        return true;
      });
  EXPECT_EQ(evaluated, 2);
  EXPECT_EQ(to_string(folded),
            "program f(x: float32[1]):\n"
            "  v0: float32 x 1 = literal\n"
            "  v2: float32 x 1 = literal\n"
            "  v3: float32 x 1 = literal\n"
            "  v4: float32[1] = add(x, v3)\n"
            "  return v4\n");
}

TEST(Inline, AKnownConditionChoosesItsBranch) {
  Maker m;
  const View x = m.parameter("x", {4});
  const View yes = m.literal(DType::kBool, {}, std::string(1, '\1'));
  Step branch;
  branch.kind = Step::Kind::kIf;
  branch.operands.push_back(t(yes));
  for (const char* op : {"sin", "cos"}) {
    program::Block& block = branch.blocks.emplace_back();
    block.steps.push_back(m.make(op, {t(x)}));
    block.results.push_back(block.steps.back().results[0].view);
  }
  branch.results.push_back({m.value(DType::kF32, Geometry({4})), -1});
  m.program().body.steps.push_back(branch);
  m.returns({branch.results[0].view});
  EXPECT_EQ(to_string(m.program()),
            "program f(x: float32[4]):\n"
            "  v1: bool x 1 = literal\n"
            "  v4: float32[4] = if v1:\n"
            "    then():\n"
            "      v2: float32[4] = sin(x)\n"
            "      yield v2\n"
            "    else():\n"
            "      v3: float32[4] = cos(x)\n"
            "      yield v3\n"
            "  return v4\n");
  EXPECT_EQ(to_string(optimize(m.program())),
            "program f(x: float32[4]):\n"
            "  v1: bool x 1 = literal\n"
            "  v2: float32[4] = sin(x)\n"
            "  return v2\n");
}

// Inside a branch the write affects a value of the branch only. Moved into the body, it would
// change the caller's tensor without a rebind.
TEST(Inline, ABranchThatOverwritesAParameterStays) {
  Maker m;
  const View x = m.parameter("x", {4});
  const View yes = m.literal(DType::kBool, {}, std::string(1, '\1'));
  Step branch;
  branch.kind = Step::Kind::kIf;
  branch.operands.push_back(t(yes));
  for (const bool writes : {true, false}) {
    program::Block& block = branch.blocks.emplace_back();
    Step& step = block.steps.emplace_back(m.make("neg", {t(x)}));
    if (writes) step.results[0].overwrites = 0;
    block.results.push_back(step.results[0].view);
  }
  branch.results.push_back({m.value(DType::kF32, Geometry({4})), -1});
  m.program().body.steps.push_back(branch);
  m.returns({branch.results[0].view, x});
  m.program().aliases.push_back({1, true, 0});
  ASSERT_TRUE(ops::verify(m.program(), ops::catalog()).ok());
  const Program better = optimize(m.program());
  EXPECT_TRUE(ops::verify(better, ops::catalog()).ok());
  EXPECT_EQ(to_string(better), to_string(m.program()));
}

TEST(Dce, ARecordThatNobodyReadsIsNotKept) {
  Maker m;
  const View x = m.parameter("x", {4}), count = m.parameter("n", {}, DType::kI64);
  Step loop;
  loop.kind = Step::Kind::kWhile;
  for (const View& view : {count, x}) {
    loop.operands.push_back(t(view));
    loop.results.push_back({m.value(m.program().values[view.value].dtype, view.geometry), -1});
  }
  loop.counts.push_back(0);
  loop.counts.push_back(1);
  for (int i = 0; i < 2; ++i) loop.results.push_back({m.value(DType::kU8, Geometry({0})), -1});
  loop.results.push_back({m.value(DType::kI64, Geometry()), -1});
  const View record = loop.results[3].view;
  for (const bool body : {false, true}) {
    program::Block& block = loop.blocks.emplace_back();
    for (const View& view : {count, x}) {
      block.parameters.push_back(m.value(m.program().values[view.value].dtype, view.geometry));
    }
    if (body) {
      block.results = block.parameters;
    } else {
      block.steps.push_back(m.make("lt", {t(block.parameters[0]), n(3)}));
      block.results = {block.steps[0].results[0].view};
    }
  }
  m.program().body.steps.push_back(loop);
  Step past;
  past.kind = Step::Kind::kPast;
  past.operands = {};
  past.operands.push_back(t(record));
  past.operands.push_back(t(count));
  past.results.push_back({m.value(DType::kF32, Geometry({4})), -1});
  m.program().body.steps.push_back(past);
  m.returns({past.results[0].view});
  ASSERT_TRUE(ops::verify(m.program(), ops::catalog()).ok());
  const Program better = dce(m.program());
  EXPECT_TRUE(ops::verify(better, ops::catalog()).ok());
  const Step& kept = better.body.steps[0];
  ASSERT_EQ(kept.counts.size(), 1u);
  EXPECT_EQ(kept.counts[0], 1u);
  ASSERT_EQ(kept.results.size(), 4u);
  EXPECT_EQ(kept.results[2].view.value, record.value);
  m.returns({});
  const Program less = dce(m.program());
  EXPECT_EQ(less.body.steps.size(), 1u);  // the loop: it may not terminate
  EXPECT_TRUE(less.body.steps[0].counts.empty());
  EXPECT_EQ(less.body.steps[0].results.size(), 2u);
}

using Units = std::vector<Unit>;
Units fused(const Program& program) { return fuse(fuse_steps(program)); }

TEST(Fuse, AChainWithABroadcastAndASum) {
  Maker m;
  const View a = m.parameter("a", {64, 32}), b = m.parameter("b", {32});
  const View x = m.call("mul", {t(m.call("sin", {t(a)})), t(b)});
  const View y = m.call("tanh", {t(m.call("add", {t(x), t(a)}))});
  m.returns({m.call("sum", {t(y)}), m.call("matmul", {t(y), t(b)})});
  EXPECT_EQ(fused(m.program()), (Units{{{0, 1, 2, 3, 4}}, {{5}}}));
}

TEST(Printer, ShowsWhichStepsAreALoop) {
  Maker m;
  const View a = m.parameter("a", {64, 32}), b = m.parameter("b", {32});
  const View y = m.call("tanh", {t(m.call("mul", {t(a), t(b)}))});
  m.returns({m.call("matmul", {t(y), t(b)})});
  EXPECT_EQ(to_string(m.program(), ops::catalog(), true),
            "program f(a: float32[64, 32], b: float32[32]):\n"
            "  loop:\n"
            "    v2: float32[64, 32] = mul(a, b)\n"
            "    v3: float32[64, 32] = tanh(v2)\n"
            "  v4: float32[64] = matmul(v3, b)\n"
            "  return v4\n");
}

TEST(Fuse, AReaderInAnotherLayoutEndsTheLoop) {
  Maker m;
  const View a = m.parameter("a", {8, 8});
  const View x = m.call("sin", {t(a)});
  const View y = m.call("add", {t(x), t(transposed(x))});
  m.returns({m.call("exp", {t(y)})});
  EXPECT_EQ(fused(m.program()), (Units{{{0}}, {{1, 2}}}));
}

TEST(Fuse, TwoChainsThatMeetAreOneLoop) {
  Maker m;
  const View a = m.parameter("a", {8}), b = m.parameter("b", {8});
  const View x = m.call("sin", {t(a)}), y = m.call("cos", {t(b)});
  // The product is listed between the steps of the loop but is not part of the loop.
  const View p = m.call("matmul", {t(a), t(b)});
  m.returns({m.call("add", {t(x), t(y)}), p});
  EXPECT_EQ(fused(m.program()), (Units{{{2}}, {{0, 1, 3}}}));
}

TEST(Fuse, ReadersOfAnOverwrittenValueComeFirst) {
  Maker m;
  const View a = m.parameter("a", {8}), w = m.parameter("w", {8});
  m.call("mul", {t(w), t(a)});
  const View w2 = m.inplace("exp", {t(w)});
  m.returns({m.call("matmul", {t(w2), t(a)})});
  EXPECT_EQ(fused(m.program()), (Units{{{0}}, {{1}}, {{2}}}));
}

// The open loop has to end before the last product in any case. Ending it before the softmax frees
// `x` earlier.
TEST(Fuse, WhatIsMadeForTheNextStepComesAfterTheLoopsThatEndBeforeThat) {
  Maker m;
  const View a = m.parameter("a", {8, 8});
  const View x = m.call("matmul", {t(a), t(a)});
  const View y = m.call("neg", {t(x)});
  const View z = m.call("softmax", {t(a)}, {Attribute::of(std::int64_t{1}), Attribute()});
  const View r = m.call("relu", {t(z)});
  m.returns({m.call("matmul", {t(y), t(r)})});
  EXPECT_EQ(fused(m.program()), (Units{{{0}}, {{1}}, {{2}}, {{3}}, {{4}}}));
}

TEST(Fuse, LoopsAreBounded) {
  Maker m;
  View x = m.parameter("x", {8});
  for (int i = 0; i < 100; ++i) x = m.call("sin", {t(x)});
  m.returns({x});
  std::size_t steps = 0;
  for (const Unit& unit : fused(m.program())) {
    EXPECT_LE(unit.steps.size(), kMaxLoopSteps);
    steps += unit.steps.size();
  }
  EXPECT_EQ(steps, 100u);
}

TEST(Plan, ValuesInsideALoopHaveNoMemoryAndOthersShareIt) {
  Maker m;
  const View a = m.parameter("a", {256, 256});
  View x = a;
  for (int i = 0; i < 6; ++i) {
    x = m.call("matmul", {t(x), t(a)});
    x = m.call("tanh", {t(m.call("sin", {t(x)}))});
  }
  m.returns({x});
  const std::vector<Unit> units = fused(m.program());
  const MemoryPlan plan = plan_memory(m.program(), units);
  const std::uint64_t one = 256 * 256 * 4;
  EXPECT_EQ(plan.results, one);
  EXPECT_EQ(plan.peak, 2 * one);
  EXPECT_EQ(plan.offsets[a.value], MemoryPlan::kNone);
  EXPECT_EQ(plan.offsets[m.program().body.steps[1].results[0].view.value], MemoryPlan::kNone);
}

TEST(Plan, AnInPlaceResultTakesItsOperandsPlace) {
  Maker m;
  const View a = m.parameter("a", {64});
  const View b = m.call("matmul", {t(m.call("diag", {t(a)})), t(a)});
  const View c = m.inplace("add", {t(b), n(1)});
  m.returns({c});
  const MemoryPlan plan = plan_memory(m.program(), fused(m.program()));
  EXPECT_EQ(plan.offsets[b.value], plan.offsets[c.value]);
}

TEST(Plan, WhatIsHeldWhileEachUnitRuns) {
  Maker m;
  const View a = m.parameter("a", {64, 64}), w = m.parameter("w", {64, 64});
  const View x = m.call("matmul", {t(a), t(a)});
  const View y = m.call("sin", {t(x)});  // overwrites x
  const View z = m.call("matmul", {t(y), t(y)});
  m.rebind(w, m.inplace("add", {t(w), t(z)}));
  m.returns({z});
  const std::uint64_t one = 64 * 64 * 4;
  EXPECT_EQ(plan_memory(m.program(), fused(m.program())).held,
            (std::vector<std::uint64_t>{one, one, 2 * one, one}));
}

constexpr Effort kAnyEffort = {.time = 1e9, .worth = 1e9, .least = 1};

TEST(Early, CollectivesAndTheirOperandsComeBeforeWhatDoesNotNeedThem) {
  Maker m;
  const View x = m.parameter("x", {4}), w = m.parameter("w", {4});
  const auto sum = [&](const View& operand) {
    return m.call("all_reduce", {t(operand)},
                  {Attribute::of(1), Attribute::of(false), Attribute::of("a.py:1")});
  };
  const View a = m.call("sin", {t(x)}), b = m.call("cos", {t(a)});
  const View written = m.inplace("mul", {t(w), t(b)});
  const View last = m.call("exp", {t(written)});
  const View packed = m.call("clone", {t(a)}), sum_a = sum(packed);
  const View sum_last = sum(last), sum_x = sum(x);
  m.rebind(w, written);
  m.returns({sum_a, sum_last, sum_x});
  const Program after = early(m.program());
  EXPECT_EQ(to_string(after),
            "program f(x: float32[4], w: float32[4]):\n"
            "  v2: float32[4] = sin(x)\n"
            "  v6: float32[4] = clone(v2)\n"
            "  v7: float32[4] = all_reduce(v6, group=1, average=False, site='a.py:1')\n"
            "  v3: float32[4] = cos(v2)\n"
            "  v4: float32[4] = mul(mut w, v3)\n"
            "  v5: float32[4] = exp(v4)\n"
            "  v8: float32[4] = all_reduce(v5, group=1, average=False, site='a.py:1')\n"
            "  v9: float32[4] = all_reduce(x, group=1, average=False, site='a.py:1')\n"
            "  w := v4\n"
            "  return v7, v8, v9\n");
  EXPECT_EQ(early(after), after);
  EXPECT_TRUE(ops::verify(after, ops::catalog()).ok());
}

TEST(Collectives, NoneIsLeftOutOrMerged) {
  Maker m;
  const View x = m.parameter("x", {4});
  for (int i = 0; i < 2; ++i) {
    m.call("all_reduce", {t(x)}, {Attribute::of(1), Attribute::of(false), Attribute::of("a.py:1")});
  }
  m.returns({m.call("sin", {t(x)})});
  EXPECT_EQ(optimize(m.program()).body.steps.size(), 3u);
}

TEST(Rematerialise, WhatWaitsAtThePeakIsMadeAgainInTheLoopThatReadsIt) {
  Maker m;
  const View x = m.parameter("x", {64, 64}), w = m.parameter("w", {64, 64});
  const View h = m.call("matmul", {t(x), t(w)});
  const View a = m.call("tanh", {t(m.call("sin", {t(h)}))});
  const View y = m.call("matmul", {t(m.call("matmul", {t(a), t(w)})), t(w)});
  m.returns({m.call("mul", {t(m.call("mul", {t(a), t(h)})), t(y)})});
  const Program lighter = rematerialise(m.program(), ops::catalog(), kAnyEffort);
  ASSERT_TRUE(ops::verify(lighter, ops::catalog()).ok());
  EXPECT_EQ(to_string(lighter, ops::catalog(), true),
            "program f(x: float32[64, 64], w: float32[64, 64]):\n"
            "  v2: float32[64, 64] = matmul(x, w)\n"
            "  loop:\n"
            "    v3: float32[64, 64] = sin(v2)\n"
            "    v4: float32[64, 64] = tanh(v3)\n"
            "  v5: float32[64, 64] = matmul(v4, w)\n"
            "  v6: float32[64, 64] = matmul(v5, w)\n"
            "  loop:\n"
            "    v9: float32[64, 64] = sin(v2)\n"
            "    v10: float32[64, 64] = tanh(v9)\n"
            "    v7: float32[64, 64] = mul(v10, v2)\n"
            "    v8: float32[64, 64] = mul(v7, v6)\n"
            "  return v8\n");
  const auto most = [](const Program& program) {
    const std::vector<std::uint64_t> held = plan_memory(program, fused(program)).held;
    return *std::max_element(held.begin(), held.end());
  };
  EXPECT_EQ(most(m.program()), 4u * 64 * 64 * 4);
  EXPECT_EQ(most(lighter), 3u * 64 * 64 * 4);
  EXPECT_EQ(rematerialise(lighter, ops::catalog(), kAnyEffort), lighter);
}

TEST(Rematerialise, OnlyOfWhatIsThereAnyway) {
  for (const bool overwritten : {false, true}) {
    Maker m;
    const View x = m.parameter("x", {64, 64}), c = m.parameter("c", {64, 64});
    const View h = overwritten ? c : m.call("matmul", {t(x), t(x)});
    const View a = m.call("sin", {t(h)});
    View y = m.call("matmul", {t(a), t(x)});
    if (overwritten) m.rebind(c, m.inplace("add", {t(c), n(1)}));
    y = m.call("matmul", {t(m.call("matmul", {t(y), t(x)})), t(x)});
    m.returns({m.call("add", {t(y), t(a)})});
    EXPECT_EQ(rematerialise(m.program(), ops::catalog(), kAnyEffort), m.program()) << overwritten;
  }
}

TEST(Rematerialise, NeitherRandomNumbersNorWhatTakesLong) {
  for (const char* op : {"bernoulli", "lgamma"}) {
    Maker m;
    const View x = m.parameter("x", {64, 64});
    const View a = m.call(op, {t(x)});
    View y = m.call("matmul", {t(a), t(x)});
    y = m.call("matmul", {t(m.call("matmul", {t(y), t(x)})), t(x)});
    m.returns({m.call("add", {t(y), t(a)})});
    EXPECT_EQ(rematerialise(m.program(), ops::catalog(), kAnyEffort), m.program()) << op;
  }
}

TEST(Rematerialise, NotWhereItTakesTooMuchOfTheTime) {
  Maker m;
  const View x = m.parameter("x", {64, 64});
  const View a = m.call("sin", {t(x)});
  const View y = m.call("matmul", {t(m.call("matmul", {t(a), t(x)})), t(x)});
  m.returns({m.call("add", {t(y), t(a)})});
  EXPECT_NE(rematerialise(m.program(), ops::catalog(), {.time = 0.5, .worth = 1, .least = 1}),
            m.program());
  EXPECT_EQ(rematerialise(m.program(), ops::catalog(), {.time = 0.02, .worth = 1, .least = 1}),
            m.program());
}

// Compared with products of the same values, an elementwise op costs more on a GPU than on a CPU
// core, so on the GPU the same step is not worth repeating.
TEST(Rematerialise, ByTheTimesOfTheDevice) {
  for (const bool on_gpu : {false, true}) {
    Maker m;
    const View x = m.parameter("x", {2048, 2048});
    const View a = m.call("sin", {t(x)});
    const View y = m.call("matmul", {t(m.call("matmul", {t(a), t(x)})), t(x)});
    m.returns({m.call("add", {t(y), t(a)})});
    Program program = m.program();
    for (program::ValueType& value : program.values) {
      if (on_gpu) value.device = {core::DeviceKind::kCuda, 0};
    }
    const Program after =
        rematerialise(program, ops::catalog(), {.time = 0.03, .worth = 1, .least = 1});
    EXPECT_EQ(after == program, on_gpu);
  }
}

}  // namespace
}  // namespace teletensor::passes
