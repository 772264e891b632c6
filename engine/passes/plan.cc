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

// Free pieces of one growing block.
class Space {
 public:
  std::uint64_t take(std::uint64_t bytes) {
    auto best = free_.end();
    for (auto at = free_.begin(); at != free_.end(); ++at) {
      if (at->second >= bytes && (best == free_.end() || at->second < best->second)) best = at;
    }
    if (best == free_.end()) {
      // The last piece grows where it ends the block.
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

}  // namespace

MemoryPlan plan_memory(const program::Program& program, const std::vector<Unit>& units) {
  constexpr std::uint32_t kNever = ~0u;
  const std::size_t values = program.values.size();
  std::vector<std::uint32_t> made(values, kNever), last(values, kNever);
  std::vector<bool> returned(values, false);
  for (std::uint32_t u = 0; u < units.size(); ++u) {
    for (const std::uint32_t s : units[u].steps) {
      const program::Step& step = program.body.steps[s];
      for (const auto& result : step.results) made[result.view.value] = last[result.view.value] = u;
      for (const auto& operand : step.operands) {
        if (operand.kind == program::Operand::Kind::kTensor) last[operand.view.value] = u;
      }
      for (const program::Block& block : step.blocks) {
        for_each_use(block, [&](const program::View& view) { last[view.value] = u; });
      }
    }
  }
  std::vector<std::vector<program::ValueId>> ending(units.size());
  for (program::ValueId value = 0; value < values; ++value) {
    if (made[value] != kNever) ending[last[value]].push_back(value);
  }
  const auto keep = [&](program::ValueId value) { returned[value] = true; };
  for (const program::View& view : program.body.results) keep(view.value);
  for (const program::Rebind& rebind : program.rebinds) keep(rebind.value);

  MemoryPlan plan;
  plan.offsets.assign(values, MemoryPlan::kNone);
  Space space;
  for (std::uint32_t u = 0; u < units.size(); ++u) {
    const auto ends_here = [&](program::ValueId value) {
      return last[value] == u && !returned[value] && plan.offsets[value] != MemoryPlan::kNone;
    };
    std::vector<program::ValueId> passed_on;
    for (const std::uint32_t s : units[u].steps) {
      const program::Step& step = program.body.steps[s];
      for (const program::StepResult& result : step.results) {
        const program::ValueId value = result.view.value;
        if (units[u].loop() && last[value] == u && !returned[value]) continue;  // never stored
        const std::uint64_t bytes = bytes_of(program.values[value]);
        if (returned[value]) plan.results += bytes;
        if (result.overwrites >= 0) {
          const program::ValueId old =
              step.operands[static_cast<std::size_t>(result.overwrites)].view.value;
          if (ends_here(old) && bytes_of(program.values[old]) == bytes &&
              std::find(passed_on.begin(), passed_on.end(), old) == passed_on.end()) {
            plan.offsets[value] = plan.offsets[old];
            passed_on.push_back(old);
            continue;
          }
        }
        plan.offsets[value] = space.take(bytes);
      }
    }
    for (const program::ValueId value : ending[u]) {
      if (!ends_here(value)) continue;
      if (std::find(passed_on.begin(), passed_on.end(), value) != passed_on.end()) continue;
      space.give(plan.offsets[value], bytes_of(program.values[value]));
    }
  }
  plan.peak = space.size();
  return plan;
}

}  // namespace teletensor::passes
