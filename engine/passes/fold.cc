// Evaluates what literals determine: steps that read only literals, and branches with a known
// condition.
#include <algorithm>
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

// Returns true if the block overwrites a value that it did not make. Inside a branch only the
// branch sees that; in the body of a program the caller would see it.
bool overwrites_from_outside(const Block& block) {
  std::vector<ValueId> own;
  for (const Step& step : block.steps) {
    for (const program::StepResult& result : step.results) {
      if (result.overwrites >= 0) {
        const ValueId old = step.operands[static_cast<std::size_t>(result.overwrites)].view.value;
        if (std::find(own.begin(), own.end(), old) == own.end()) return true;
      }
      own.push_back(result.view.value);
    }
  }
  return false;
}

// Replaces conditionals with a known condition in a block; `replacement` gets the values that their
// results become. Returns false if nothing changed.
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
      // A result whose view differs from the view that the step declares cannot be replaced.
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
    if (fits) fits = taken->parameters.empty() && !overwrites_from_outside(*taken);
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

namespace {

class Folder {
 public:
  Folder(Program program, const Evaluate& evaluate, std::size_t most, const ops::Catalog& catalog)
      : program_(std::move(program)),
        evaluate_(evaluate),
        most_(most),
        catalog_(catalog),
        pinned_(pinned_values(program_)),
        bytes_(program_.values.size()),
        known_(program_.values.size(), false),
        maker_(program_.values.size(), nullptr) {}

  Program run() {
    for (const program::Literal& literal : program_.literals) {
      bytes_[literal.value] = literal.bytes;
      known_[literal.value] = true;
    }
    std::vector<bool> gone(program_.body.steps.size(), false);
    for (std::size_t i = 0; i < program_.body.steps.size(); ++i) {
      const Step& step = program_.body.steps[i];
      if (!foldable(step)) continue;
      bool reads = false, ready = true;
      for (const program::StepOperand& operand : step.operands) {
        if (operand.kind != Operand::Kind::kTensor) continue;
        reads = true;
        ready = ready && (known_[operand.view.value] || maker_[operand.view.value] != nullptr) &&
                whole(operand.view, program_);
      }
      if (!reads) {  // such a step (zeros, arange) is cheaper to run than its bytes are to store
        for (const program::StepResult& result : step.results) maker_[result.view.value] = &step;
      } else if (ready) {
        gone[i] = make(step, true);
      }
    }
    std::size_t kept = 0;
    for (std::size_t i = 0; i < gone.size(); ++i) {
      if (gone[i]) continue;
      if (kept != i) program_.body.steps[kept] = std::move(program_.body.steps[i]);
      ++kept;
    }
    program_.body.steps.resize(kept);
    return std::move(program_);
  }

 private:
  bool foldable(const Step& step) const {
    if (step.kind != Step::Kind::kOp || step.results.empty()) return false;
    const ops::OpDef& op = catalog_.at(step.op);
    // Two results of `empty` need not be equal.
    if (op.random || !op.mutates.empty() || op.name == "empty") return false;
    if (may_fail(step, program_, catalog_)) return false;
    for (const program::StepOperand& operand : step.operands) {
      if (operand.kind == Operand::Kind::kNumber && operand.number.argument != 0) return false;
    }
    for (const program::StepResult& result : step.results) {
      const program::ValueType& type = program_.values[result.view.value];
      if (result.overwrites >= 0 || pinned_[result.view.value] || !whole(result.view, program_) ||
          static_cast<std::size_t>(type.elements) > most_ / core::size_of(type.dtype)) {
        return false;
      }
    }
    return true;
  }

  // Evaluates a step. With `literals` its results become literals of the program; without, the step
  // stays (it is the maker of a value that another evaluated step reads).
  bool make(const Step& step, bool literals) {
    std::vector<std::string_view> operands;
    for (const program::StepOperand& operand : step.operands) {
      operands.emplace_back();
      if (operand.kind != Operand::Kind::kTensor) continue;
      const ValueId value = operand.view.value;
      if (!known_[value] && !make(*maker_[value], false)) return false;
      operands.back() = bytes_[value];
    }
    std::vector<std::string> results;
    if (!evaluate_(step, program_, operands, results) || results.size() != step.results.size()) {
      return false;
    }
    for (std::size_t r = 0; r < results.size(); ++r) {
      const ValueId value = step.results[r].view.value;
      if (literals) program_.literals.push_back({value, results[r]});
      bytes_[value] = std::move(results[r]);
      known_[value] = true;
    }
    return true;
  }

  Program program_;
  const Evaluate& evaluate_;
  const std::size_t most_;
  const ops::Catalog& catalog_;
  const std::vector<bool> pinned_;
  std::vector<std::string> bytes_;  // contents of the known values
  std::vector<bool> known_;
  std::vector<const Step*> maker_;  // by value: the step without tensor operands that makes it
};

}  // namespace

Program fold(Program program, const Evaluate& evaluate, std::size_t most_bytes,
             const ops::Catalog& catalog) {
  return Folder(std::move(program), evaluate, most_bytes, catalog).run();
}

}  // namespace teletensor::passes
