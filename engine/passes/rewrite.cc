#include "engine/passes/rewrite.h"

#include <utility>

namespace teletensor::passes {

using program::kNoValue;
using program::Program;
using program::Step;
using program::ValueId;
using program::View;

std::vector<std::uint32_t> count_uses(const Program& program) {
  std::vector<std::uint32_t> uses(program.values.size(), 0);
  for_each_use(program.body, [&](const View& view) { ++uses[view.value]; });
  for (const program::Rebind& rebind : program.rebinds) ++uses[rebind.value];
  return uses;
}

std::vector<bool> pinned_values(const Program& program) {
  std::vector<bool> pinned(program.values.size(), false);
  for_each_step(program.body, [&](const Step& step) {
    for (const program::StepResult& result : step.results) {
      if (result.overwrites < 0) continue;
      pinned[step.operands[static_cast<std::size_t>(result.overwrites)].view.value] = true;
      pinned[result.view.value] = true;
    }
    for (const program::Block& block : step.blocks) {
      for (const View& parameter : block.parameters) pinned[parameter.value] = true;
    }
  });
  for (const program::Rebind& rebind : program.rebinds) {
    pinned[rebind.value] = true;
    pinned[program.body.parameters[rebind.parameter].value] = true;
  }
  return pinned;
}

void substitute(Program& program, std::vector<ValueId> replacement) {
  const auto resolve = [&](ValueId value) {
    while (replacement[value] != kNoValue) value = replacement[value];
    return value;
  };
  for_each_use(program.body, [&](View& view) { view.value = resolve(view.value); });
  for (program::Rebind& rebind : program.rebinds) rebind.value = resolve(rebind.value);
}

}  // namespace teletensor::passes
