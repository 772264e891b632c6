#include "engine/runtime/programs/window.h"

namespace teletensor::runtime {

using backends::LoopRole;
using passes::FuseStep;
using program::Instruction;
using program::Operand;
using program::ResultSlot;
using program::Value;

namespace {

// Windows with more values, as lists with thousands of operands have, are not planned.
constexpr std::uint32_t kMaxValues = 2048;
constexpr std::uint32_t kNoLayout = ~0u;

bool integer_division(const Instruction& i, const ops::OpDef& op) {
  if (op.name != "div" && op.name != "floor_divide" && op.name != "remainder" &&
      op.name != "fmod") {
    return false;
  }
  for (const Operand& operand : i.operands) {
    if (operand.kind == Operand::Kind::kTensor && core::is_inexact(operand.dtype)) return false;
  }
  return true;
}

// Returns true if the operand views the value's bytes as another dtype.
bool other_dtype(const Operand& operand) { return operand.dtype != operand.value->dtype; }

bool whole(const core::Geometry& geometry, const Value& value) {
  return geometry.offset == 0 && geometry.dense() && geometry.numel() == value.elements;
}

}  // namespace

WindowPlans::WindowPlans(const ops::Catalog& catalog, const Devices& devices)
    : catalog_(catalog), devices_(devices), folds_(catalog.size()) {
  for (std::size_t i = 0; i < devices.size(); ++i) {
    for (std::size_t op = 0; op < catalog.size(); ++op) {
      if (devices.at(i).backend().role(static_cast<ops::OpId>(op)) == LoopRole::kFold) {
        folds_[op] = true;
      }
    }
  }
}

void WindowPlans::make_key(std::span<Instruction* const> window) {
  static std::atomic<std::uint64_t> windows{0};
  window_ = windows.fetch_add(1, std::memory_order_relaxed) + 1;
  values_ = 0;
  std::size_t most = 0;  // words
  for (const Instruction* i : window) {
    most += i == nullptr ? 1 : 3 + 2 * i->operands.size() + 3 * i->results.size();
  }
  key_.resize(most);
  std::uint64_t* at = key_.data();
  for (const Instruction* instruction : window) {
    if (instruction == nullptr) {
      *at++ = ~0ull;
      continue;
    }
    const Instruction& i = *instruction;
    *at++ = std::uint64_t{i.op} | i.operands.size() << 16 | i.results.size() << 32;
    for (const Operand& operand : i.operands) {
      std::uint64_t word =
          static_cast<std::uint64_t>(operand.kind) | static_cast<std::uint64_t>(operand.dtype) << 8;
      if (operand.kind == Operand::Kind::kTensor) {
        word |= std::uint64_t{number_of(*operand.value)} << 32 | std::uint64_t{other_dtype(operand)}
                                                                     << 16;
        *at++ = reinterpret_cast<std::uintptr_t>(operand.geometry);
      }
      *at++ = word;
    }
    for (const ResultSlot& result : i.results) {
      const core::Device device = result.value->device;
      *at++ = std::uint64_t{number_of(*result.value)} << 32 |
              static_cast<std::uint64_t>(result.value->dtype) << 24 |
              static_cast<std::uint64_t>(device.kind) << 16 |
              static_cast<std::uint64_t>(device.index) << 8 |
              static_cast<std::uint8_t>(result.overwrites);
      *at++ = reinterpret_cast<std::uintptr_t>(result.geometry);
      *at++ = static_cast<std::uint64_t>(result.value->elements);
    }
    // For a reduction, the key contains the attributes with the reduced dimensions.
    if (folds_[i.op] && !i.operands.empty()) {
      *at++ = reinterpret_cast<std::uintptr_t>(i.attributes);
      *at++ = i.operands[0].value ? static_cast<std::uint64_t>(i.operands[0].value->elements) : 0;
    }
  }
  key_.resize(static_cast<std::size_t>(at - key_.data()));
}

WindowPlans::Kept& WindowPlans::find(std::span<Instruction* const> window) {
  // In a loop a window is followed by the same one in every round.
  if (last_ != nullptr && last_->next != nullptr && last_->next->key == key_) {
    PlanStats::add(stats_.hits);
    return *last_->next;
  }
  std::uint64_t hash = 0x243f6a8885a308d3ull;
  for (const std::uint64_t word : key_) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 29;
  }
  const auto [first, end] = plans_.equal_range(hash);
  for (auto at = first; at != end; ++at) {
    if (at->second->key != key_) continue;
    PlanStats::add(stats_.hits);
    return *at->second;
  }
  PlanStats::add(stats_.misses);
  if (plans_.size() >= kMaxPlans) clear();
  Plan made = make(window);
  return *plans_.emplace(hash, std::make_unique<Kept>(Kept{key_, std::move(made)}))->second;
}

WindowPlans::Plan& WindowPlans::plan(std::span<Instruction* const> window) {
  make_key(window);
  if (values_ > kMaxValues) {
    PlanStats::add(stats_.misses);
    one_by_one_.units.clear();
    for (std::uint32_t i = 0; i < window.size(); ++i) one_by_one_.units.push_back({{i}});
    one_by_one_.never.assign(window.size(), true);
    return one_by_one_;
  }
  Kept& found = find(window);
  if (last_ != nullptr) last_->next = &found;
  last_ = &found;
  return found.plan;
}

WindowPlans::Plan WindowPlans::make(std::span<Instruction* const> window) {
  std::vector<const core::Geometry*> layouts;
  const auto layout = [&](const core::Geometry* geometry) {
    for (std::size_t i = layouts.size(); i-- > 0 && layouts.size() - i < 64;) {
      if (layouts[i] == geometry) return static_cast<std::uint32_t>(i);
    }
    layouts.push_back(geometry);
    return static_cast<std::uint32_t>(layouts.size() - 1);
  };
  std::vector<FuseStep> steps(window.size());
  for (std::size_t w = 0; w < window.size(); ++w) {
    FuseStep& step = steps[w];
    if (window[w] == nullptr) continue;
    const Instruction& i = *window[w];
    const ops::OpDef& op = catalog_.at(i.op);
    for (const Operand& operand : i.operands) {
      if (operand.kind != Operand::Kind::kTensor) continue;
      // A value made in a loop can be read as another dtype only from memory.
      step.reads.push_back(
          {number_of(*operand.value), other_dtype(operand) ? kNoLayout : layout(operand.geometry)});
    }
    for (const ResultSlot& result : i.results) {
      step.writes.push_back(number_of(*result.value));
      if (result.overwrites >= 0) {
        step.overwrites.push_back(
            number_of(*i.operands[static_cast<std::size_t>(result.overwrites)].value));
      }
    }
    if (i.results.size() != 1 || step.reads.empty()) continue;
    const ResultSlot& result = i.results[0];
    const int device = devices_.find(result.value->device);
    if (device < 0) continue;
    const LoopRole role = devices_.at(static_cast<std::size_t>(device)).backend().role(i.op);
    if (role == LoopRole::kElement) {
      if (!passes::loopable(op) || integer_division(i, op) ||
          !whole(*result.geometry, *result.value) || result.value->elements == 0) {
        continue;
      }
      step.kind = FuseStep::Kind::kElement;
      step.layout = layout(result.geometry);
    } else if (role == LoopRole::kFold && result.overwrites < 0 &&
               i.operands[0].kind == Operand::Kind::kTensor) {
      const Operand& operand = i.operands[0];
      const std::int64_t outputs = result.geometry->numel();
      if (operand.dtype != result.value->dtype || other_dtype(operand) ||
          !whole(*operand.geometry, *operand.value) ||
          (operand.dtype != core::DType::kF32 && operand.dtype != core::DType::kF64) ||
          !passes::trailing_fold(op, *i.attributes, *operand.geometry) || outputs == 0 ||
          (outputs > 1 && operand.geometry->numel() / outputs < passes::kShortRow)) {
        continue;
      }
      step.kind = FuseStep::Kind::kFold;
      step.layout = layout(operand.geometry);
    }
  }
  Plan plan;
  plan.units = passes::fuse(steps);
  plan.never.assign(plan.units.size(), false);
  return plan;
}

}  // namespace teletensor::runtime
