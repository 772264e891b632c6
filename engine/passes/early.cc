// Moves collectives to the earliest point at which their operands are ready, so that steps that do
// not need their results run meanwhile.
#include <algorithm>
#include <string_view>
#include <utility>

#include "engine/passes/passes.h"

namespace teletensor::passes {
namespace {

using program::Operand;
using program::Step;
using program::StepOperand;

// Ops that pack tensors for a collective; these may move with it. Other ops stay where they are,
// because the program's memory is planned for their order.
constexpr std::string_view kPacks[] = {"cat",        "stack", "reshape", "relayout",
                                       "contiguous", "clone", "cast",    "div"};

// A step can be moved to an earlier position, after the makers of its operands, if it overwrites
// nothing.
bool movable(const Step& step) {
  return step.kind == Step::Kind::kOp &&
         std::all_of(step.results.begin(), step.results.end(),
                     [](const program::StepResult& result) { return result.overwrites < 0; });
}

}  // namespace

Program early(Program program, const ops::Catalog& catalog) {
  std::vector<Step>& steps = program.body.steps;
  constexpr std::size_t kNowhere = ~std::size_t{0};
  std::vector<std::size_t> maker(program.values.size(), kNowhere);
  std::vector<bool> moves(steps.size(), false);
  for (std::size_t s = 0; s < steps.size(); ++s) {
    for (const program::StepResult& result : steps[s].results) maker[result.view.value] = s;
    moves[s] = movable(steps[s]) && catalog.at(steps[s].op).collective;
  }
  const auto packs = [&](const Step& step) {
    return movable(step) && !may_fail(step, program, catalog) &&
           std::find(std::begin(kPacks), std::end(kPacks), catalog.at(step.op).name) !=
               std::end(kPacks);
  };
  // Backwards, because the operands of a moved step are made by earlier steps.
  for (std::size_t s = steps.size(); s-- > 0;) {
    if (!moves[s]) continue;
    for (const StepOperand& operand : steps[s].operands) {
      if (operand.kind != Operand::Kind::kTensor) continue;
      const std::size_t from = maker[operand.view.value];
      if (from != kNowhere && packs(steps[from])) moves[from] = true;
    }
  }
  // after[s]: step s is placed after the first after[s] steps of the original order; 0 means at the
  // beginning. Collectives keep their relative order.
  std::vector<std::size_t> after(steps.size());
  std::size_t collective = 0;
  bool changed = false;
  for (std::size_t s = 0; s < steps.size(); ++s) {
    after[s] = s + 1;
    if (!moves[s]) continue;
    std::size_t first = 0;
    for (const StepOperand& operand : steps[s].operands) {
      if (operand.kind != Operand::Kind::kTensor) continue;
      const std::size_t from = maker[operand.view.value];
      if (from != kNowhere) first = std::max(first, after[from]);
    }
    if (catalog.at(steps[s].op).collective) collective = first = std::max(first, collective);
    changed |= first < s;
    after[s] = first;
  }
  if (!changed) return program;
  std::vector<std::size_t> order(steps.size());
  for (std::size_t s = 0; s < order.size(); ++s) order[s] = s;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return after[a] < after[b]; });
  std::vector<Step> sorted;
  sorted.reserve(steps.size());
  for (const std::size_t s : order) sorted.push_back(std::move(steps[s]));
  steps = std::move(sorted);
  return program;
}

}  // namespace teletensor::passes
