// Rematerialisation: values that are cheap to recompute are not kept in memory during the program's
// peak.
#include <algorithm>
#include <string_view>
#include <utility>

#include "engine/passes/estimate.h"
#include "engine/passes/loop.h"
#include "engine/passes/passes.h"
#include "engine/passes/plan.h"
#include "engine/passes/rewrite.h"

namespace teletensor::passes {
namespace {

using program::kNoValue;
using program::Operand;
using program::Step;
using program::StepOperand;
using program::ValueId;

// Ops that cost about a nanosecond per element.
constexpr std::string_view kCheap[] = {
    "abs",         "add",         "sub",       "mul",       "div",         "neg",
    "square",      "sqrt",        "rsqrt",     "exp",       "exp2",        "expm1",
    "log",         "log1p",       "log2",      "sin",       "cos",         "tanh",
    "sigmoid",     "relu",        "relu6",     "gelu",      "silu",        "mish",
    "leaky_relu",  "elu",         "selu",      "celu",      "softplus",    "softsign",
    "log_sigmoid", "hardtanh",    "hardswish", "threshold", "hardsigmoid", "reciprocal",
    "clamp",       "minimum",     "maximum",   "where",     "masked_fill", "lerp",
    "addcmul",     "addcdiv",     "lt",        "le",        "gt",          "ge",
    "eq",          "ne",          "sign",      "cast",      "logical_not", "logical_and",
    "logical_or",  "clone",       "reshape",   "relayout",  "contiguous",  "layer_norm",
    "batch_norm",  "log_softmax", "softmax"};

constexpr std::size_t kLongestChain = 6;
constexpr std::size_t kMaxAnalyses = 512;  // maximum number of changed programs that are analysed
constexpr std::size_t kMaxAnalysedSteps = 1 << 19;  // maximum number of steps in them

std::int64_t unpadded_bytes(const program::ValueType& type) {
  return type.elements * static_cast<std::int64_t>(core::size_of(type.dtype));
}

// A program with the results of its analysis.
struct AnalysedProgram {
  static constexpr std::uint32_t kNever = ~0u;

  Program program;
  std::vector<std::uint32_t> unit_of;  // by step
  // By value: a step; kNever if it is a parameter or made in a nested block.
  std::vector<std::uint32_t> made_by;
  std::vector<std::uint32_t> overwritten;  // by value: the step that overwrites it
  std::vector<std::uint32_t> last;         // by value: the unit that reads it last
  // By value: must stay in memory (parameter, overwritten, returned, read by a nested block).
  std::vector<bool> stays;
  std::vector<std::uint64_t> held;  // by unit: bytes, see MemoryPlan
  std::uint64_t most = 0;           // maximum of `held`
  std::uint32_t at = 0;             // the first unit that reaches the maximum
  std::size_t times = 0;            // number of units that reach the maximum

  AnalysedProgram(Program p, const ops::Catalog& catalog) : program(std::move(p)) {
    const std::vector<Step>& steps = program.body.steps;
    const std::vector<Unit> units = fuse(fuse_steps(program, catalog));
    const std::size_t values = program.values.size();
    unit_of.resize(steps.size());
    for (std::uint32_t u = 0; u < units.size(); ++u) {
      for (const std::uint32_t s : units[u].steps) unit_of[s] = u;
    }
    made_by.assign(values, kNever);
    overwritten.assign(values, kNever);
    last.assign(values, 0);
    stays = pinned_values(program);
    const auto keep = [&](ValueId value) {
      stays[value] = true;
      last[value] = kNever;
    };
    for (std::uint32_t s = 0; s < steps.size(); ++s) {
      for (const program::StepResult& result : steps[s].results) {
        made_by[result.view.value] = s;
        if (result.overwrites < 0) continue;
        overwritten[steps[s].operands[static_cast<std::size_t>(result.overwrites)].view.value] = s;
      }
      for (const StepOperand& operand : steps[s].operands) {
        if (operand.kind == Operand::Kind::kTensor) read(operand.view.value, s);
      }
      for (const program::Block& block : steps[s].blocks) {
        for_each_use(block, [&](const program::View& view) {
          stays[view.value] = true;
          read(view.value, s);
        });
        for_each_step(block, [&](const Step& inner) {
          for (const program::StepResult& result : inner.results) {
            if (result.overwrites < 0) continue;
            const auto old = static_cast<std::size_t>(result.overwrites);
            overwritten[inner.operands[old].view.value] = s;
          }
        });
      }
    }
    for (const program::View& view : program.body.parameters) keep(view.value);
    for (const program::Literal& literal : program.literals) keep(literal.value);
    for (const program::View& view : program.body.results) keep(view.value);
    for (const program::Rebind& rebind : program.rebinds) keep(rebind.value);
    held = plan_memory(program, units, catalog).held;
    for (std::uint32_t u = 0; u < held.size(); ++u) {
      if (held[u] > most) {
        most = held[u];
        at = u;
        times = 0;
      }
      times += held[u] == most;
    }
  }

  // Returns true if the value is in memory when step s begins, and reading it there does not extend
  // its life.
  bool alive(ValueId value, std::uint32_t s) const {
    if (overwritten[value] < s) return false;
    return last[value] == kNever || last[value] >= unit_of[s];
  }
  bool lower_than(const AnalysedProgram& other) const {
    return std::pair(most, times) < std::pair(other.most, other.times);
  }

 private:
  void read(ValueId value, std::uint32_t s) {
    if (last[value] != kNever) last[value] = std::max(last[value], unit_of[s]);
  }
};

// A value that is freed at its last use before the peak, and recomputed for its readers after the
// peak.
struct Choice {
  ValueId value = kNoValue;
  std::uint32_t before = 0;  // the value is recomputed before this step
  // Steps that are repeated, in this order, to recompute the value.
  std::vector<std::uint32_t> chain;
  double cost = 0, gain = 0;
};

class Rematerialiser {
 public:
  Rematerialiser(const ops::Catalog& catalog, const Effort& effort)
      : catalog_(catalog), effort_(effort), cheap_(catalog.size(), false) {
    for (const std::string_view name : kCheap) {
      if (const ops::OpDef* op = catalog.find(name)) cheap_[catalog.id(*op)] = true;
    }
  }

  Program run(Program program) {
    const bool worth = std::any_of(
        program.values.begin(), program.values.end(),
        [&](const program::ValueType& type) { return unpadded_bytes(type) >= effort_.least; });
    if (!worth) return program;
    for (const Step& step : program.body.steps) total_ += estimated_ns(step, program, catalog_);
    const AnalysedProgram first(program, catalog_);
    std::size_t looks = kMaxAnalysedSteps / (program.body.steps.size() + 1);
    looks = std::min(looks, kMaxAnalyses);
    AnalysedProgram now = first;
    // The program with the lowest peak so far, and its total cost.
    Program best = std::move(program);
    std::uint64_t least = first.most;
    double spent = 0, paid = 0;
    for (bool found = true; std::exchange(found, false);) {
      for (const Choice& choice : choices(now)) {
        if (spent + choice.cost > effort_.time * total_) continue;
        if (looks == 0) break;
        --looks;
        AnalysedProgram next(with_recomputation(now, choice), catalog_);
        if (!next.lower_than(now)) continue;
        spent += choice.cost;
        now = std::move(next);
        if (now.most < least) {
          least = now.most;
          paid = spent;
          best = now.program;
        }
        found = true;
        break;
      }
    }
    const auto most = static_cast<double>(first.most);
    const double gained = (most - static_cast<double>(least)) / most;
    return paid <= gained * total_ * effort_.worth ? best : first.program;
  }

 private:
  bool may_run_again(const Step& step, const Program& program) const {
    if (step.kind != Step::Kind::kOp || !cheap_[step.op] || may_fail(step, program, catalog_)) {
      return false;
    }
    return std::all_of(step.results.begin(), step.results.end(),
                       [](const program::StepResult& result) { return result.overwrites < 0; });
  }

  // Appends to `chain` the steps that compute `value` from values that are alive before step `at`.
  bool find_chain(const AnalysedProgram& look, ValueId value, std::uint32_t at,
                  std::vector<std::uint32_t>& chain) const {
    const std::uint32_t maker = look.made_by[value];
    if (maker == AnalysedProgram::kNever) return false;
    if (std::find(chain.begin(), chain.end(), maker) != chain.end()) return true;
    const Step& step = look.program.body.steps[maker];
    if (!may_run_again(step, look.program)) return false;
    for (const StepOperand& operand : step.operands) {
      if (operand.kind != Operand::Kind::kTensor || look.alive(operand.view.value, at)) continue;
      if (chain.size() >= kLongestChain || !find_chain(look, operand.view.value, at, chain)) {
        return false;
      }
    }
    chain.push_back(maker);
    return chain.size() <= kLongestChain;
  }

  // Values that are in memory at the peak without being used there, best ratio of gain to cost
  // first.
  std::vector<Choice> choices(const AnalysedProgram& look) const {
    const std::vector<Step>& steps = look.program.body.steps;
    const std::size_t values = look.program.values.size();
    constexpr std::uint32_t kNever = AnalysedProgram::kNever;
    // By value: the first step after the peak that reads it.
    std::vector<std::uint32_t> later(values, kNever);
    std::vector<bool> busy(values, false), earlier(values, false);
    for (std::uint32_t s = 0; s < steps.size(); ++s) {
      for (const StepOperand& operand : steps[s].operands) {
        if (operand.kind != Operand::Kind::kTensor) continue;
        const ValueId value = operand.view.value;
        if (look.unit_of[s] == look.at) busy[value] = true;
        if (look.unit_of[s] < look.at) earlier[value] = true;
        if (look.unit_of[s] > look.at) later[value] = std::min(later[value], s);
      }
    }
    std::vector<Choice> out;
    for (ValueId value = 0; value < values; ++value) {
      const std::uint32_t maker = look.made_by[value];
      if (maker == kNever || later[value] == kNever || busy[value] || look.stays[value] ||
          look.unit_of[maker] >= look.at ||
          unpadded_bytes(look.program.values[value]) < effort_.least) {
        continue;
      }
      Choice choice{value, later[value], {}, 0, 0};
      if (!find_chain(look, value, choice.before, choice.chain)) continue;
      choice.gain = static_cast<double>(unpadded_bytes(look.program.values[value]));
      for (const std::uint32_t s : choice.chain) {
        if (s == maker && !earlier[value]) continue;  // it is only computed later and not twice
        const ValueId made = steps[s].results[0].view.value;
        const program::ValueType& type = look.program.values[made];
        const Speed& speed = speed_of(type.device);
        choice.cost += speed.step + speed.computed * static_cast<double>(type.elements);
      }
      if (choice.cost * static_cast<double>(look.most) <= choice.gain * total_ * effort_.worth) {
        out.push_back(std::move(choice));
      }
    }
    std::stable_sort(out.begin(), out.end(), [](const Choice& a, const Choice& b) {
      return a.gain * b.cost > b.gain * a.cost;
    });
    return out;
  }

  Program with_recomputation(const AnalysedProgram& look, const Choice& choice) const {
    Program program = look.program;
    std::vector<Step>& steps = program.body.steps;
    std::vector<std::pair<ValueId, ValueId>> copies;  // (original, copy)
    const auto copy_of = [&](ValueId value) {
      for (const auto& [from, to] : copies) {
        if (from == value) return to;
      }
      return value;
    };
    std::vector<Step> again;
    for (const std::uint32_t s : choice.chain) {
      Step& step = again.emplace_back(steps[s]);
      for (StepOperand& operand : step.operands) operand.view.value = copy_of(operand.view.value);
      for (program::StepResult& result : step.results) {
        const auto copy = static_cast<ValueId>(program.values.size());
        program.values.push_back(program.values[result.view.value]);
        copies.emplace_back(result.view.value, copy);
        result.view.value = copy;
      }
    }
    const ValueId copy = copy_of(choice.value);
    for (std::uint32_t s = choice.before; s < steps.size(); ++s) {
      if (look.unit_of[s] <= look.at) continue;
      for (StepOperand& operand : steps[s].operands) {
        if (operand.kind == Operand::Kind::kTensor && operand.view.value == choice.value) {
          operand.view.value = copy;
        }
      }
    }
    steps.insert(steps.begin() + choice.before, again.begin(), again.end());
    return dce(std::move(program), catalog_);
  }

  const ops::Catalog& catalog_;
  const Effort& effort_;
  std::vector<bool> cheap_;  // by op
  double total_ = 0;         // estimated time of the program
};

}  // namespace

Program rematerialise(Program program, const ops::Catalog& catalog, const Effort& effort) {
  return Rematerialiser(catalog, effort).run(std::move(program));
}

}  // namespace teletensor::passes
