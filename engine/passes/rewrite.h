// What passes share: walks over all steps and uses of a program.
#pragma once

#include <vector>

#include "engine/program/program.h"

namespace teletensor::passes {

// Calls f(step) for every step, those of inner blocks after the step that has them.
template <class P, class F>
void for_each_step(P& block, F&& f) {
  for (auto& step : block.steps) {
    f(step);
    for (auto& inner : step.blocks) for_each_step(inner, f);
  }
}

// Calls f(view) for every view that is read: operands, and what blocks return.
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

// By value: how often it is read, by steps, blocks' results and rebinds.
std::vector<std::uint32_t> count_uses(const program::Program& program);
// By value: is it overwritten by a step, or what a parameter is rebound to? Two such values must
// never become one.
std::vector<bool> pinned_values(const program::Program& program);
// Every view of value v becomes one of replacement[v], where that is not kNoValue. Geometries stay.
void substitute(program::Program& program, std::vector<program::ValueId> replacement);

}  // namespace teletensor::passes
