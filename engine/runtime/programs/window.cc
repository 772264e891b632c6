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

void WindowPlans::make_key(std::span<Instruction* const> window) {
  static std::atomic<std::uint64_t> windows{0};
  window_ = windows.fetch_add(1, std::memory_order_relaxed) + 1;
  values_ = 0;
  key_.clear();
  for (const Instruction* instruction : window) {
    if (instruction == nullptr) {
      key_.push_back(~0ull);
      continue;
    }
    const Instruction& i = *instruction;
    key_.push_back(std::uint64_t{i.op} | i.operands.size() << 16 | i.results.size() << 32);
    for (const Operand& operand : i.operands) {
      std::uint64_t word =
          static_cast<std::uint64_t>(operand.kind) | static_cast<std::uint64_t>(operand.dtype) << 8;
      if (operand.kind == Operand::Kind::kTensor) {
        word |= std::uint64_t{number_of(*operand.value)} << 32 | std::uint64_t{other_dtype(operand)}
                                                                     << 16;
        key_.push_back(reinterpret_cast<std::uintptr_t>(operand.geometry));
      }
      key_.push_back(word);
    }
    for (const ResultSlot& result : i.results) {
      const core::Device device = result.value->device;
      key_.push_back(std::uint64_t{number_of(*result.value)} << 32 |
                     static_cast<std::uint64_t>(result.value->dtype) << 24 |
                     static_cast<std::uint64_t>(device.kind) << 16 |
                     static_cast<std::uint64_t>(device.index) << 8 |
                     static_cast<std::uint8_t>(result.overwrites));
      key_.push_back(reinterpret_cast<std::uintptr_t>(result.geometry));
      key_.push_back(static_cast<std::uint64_t>(result.value->elements));
    }
    // For a reduction, the key contains the attributes with the reduced dimensions.
    const int device = i.results.empty() ? -1 : devices_.find(i.results[0].value->device);
    if (device >= 0 &&
        devices_.at(static_cast<std::size_t>(device)).backend().role(i.op) == LoopRole::kFold) {
      key_.push_back(reinterpret_cast<std::uintptr_t>(i.attributes));
      if (i.operands[0].value) {
        key_.push_back(static_cast<std::uint64_t>(i.operands[0].value->elements));
      }
    }
  }
  hash_ = 0x243f6a8885a308d3ull;
  for (const std::uint64_t word : key_) {
    hash_ = (hash_ ^ word) * 0x9e3779b97f4a7c15ull;
    hash_ ^= hash_ >> 29;
  }
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
  const auto [first, end] = plans_.equal_range(hash_);
  for (auto at = first; at != end; ++at) {
    if (at->second->key != key_) continue;
    PlanStats::add(stats_.hits);
    return at->second->plan;
  }
  PlanStats::add(stats_.misses);
  if (plans_.size() >= kMaxPlans) plans_.clear();
  Plan made = make(window);
  return plans_.emplace(hash_, std::make_unique<Kept>(Kept{key_, std::move(made)}))->second->plan;
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
