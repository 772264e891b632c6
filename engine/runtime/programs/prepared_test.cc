// Tests of the facts that are computed once for a program: loops in its blocks, and where values
// are last used.
#include "engine/runtime/programs/prepared.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/cpu_backend.h"

namespace teletensor::runtime {
namespace {

using core::DType;
using core::Geometry;
using passes::Unit;
using program::Block;
using program::Operand;
using program::Program;
using program::Step;
using program::StepOperand;
using program::ValueId;
using program::View;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

Devices host() {
  std::vector<std::unique_ptr<Device>> all;
  all.push_back(std::make_unique<Device>(
      std::make_unique<backends::cpu::CpuBackend>(backends::cpu::make_kernels(ops::catalog())),
      1u << 20, ops::catalog()));
  return Devices(std::move(all));
}

struct Maker {
  std::shared_ptr<Program> program = std::make_shared<Program>();

  View value(const Geometry& geometry, DType dtype = DType::kF32) {
    program->values.push_back({dtype, {}, geometry.numel()});
    return {static_cast<ValueId>(program->values.size() - 1), geometry};
  }
  View parameter(const Geometry& geometry) {
    program->parameter_names.emplace_back();
    return program->body.parameters.emplace_back(value(geometry));
  }
  static StepOperand of(const View& view) { return {Operand::Kind::kTensor, view, {}}; }
  View call(Block& block, std::string_view op, std::vector<View> operands, const View& out) {
    Step& step = block.steps.emplace_back();
    const ops::OpDef& def = *ops::catalog().find(op);
    step.op = ops::catalog().id(def);
    for (const View& view : operands) step.operands.push_back(of(view));
    for (std::size_t i = static_cast<std::size_t>(def.operand_parameters);
         i < def.parameters.size(); ++i) {
      step.attributes.push_back(def.parameters[i].fallback);
    }
    step.results.push_back({out, -1});
    return out;
  }
};

TEST(Prepared, AChainIsOneLoopAndItsInnerValuesDieInIt) {
  Maker m;
  const Geometry g({40, 1000});
  const View x = m.parameter(g), y = m.parameter(g);
  Block& body = m.program->body;
  const View a = m.call(body, "mul", {x, y}, m.value(g));
  const View p = m.call(body, "matmul", {x, {y.value, y.geometry.transpose(0, 1)}},
                        m.value(Geometry({40, 40})));
  const View b = m.call(body, "tanh", {a}, m.value(g));
  const View sum = m.call(body, "sum", {b}, m.value(Geometry(core::Dims())));
  body.results = {p, sum};
  const Devices devices = host();
  const Prepared prepared(m.program, ops::catalog(), devices);
  const Prepared::Facts& facts = prepared.facts(body);
  // The product and the loop do not wait for each other.
  EXPECT_THAT(facts.units, ElementsAre(Unit{{1}}, Unit{{0, 2, 3}}));
  EXPECT_THAT(facts.dying[0], IsEmpty());
  EXPECT_THAT(facts.dying[1], UnorderedElementsAre(x.value, y.value, a.value, b.value));
  // Equal layouts are the same object.
  EXPECT_EQ(facts.steps[0].operands[0], facts.steps[2].results[0]);
}

TEST(Prepared, LoopsEndBeforeBranchesAndBranchesHaveTheirOwn) {
  Maker m;
  const Geometry g({8, 8}), scalar{core::Dims()};
  const View x = m.parameter(g);
  Block& body = m.program->body;
  const View a = m.call(body, "sin", {x}, m.value(g));
  const View b = m.call(body, "exp", {a}, m.value(g));
  const View yes = m.call(body, "any", {b}, m.value(scalar, DType::kBool));
  Step choice;
  choice.kind = Step::Kind::kIf;
  choice.operands.push_back(Maker::of(yes));
  choice.blocks.resize(2);
  for (Block& block : choice.blocks) {
    const View c = m.call(block, "mul", {b, x}, m.value(g));
    block.results = {m.call(block, "neg", {c}, m.value(g))};
  }
  const View r = m.value(g);
  choice.results.push_back({r, -1});
  body.steps.push_back(std::move(choice));
  body.results = {m.call(body, "neg", {r}, m.value(g))};
  const Devices devices = host();
  const Prepared prepared(m.program, ops::catalog(), devices);
  const Prepared::Facts& facts = prepared.facts(body);
  EXPECT_THAT(facts.units, ElementsAre(Unit{{0, 1}}, Unit{{2}}, Unit{{3}}, Unit{{4}}));
  EXPECT_THAT(facts.dying[0], ElementsAre(a.value));
  // Values that the branches read are last used in the step that contains the branches, and so is
  // its condition.
  EXPECT_THAT(facts.dying[2], UnorderedElementsAre(x.value, b.value, yes.value));
  const Prepared::Facts& branch = prepared.facts(body.steps[3].blocks[0]);
  EXPECT_THAT(branch.units, ElementsAre(Unit{{0, 1}}));
  EXPECT_EQ(branch.dying[0].size(), 1u);
  EXPECT_EQ(branch.results.size(), 1u);
}

// The bytes of the facts contain every list that a unit, a step or a block adds.
TEST(Prepared, ItsBytesGrowWithEveryStep) {
  const auto made = [](int steps) {
    Maker m;
    const Geometry g({8, 8});
    View x = m.parameter(g);
    for (int i = 0; i < steps; ++i) {
      // The product runs apart, so each pair of steps makes two units.
      x = m.call(m.program->body, i % 2 == 0 ? "matmul" : "sin",
                 i % 2 == 0 ? std::vector<View>{x, x} : std::vector<View>{x}, m.value(g));
      m.program->body.results.push_back(x);
    }
    const Devices devices = host();
    const Prepared prepared(m.program, ops::catalog(), devices);
    const Prepared::Facts& facts = prepared.facts(m.program->body);
    const auto room = [](const auto& list) { return list.capacity() * sizeof(list[0]); };
    std::uint64_t all = room(facts.units) + room(facts.dying) + room(facts.steps) +
                        room(facts.results) + facts.never.capacity() / 8;
    for (const Unit& unit : facts.units) all += room(unit.steps);
    for (const auto& dying : facts.dying) all += room(dying);
    for (const Prepared::StepFacts& step : facts.steps) {
      all += room(step.operands) + room(step.results);
    }
    EXPECT_EQ(facts.units.size(), static_cast<std::size_t>(steps));
    EXPECT_GT(prepared.bytes(), all) << steps;
    return std::pair(prepared.bytes(), all);
  };
  // The other bytes are those of the interned layouts, which are the same in both programs.
  const auto [small_bytes, small_lists] = made(200);
  const auto [large_bytes, large_lists] = made(400);
  EXPECT_EQ(large_bytes - small_bytes, large_lists - small_lists);
}

}  // namespace
}  // namespace teletensor::runtime
