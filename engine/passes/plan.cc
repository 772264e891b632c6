#include "engine/passes/plan.h"

#include <algorithm>
#include <map>

#include "engine/passes/rewrite.h"

namespace teletensor::passes {
namespace {

constexpr std::uint64_t kAlign = 64;

std::uint64_t bytes_of(const program::ValueType& type) {
  const auto bytes = static_cast<std::uint64_t>(type.elements) * core::size_of(type.dtype);
  return std::max<std::uint64_t>((bytes + kAlign - 1) / kAlign * kAlign, kAlign);
}

// An allocator of pieces of one block that grows as needed.
class Space {
 public:
  std::uint64_t take(std::uint64_t bytes) {
    auto best = free_.end();
    for (auto at = free_.begin(); at != free_.end(); ++at) {
      if (at->second >= bytes && (best == free_.end() || at->second < best->second)) best = at;
    }
    if (best == free_.end()) {
      // If the last free piece is at the end of the block, the block is extended from there.
      std::uint64_t start = size_;
      if (!free_.empty() && free_.rbegin()->first + free_.rbegin()->second == size_) {
        start = free_.rbegin()->first;
        free_.erase(std::prev(free_.end()));
      }
      size_ = start + bytes;
      return start;
    }
    const auto [start, length] = *best;
    free_.erase(best);
    if (length > bytes) free_[start + bytes] = length - bytes;
    return start;
  }
  void give(std::uint64_t start, std::uint64_t bytes) {
    auto next = free_.lower_bound(start);
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == start) {
        start = before->first;
        bytes += before->second;
        free_.erase(before);
      }
    }
    if (next != free_.end() && start + bytes == next->first) {
      bytes += next->second;
      free_.erase(next);
    }
    free_[start] = bytes;
  }
  std::uint64_t size() const { return size_; }

 private:
  std::map<std::uint64_t, std::uint64_t> free_;  // start -> bytes
  std::uint64_t size_ = 0;
};

class Planner {
 public:
  Planner(const program::Program& program, const std::vector<Unit>& units,
          const ops::Catalog& catalog)
      : program_(program), units_(units), catalog_(catalog) {}

  MemoryPlan run() {
    find_lives();
    plan_.offsets.assign(program_.values.size(), MemoryPlan::kNone);
    plan_.held.reserve(units_.size());
    for (std::uint32_t u = 0; u < units_.size(); ++u) {
      reused_.clear();
      for (std::size_t at = 0; at < units_[u].steps.size(); ++at) {
        for (const program::StepResult& result : step_of(u, at).results) place(u, at, result);
      }
      plan_.held.push_back(held_);
      for (const program::ValueId value : ending_[u]) {
        if (!ends_in(u, value) || passed(value)) continue;
        const std::uint64_t bytes = bytes_of(program_.values[value]);
        space_.give(plan_.offsets[value], bytes);
        held_ -= bytes;
      }
    }
    plan_.peak = space_.size();
    return std::move(plan_);
  }

 private:
  static constexpr std::uint32_t kNever = ~0u;

  const program::Step& step_of(std::uint32_t unit, std::size_t at) const {
    return program_.body.steps[units_[unit].steps[at]];
  }

  void find_lives() {
    const std::size_t values = program_.values.size();
    std::vector<std::uint32_t> made(values, kNever);
    last_.assign(values, kNever);
    returned_.assign(values, false);
    given_.assign(values, false);
    for (std::uint32_t u = 0; u < units_.size(); ++u) {
      for (std::size_t at = 0; at < units_[u].steps.size(); ++at) {
        const program::Step& step = step_of(u, at);
        for (const auto& result : step.results) {
          made[result.view.value] = last_[result.view.value] = u;
        }
        for (const auto& operand : step.operands) {
          if (operand.kind == program::Operand::Kind::kTensor) last_[operand.view.value] = u;
        }
        for (const program::Block& block : step.blocks) {
          for_each_use(block, [&](const program::View& view) { last_[view.value] = u; });
        }
      }
    }
    for (const program::View& view : program_.body.parameters) given_[view.value] = true;
    for (const program::View& view : program_.body.results) returned_[view.value] = true;
    for (const program::Rebind& rebind : program_.rebinds) returned_[rebind.value] = true;
    ending_.resize(units_.size());
    for (program::ValueId value = 0; value < values; ++value) {
      if (made[value] != kNever) ending_[last_[value]].push_back(value);
    }
  }

  bool ends_in(std::uint32_t unit, program::ValueId value) const {
    return last_[value] == unit && !returned_[value] && plan_.offsets[value] != MemoryPlan::kNone;
  }
  bool passed(program::ValueId value) const {
    return std::find(reused_.begin(), reused_.end(), value) != reused_.end();
  }

  void place(std::uint32_t u, std::size_t at, const program::StepResult& result) {
    const program::ValueId value = result.view.value;
    // The value exists only inside the loop and needs no memory.
    if (units_[u].loop() && last_[value] == u && !returned_[value]) return;
    const std::uint64_t bytes = bytes_of(program_.values[value]);
    if (result.overwrites >= 0) {
      const auto operand = static_cast<std::size_t>(result.overwrites);
      const program::ValueId old = step_of(u, at).operands[operand].view.value;
      if (given_[old]) {  // the old value is in the caller's memory
        given_[value] = true;
        return;
      }
      if (returned_[value]) plan_.results += bytes;
      if (ends_in(u, old) && bytes_of(program_.values[old]) == bytes && !passed(old)) {
        return take_over(old, value);
      }
    } else {
      if (returned_[value]) plan_.results += bytes;
      const program::ValueId old = reusable_value(u, at, result);
      if (old != program::kNoValue) return take_over(old, value);
    }
    plan_.offsets[value] = space_.take(bytes);
    held_ += bytes;
  }
  void take_over(program::ValueId old, program::ValueId value) {
    plan_.offsets[value] = plan_.offsets[old];
    reused_.push_back(old);
  }

  // Finds a value that ends in this unit and that the elementwise result may overwrite: all its
  // readers in the unit read it with the result's layout, and none of them runs after this step.
  program::ValueId reusable_value(std::uint32_t u, std::size_t at,
                                  const program::StepResult& result) const {
    const program::Step& step = step_of(u, at);
    if (step.kind != program::Step::Kind::kOp || step.results.size() != 1 ||
        catalog_.at(step.op).inplace != ops::Inplace::kElementwise) {
      return program::kNoValue;
    }
    for (std::size_t k = 0; k <= at; ++k) {
      for (const program::StepOperand& operand : step_of(u, k).operands) {
        const program::ValueId old = operand.view.value;
        if (operand.kind == program::Operand::Kind::kTensor && ends_in(u, old) && !passed(old) &&
            program_.values[old] == program_.values[result.view.value] &&
            read_only_up_to(u, at, {old, result.view.geometry})) {
          return old;
        }
      }
    }
    return program::kNoValue;
  }
  bool read_only_up_to(std::uint32_t u, std::size_t at, const program::View& as) const {
    for (std::size_t k = 0; k < units_[u].steps.size(); ++k) {
      for (const program::StepOperand& operand : step_of(u, k).operands) {
        if (operand.kind != program::Operand::Kind::kTensor || operand.view.value != as.value) {
          continue;
        }
        if (k > at || !(operand.view == as)) return false;
      }
    }
    return as.geometry.numel() == program_.values[as.value].elements;
  }

  const program::Program& program_;
  const std::vector<Unit>& units_;
  const ops::Catalog& catalog_;
  std::vector<std::uint32_t> last_;  // by value: the unit that reads it last
  std::vector<bool> returned_, given_;
  // Lists, for each unit, the values whose last reader is the unit.
  std::vector<std::vector<program::ValueId>> ending_;
  // Values of the current unit whose memory a result has reused.
  std::vector<program::ValueId> reused_;
  Space space_;
  std::uint64_t held_ = 0;
  MemoryPlan plan_;
};

}  // namespace

MemoryPlan plan_memory(const program::Program& program, const std::vector<Unit>& units,
                       const ops::Catalog& catalog) {
  return Planner(program, units, catalog).run();
}

}  // namespace teletensor::passes
