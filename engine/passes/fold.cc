// What literals decide: steps over literals alone, branches with a known condition.
#include <utility>

#include "engine/passes/passes.h"
#include "engine/passes/rewrite.h"

namespace teletensor::passes {
namespace {

using program::Block;
using program::kNoValue;
using program::Operand;
using program::Step;
using program::ValueId;
using program::View;

std::vector<const std::string*> literals_of(const Program& program) {
  std::vector<const std::string*> bytes(program.values.size(), nullptr);
  for (const program::Literal& literal : program.literals) bytes[literal.value] = &literal.bytes;
  return bytes;
}

bool whole(const View& view, const Program& program) {
  return view.geometry.offset == 0 && view.geometry.contiguous() &&
         view.geometry.numel() == program.values[view.value].elements;
}

// Replaces ifs with known conditions in a block; `replacement` gets what their results become.
// False when nothing changed.
bool inline_in(Block& block, const std::vector<const std::string*>& known, Program& program,
               std::vector<ValueId>& replacement) {
  bool changed = false;
  std::vector<Step> steps;
  for (Step& step : block.steps) {
    for (Block& inner : step.blocks) changed |= inline_in(inner, known, program, replacement);
    const auto known_bool = [&](const View& view) -> const std::string* {
      const std::string* bytes = known[view.value];
      return bytes != nullptr && bytes->size() == 1 && view.geometry.offset == 0 ? bytes : nullptr;
    };
    const auto becomes = [&](std::size_t result, const View& value) {
      // A result that is another view of its value stays a step's result.
      return value.geometry == step.results[result].view.geometry &&
             program.values[value.value] == program.values[step.results[result].view.value];
    };
    const Block* taken = nullptr;
    std::vector<View> results;
    if (step.kind == Step::Kind::kIf && !step.operands.empty() && step.blocks.size() == 2) {
      const std::string* condition = known_bool(step.operands[0].view);
      if (condition != nullptr) {
        taken = &step.blocks[(*condition)[0] != 0 ? 0 : 1];
        results = taken->results;
      }
    } else if (step.kind == Step::Kind::kWhile && step.blocks.size() == 2 &&
               step.blocks[0].results.size() == 1 && step.blocks[0].steps.empty()) {
      const std::string* condition = known_bool(step.blocks[0].results[0]);
      if (condition != nullptr && (*condition)[0] == 0) {
        static const Block kNothing;
        taken = &kNothing;
        for (const program::StepOperand& operand : step.operands) {
          if (operand.kind == Operand::Kind::kTensor) results.push_back(operand.view);
        }
      }
    }
    bool fits = taken != nullptr && results.size() == step.results.size();
    if (fits) fits = taken->parameters.empty();
    for (std::size_t r = 0; fits && r < results.size(); ++r) fits = becomes(r, results[r]);
    if (!fits) {
      steps.push_back(std::move(step));
      continue;
    }
    changed = true;
    for (std::size_t r = 0; r < results.size(); ++r) {
      replacement[step.results[r].view.value] = results[r].value;
    }
    for (const Step& inner : taken->steps) steps.push_back(inner);
  }
  block.steps = std::move(steps);
  return changed;
}

}  // namespace

Program inline_blocks(Program program) {
  const std::vector<const std::string*> known = literals_of(program);
  std::vector<ValueId> replacement(program.values.size(), kNoValue);
  if (inline_in(program.body, known, program, replacement)) {
    substitute(program, std::move(replacement));
  }
  return program;
}

Program fold(Program program, const Evaluate& evaluate, std::size_t most_bytes,
             const ops::Catalog& catalog) {
  std::vector<std::string> bytes(program.values.size());
  std::vector<bool> known(program.values.size(), false);
  for (const program::Literal& literal : program.literals) {
    bytes[literal.value] = literal.bytes;
    known[literal.value] = true;
  }
  const std::vector<bool> pinned = pinned_values(program);
  std::vector<Step> kept;
  for (Step& step : program.body.steps) {
    bool foldable = step.kind == Step::Kind::kOp && !step.results.empty() &&
                    !catalog.at(step.op).random && catalog.at(step.op).mutates.empty();
    std::vector<std::string_view> operands;
    for (const program::StepOperand& operand : step.operands) {
      operands.emplace_back();
      if (operand.kind != Operand::Kind::kTensor) continue;
      foldable = foldable && known[operand.view.value] && whole(operand.view, program);
      if (foldable) operands.back() = bytes[operand.view.value];
    }
    for (const program::StepResult& result : step.results) {
      const program::ValueType& type = program.values[result.view.value];
      foldable = foldable && result.overwrites < 0 && !pinned[result.view.value] &&
                 whole(result.view, program) &&
                 static_cast<std::size_t>(type.elements) * core::size_of(type.dtype) <= most_bytes;
    }
    std::vector<std::string> results;
    if (!foldable || !evaluate(step, program, operands, results) ||
        results.size() != step.results.size()) {
      kept.push_back(std::move(step));
      continue;
    }
    for (std::size_t r = 0; r < results.size(); ++r) {
      const ValueId value = step.results[r].view.value;
      program.literals.push_back({value, results[r]});
      bytes[value] = std::move(results[r]);
      known[value] = true;
    }
  }
  program.body.steps = std::move(kept);
  return program;
}

}  // namespace teletensor::passes
