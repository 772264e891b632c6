// Helpers for passes: iteration over all steps and uses of a program.
#pragma once

#include <vector>

#include "engine/program/program.h"

namespace teletensor::passes {

// Calls f(step) for every step; the steps of nested blocks follow the step that contains them.
template <class P, class F>
void for_each_step(P& block, F&& f) {
  for (auto& step : block.steps) {
    f(step);
    for (auto& inner : step.blocks) for_each_step(inner, f);
  }
}

// Calls f(view) for every view that is read: operands and results of blocks.
template <class B, class F>
void for_each_use(B& block, F&& f) {
  for (auto& step : block.steps) {
    for (auto& operand : step.operands) {
      if (operand.kind == program::Operand::Kind::kTensor) f(operand.view);
    }
    for (auto& inner : step.blocks) for_each_use(inner, f);
  }
  for (auto& result : block.results) f(result);
}

// By value: the number of reads by steps, results of blocks and rebinds.
std::vector<std::uint32_t> count_uses(const program::Program& program);
// By value: true if a step overwrites it, or if a parameter is rebound to it. Two such values must
// never be merged.
std::vector<bool> pinned_values(const program::Program& program);
// Replaces every use of value v by replacement[v], unless that is kNoValue. Geometries stay the
// same.
void substitute(program::Program& program, std::vector<program::ValueId> replacement);

}  // namespace teletensor::passes
