// The passes dce, cse and peephole, which simplify without evaluating anything.
#include <algorithm>
#include <bit>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "engine/passes/passes.h"
#include "engine/passes/rewrite.h"

namespace teletensor::passes {
namespace {

using core::DType;
using program::Block;
using program::kNoValue;
using program::Operand;
using program::Step;
using program::StepOperand;
using program::ValueId;
using program::View;

// Ops that are not elementwise and cannot fail by their data.
constexpr std::string_view kTotal[] = {
    "clone",      "contiguous",   "cast",          "copy",   "fill",    "reshape",     "relayout",
    "sum",        "mean",         "prod",          "amax",   "amin",    "any",         "all",
    "var",        "std",          "logsumexp",     "argmax", "argmin",  "cumsum",      "cumprod",
    "matmul",     "linear",       "bmm",           "mm",     "softmax", "log_softmax", "layer_norm",
    "batch_norm", "zeros",        "ones",          "full",   "arange",  "linspace",    "eye",
    "cat",        "stack",        "flip",          "roll",   "sort",    "topk",        "tril",
    "triu",       "index_region", "update_region", "conv",   "rand",    "randn"};
// Elementwise ops that fail if an integer divisor is zero.
constexpr std::string_view kDivisions[] = {"div", "floor_divide", "remainder", "fmod"};

bool contains(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool integral(const Step& step, const Program& program) {
  for (const StepOperand& operand : step.operands) {
    if (operand.kind == Operand::Kind::kTensor &&
        core::is_inexact(program.values[operand.view.value].dtype)) {
      return false;
    }
  }
  return true;
}

// Removes the records of a loop that are never read, and the number of rounds if only removed
// records needed it. Returns false if all are kept.
bool forget_records(Step& step, const std::vector<std::uint32_t>& uses) {
  const std::size_t first = step.operands.size(), records = step.counts.size();
  const auto read = [&](std::size_t i) { return uses[step.results[first + i].view.value] > 0; };
  std::size_t kept = 0;
  for (std::size_t i = 0; i < records; ++i) {
    const bool last = i + 1 == records && kept == 0 && read(records);
    if (!read(i) && !last) continue;
    step.counts[kept] = step.counts[i];
    step.results[first + kept] = step.results[first + i];
    ++kept;
  }
  if (kept == records) return false;
  step.counts.resize(kept);
  if (kept > 0) step.results[first + kept] = step.results[first + records];
  step.results.resize(first + kept + (kept > 0));
  return true;
}

// Removes dead steps of a block, last step first, so that steps that only dead steps read are
// removed too.
bool sweep(Block& block, std::vector<std::uint32_t>& uses, const Program& program,
           const ops::Catalog& catalog) {
  bool changed = false;
  std::vector<bool> dead(block.steps.size(), false);
  for (std::size_t i = block.steps.size(); i-- > 0;) {
    Step& step = block.steps[i];
    bool read = step.results.empty();
    for (const program::StepResult& result : step.results) read |= uses[result.view.value] > 0;
    if (read || may_fail(step, program, catalog)) {
      if (step.kind == Step::Kind::kWhile && !step.counts.empty()) {
        changed |= forget_records(step, uses);
      }
      for (Block& inner : step.blocks) changed |= sweep(inner, uses, program, catalog);
      continue;
    }
    dead[i] = changed = true;
    for (const StepOperand& operand : step.operands) {
      if (operand.kind == Operand::Kind::kTensor) --uses[operand.view.value];
    }
    for (const Block& inner : step.blocks) {
      for_each_use(inner, [&](const View& view) { --uses[view.value]; });
    }
  }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < block.steps.size(); ++i) {
    if (dead[i]) continue;
    if (kept != i) block.steps[kept] = std::move(block.steps[i]);
    ++kept;
  }
  block.steps.resize(kept);
  return changed;
}

// Compares bits, because 0.0 == -0.0.
bool same_bits(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

bool same_operand(const StepOperand& a, const StepOperand& b) {
  if (a.kind != b.kind) return false;
  if (a.kind == Operand::Kind::kTensor) return a.view == b.view;
  return a.kind == Operand::Kind::kAbsent ||
         (a.number.kind == b.number.kind && a.number.argument == b.number.argument &&
          a.number.integer == b.number.integer && same_bits(a.number.real, b.number.real) &&
          same_bits(a.number.imaginary, b.number.imaginary));
}

bool same_call(const Step& a, const Step& b) {
  if (a.op != b.op || !(a.attributes == b.attributes) || !(a.counts == b.counts) ||
      a.operands.size() != b.operands.size() || a.results.size() != b.results.size()) {
    return false;
  }
  for (std::size_t i = 0; i < a.operands.size(); ++i) {
    if (!same_operand(a.operands[i], b.operands[i])) return false;
  }
  for (std::size_t i = 0; i < a.attributes.size(); ++i) {
    if (!same_bits(a.attributes.at(i).real, b.attributes.at(i).real)) return false;
  }
  for (std::size_t r = 0; r < a.results.size(); ++r) {
    if (!(a.results[r].view.geometry == b.results[r].view.geometry)) return false;
  }
  return true;
}

// Returns true if the cast from `from` to `to` and back is exact for every value.
bool widens(DType from, DType to) {
  if (core::is_complex(from) || from == DType::kBool || to == DType::kBool) return false;
  if (core::is_floating(from)) {
    return core::is_floating(to) && core::promote(from, to) == to && from != to;
  }
  return core::is_integral(to) && core::promote(from, to) == to &&
         core::size_of(to) > core::size_of(from);
}

// Returns true if the view reads all of the value's elements in memory order, each once.
bool in_order(const View& view, const Program& program) {
  return view.geometry.offset == 0 && view.geometry.contiguous() &&
         view.geometry.numel() == program.values[view.value].elements;
}

}  // namespace

bool may_fail(const Step& step, const Program& program, const ops::Catalog& catalog) {
  if (step.kind != Step::Kind::kOp) {
    if (step.kind == Step::Kind::kWhile) return true;  // it may not terminate
    bool any = false;
    for (const Block& block : step.blocks) {
      for_each_step(block, [&](const Step& inner) {
        if (inner.blocks.empty()) any |= may_fail(inner, program, catalog);
        any |= inner.kind == Step::Kind::kWhile;
      });
    }
    return any;
  }
  const ops::OpDef& op = catalog.at(step.op);
  if (!op.mutates.empty() || op.collective) return true;
  if (contains(kDivisions, op.name)) return integral(step, program);
  return op.inplace != ops::Inplace::kElementwise && !contains(kTotal, op.name);
}

Program dce(Program program, const ops::Catalog& catalog) {
  std::vector<std::uint32_t> uses = count_uses(program);
  while (sweep(program.body, uses, program, catalog)) {
  }
  return program;
}

Program cse(Program program, const ops::Catalog& catalog) {
  const std::vector<bool> pinned = pinned_values(program);
  std::vector<ValueId> replacement(program.values.size(), kNoValue);
  // Only steps of the body are merged, because a branch may not run at all.
  std::vector<Step>& steps = program.body.steps;
  const auto shareable = [&](const Step& step) {
    if (step.kind != Step::Kind::kOp || step.results.empty()) return false;
    const ops::OpDef& op = catalog.at(step.op);
    if (op.random || op.collective || !op.mutates.empty()) return false;
    for (const program::StepResult& result : step.results) {
      if (pinned[result.view.value]) return false;
    }
    return true;
  };
  std::unordered_multimap<std::size_t, std::size_t> seen;  // hash -> index of the step
  for (std::size_t i = 0; i < steps.size(); ++i) {
    Step& step = steps[i];
    std::size_t hash = step.op;
    for (StepOperand& operand : step.operands) {
      hash = hash * 1000003 + static_cast<std::size_t>(operand.number.integer);
      hash = hash * 1000003 + std::bit_cast<std::uint64_t>(operand.number.real);
      if (operand.kind != Operand::Kind::kTensor) continue;
      while (replacement[operand.view.value] != kNoValue) {
        operand.view.value = replacement[operand.view.value];
      }
      hash = hash * 1000003 + operand.view.value;
    }
    if (!shareable(step)) continue;
    bool found = false;
    const auto [first, end] = seen.equal_range(hash);
    for (auto at = first; at != end; ++at) {
      const std::size_t other = at->second;
      if (!same_call(steps[other], step)) continue;
      for (std::size_t r = 0; r < step.results.size(); ++r) {
        replacement[step.results[r].view.value] = steps[other].results[r].view.value;
      }
      found = true;
      break;
    }
    if (!found) seen.emplace(hash, i);
  }
  substitute(program, std::move(replacement));
  return dce(std::move(program), catalog);
}

Program peephole(Program program, const ops::Catalog& catalog) {
  const std::vector<bool> pinned = pinned_values(program);
  std::vector<ValueId> replacement(program.values.size(), kNoValue);
  std::vector<const Step*> made(program.values.size(), nullptr);
  // A returned copy of a parameter stays a copy, because the caller may write the parameter's
  // memory later.
  std::vector<bool> given(program.values.size(), false), returned(program.values.size(), false);
  for (const View& view : program.body.parameters) given[view.value] = true;
  for (const View& view : program.body.results) returned[view.value] = true;
  const auto id = [&](std::string_view name) {
    const ops::OpDef* op = catalog.find(name);
    return op == nullptr ? static_cast<program::OpId>(0xffff) : catalog.id(*op);
  };
  const program::OpId cast = id("cast"), neg = id("neg");
  const program::OpId copies[] = {id("clone"), id("contiguous"), id("reshape"), id("relayout"),
                                  cast};
  for_each_step(program.body, [&](Step& step) {
    for (StepOperand& operand : step.operands) {
      if (operand.kind != Operand::Kind::kTensor) continue;
      while (replacement[operand.view.value] != kNoValue) {
        operand.view.value = replacement[operand.view.value];
      }
    }
    if (step.kind != Step::Kind::kOp || step.results.size() != 1) return;
    const View& result = step.results[0].view;
    made[result.value] = &step;
    if (step.operands.empty() || step.operands[0].kind != Operand::Kind::kTensor) return;
    const View& x = step.operands[0].view;
    if (step.results[0].overwrites >= 0 || pinned[result.value] || pinned[x.value]) return;
    const auto& type = program.values[x.value];
    const bool same_type = type == program.values[result.value];
    // Returns true if `source` can replace the result: its value has the same elements at the same
    // positions.
    const auto takes_place = [&](const View& source) {
      return !(given[source.value] && returned[result.value]) &&
             program.values[source.value] == program.values[result.value] &&
             ((source.geometry.strides == result.geometry.strides && source.geometry.offset == 0 &&
               source.geometry.dense() && source.geometry.shape == result.geometry.shape) ||
              (in_order(source, program) && in_order(result, program)));
    };
    if (std::find(std::begin(copies), std::end(copies), step.op) != std::end(copies) && same_type &&
        takes_place(x)) {
      replacement[result.value] = x.value;
      return;
    }
    const Step* before = made[x.value];
    if (before == nullptr || before->op != step.op || before->results[0].overwrites >= 0 ||
        !(before->results[0].view.geometry == x.geometry) ||
        before->operands[0].kind != Operand::Kind::kTensor) {
      return;
    }
    const View& origin = before->operands[0].view;
    if (pinned[origin.value]) return;
    const DType from = program.values[origin.value].dtype;
    const bool back = step.op == cast && widens(from, type.dtype);
    const bool twice = step.op == neg && (core::is_floating(from) || core::is_integral(from));
    if ((back || twice) && takes_place(origin)) replacement[result.value] = origin.value;
  });
  substitute(program, std::move(replacement));
  return dce(std::move(program), catalog);
}

Program optimize(Program program, const ops::Catalog& catalog, const Evaluate& evaluate,
                 const Seen& seen) {
  constexpr int kRounds = 4;
  int round = 0;
  const auto pass = [&](std::string_view name, auto&& run) {
    Program after = run(program);
    if (seen && round == 0) seen(name, program, after);
    program = std::move(after);
  };
  for (; round < kRounds; ++round) {
    const Program before = program;
    pass("inline", [](const Program& p) { return inline_blocks(p); });
    pass("peephole", [&](const Program& p) { return peephole(p, catalog); });
    pass("cse", [&](const Program& p) { return cse(p, catalog); });
    if (evaluate) {
      pass("fold", [&](const Program& p) { return fold(p, evaluate, kMaxFolded, catalog); });
    }
    pass("dce", [&](const Program& p) { return dce(p, catalog); });
    if (program == before) break;
  }
  round = 0;
  pass("early", [&](const Program& p) { return early(p, catalog); });
  pass("rematerialise", [&](const Program& p) { return rematerialise(p, catalog); });
  return program;
}

}  // namespace teletensor::passes
