#include <algorithm>
#include <string_view>
#include <utility>

#include "engine/ops/reduction/reduce_dims.h"
#include "engine/passes/loop.h"
#include "engine/passes/passes.h"

namespace teletensor::passes {
namespace {

constexpr std::size_t kMaxOpen = 8;

// A loop that can still get more steps.
struct Open {
  std::uint32_t layout = 0;
  std::vector<std::uint32_t> steps;
  std::vector<std::uint32_t> writes;  // values written by elementwise steps
  // Values written by reductions: known only when the loop has ended.
  std::vector<std::uint32_t> folded;
  std::vector<FuseStep::Read> reads;  // values that are made outside of the loop
  bool empty() const { return steps.empty(); }
};

bool has(const std::vector<std::uint32_t>& values, std::uint32_t value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

class Fuser {
 public:
  explicit Fuser(const std::vector<FuseStep>& steps) : steps_(steps) {}

  std::vector<Unit> run() {
    for (std::uint32_t i = 0; i < steps_.size(); ++i) {
      const FuseStep& step = steps_[i];
      switch (step.kind) {
        case FuseStep::Kind::kElement:
        case FuseStep::Kind::kFold:
          join(i);
          break;
        case FuseStep::Kind::kPlain:
          end_conflicting_loops(step, nullptr);
          look_ahead(i);
          units_.push_back({{i}});
          break;
        case FuseStep::Kind::kBarrier:
          close_all();
          units_.push_back({{i}});
      }
    }
    close_all();
    return std::move(units_);
  }

 private:
  void close(std::size_t at) {
    std::sort(open_[at].steps.begin(), open_[at].steps.end());
    units_.push_back({std::move(open_[at].steps)});
    open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(at));
  }
  void close_all() {
    while (!open_.empty()) close(0);
  }

  // Returns true if the loop has to end before this step: the step needs a value that the loop
  // makes only at its end, or overwrites a value that the loop reads. `inside` means that the step
  // would join this loop.
  bool must_end(const Open& open, const FuseStep& step, bool inside) const {
    for (const FuseStep::Read& read : step.reads) {
      if (has(open.folded, read.value)) return true;
      if (has(open.writes, read.value) && !(inside && read.layout == open.layout)) return true;
    }
    for (const std::uint32_t value : step.overwrites) {
      if (has(open.folded, value)) return true;
      if (!inside && has(open.writes, value)) return true;
      for (const FuseStep::Read& read : open.reads) {
        if (read.value == value && !(inside && read.layout == open.layout)) return true;
      }
    }
    return false;
  }

  // Ends the loops that have to end before `step`. The loops in `kept` are those that the step
  // would join.
  void end_conflicting_loops(const FuseStep& step, const std::vector<std::uint32_t>* kept) {
    for (std::size_t at = 0; at < open_.size();) {
      const bool mine = kept != nullptr && has(*kept, open_[at].steps.front());
      if (must_end(open_[at], step, mine)) {
        close(at);
      } else {
        ++at;
      }
    }
  }

  // If a value is made for the next step, makes it as late as possible: loops that have to end
  // before the next step are ended first.
  void look_ahead(std::uint32_t i) {
    while (i + 1 < steps_.size() && feeds(steps_[i], steps_[i + 1])) {
      if (steps_[++i].kind == FuseStep::Kind::kPlain)
        return end_conflicting_loops(steps_[i], nullptr);
    }
  }
  static bool feeds(const FuseStep& step, const FuseStep& next) {
    return std::any_of(next.reads.begin(), next.reads.end(),
                       [&](const FuseStep::Read& read) { return has(step.writes, read.value); });
  }

  void join(std::uint32_t i) {
    const FuseStep& step = steps_[i];
    // The loops that the step can join: those that write a value which the step reads at the loop's
    // layout.
    std::vector<std::uint32_t> mine;  // each loop is identified by its first step
    for (const Open& open : open_) {
      if (open.layout != step.layout) continue;
      for (const FuseStep::Read& read : step.reads) {
        if (read.layout == open.layout && has(open.writes, read.value)) {
          mine.push_back(open.steps.front());
          break;
        }
      }
    }
    end_conflicting_loops(step, &mine);
    Open joined;
    joined.layout = step.layout;
    for (std::size_t at = 0; at < open_.size();) {
      Open& open = open_[at];
      if (!has(mine, open.steps.front())) {
        ++at;
        continue;
      }
      if (joined.steps.size() + open.steps.size() + 1 > kMaxLoopSteps ||
          joined.reads.size() + open.reads.size() + step.reads.size() > kMaxLoopReads) {
        close(at);
        continue;
      }
      joined.steps.insert(joined.steps.end(), open.steps.begin(), open.steps.end());
      joined.writes.insert(joined.writes.end(), open.writes.begin(), open.writes.end());
      joined.folded.insert(joined.folded.end(), open.folded.begin(), open.folded.end());
      joined.reads.insert(joined.reads.end(), open.reads.begin(), open.reads.end());
      open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(at));
    }
    joined.steps.push_back(i);
    for (const FuseStep::Read& read : step.reads) {
      if (!has(joined.writes, read.value)) joined.reads.push_back(read);
    }
    auto& made = step.kind == FuseStep::Kind::kFold ? joined.folded : joined.writes;
    made.insert(made.end(), step.writes.begin(), step.writes.end());
    if (open_.size() >= kMaxOpen) close(0);
    open_.push_back(std::move(joined));
  }

  const std::vector<FuseStep>& steps_;
  std::vector<Open> open_;
  std::vector<Unit> units_;
};

// These ops are declared as elementwise, but their kernels are not loops over functors.
constexpr std::string_view kNoLoops[] = {"bernoulli", "dropout",   "random",    "normal",
                                         "uniform",   "rand_like", "to_device", "detach"};
constexpr std::string_view kFolds[] = {"sum", "mean", "amax", "amin"};

}  // namespace

std::vector<Unit> fuse(const std::vector<FuseStep>& steps) { return Fuser(steps).run(); }

bool loopable(const ops::OpDef& op) {
  return op.inplace == ops::Inplace::kElementwise && op.mutates.empty() && !op.random &&
         op.results == 1 && op.view == nullptr &&
         std::find(std::begin(kNoLoops), std::end(kNoLoops), op.name) == std::end(kNoLoops);
}

bool trailing_fold(const ops::OpDef& op, const core::Attributes& attributes,
                   const core::Geometry& operand) {
  if (std::find(std::begin(kFolds), std::end(kFolds), op.name) == std::end(kFolds)) return false;
  if (operand.rank() == 0 || !operand.contiguous() || operand.offset != 0) return false;
  const auto mask = ops::dims_mask(attributes, 0, operand.rank(), op.name);
  if (!mask.ok()) return false;
  bool kept = false;  // iterates from the last dimension to the first
  for (int d = operand.rank() - 1; d >= 0; --d) {
    if (*mask >> d & 1u) {
      if (kept) return false;
    } else {
      kept = true;
    }
  }
  return operand.numel() > 0;
}

std::vector<FuseStep> fuse_steps(const Program& program, const ops::Catalog& catalog) {
  return fuse_steps(program.body, program, catalog);
}

std::vector<FuseStep> fuse_steps(const program::Block& block, const Program& program,
                                 const ops::Catalog& catalog) {
  std::vector<core::Geometry> layouts;
  const auto number = [&](const core::Geometry& geometry) {
    for (std::size_t i = layouts.size(); i-- > 0 && layouts.size() - i < 64;) {
      if (layouts[i] == geometry) return static_cast<std::uint32_t>(i);
    }
    layouts.push_back(geometry);
    return static_cast<std::uint32_t>(layouts.size() - 1);
  };
  std::vector<FuseStep> steps;
  for (const program::Step& step : block.steps) {
    FuseStep& out = steps.emplace_back();
    const bool plain_op = step.kind == program::Step::Kind::kOp;
    const ops::OpDef* op = plain_op ? &catalog.at(step.op) : nullptr;
    for (const program::StepOperand& operand : step.operands) {
      if (operand.kind != program::Operand::Kind::kTensor) continue;
      out.reads.push_back({operand.view.value, number(operand.view.geometry)});
    }
    bool whole = true;
    for (const program::StepResult& result : step.results) {
      const core::Geometry& g = result.view.geometry;
      out.writes.push_back(result.view.value);
      whole = whole && g.dense() && g.offset == 0 &&
              g.numel() == program.values[result.view.value].elements;
      if (result.overwrites >= 0) {
        out.overwrites.push_back(
            step.operands[static_cast<std::size_t>(result.overwrites)].view.value);
      }
    }
    if (!plain_op) {
      out.kind = FuseStep::Kind::kBarrier;
    } else if (step.results.size() == 1 && whole && !out.reads.empty()) {
      const core::Geometry& g = step.results[0].view.geometry;
      const auto& first = step.operands[0];
      if (loopable(*op) && !may_fail(step, program, catalog) && g.numel() > 0) {
        out.kind = FuseStep::Kind::kElement;
        out.layout = number(g);
      } else if (first.kind == program::Operand::Kind::kTensor && out.overwrites.empty() &&
                 trailing_fold(*op, step.attributes, first.view.geometry) &&
                 first.view.geometry.numel() == program.values[first.view.value].elements) {
        out.kind = FuseStep::Kind::kFold;
        out.layout = out.reads[0].layout;
      }
    }
  }
  return steps;
}

}  // namespace teletensor::passes
