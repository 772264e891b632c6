#include "engine/ops/inferred.h"

namespace teletensor::ops {

bool InferredLayouts::Operand::matches(const Var& argument) const {
  if (is_number) return argument.is_number() && argument.number() == number;
  return argument.is_tensor() && argument.named()->layout == layout;
}

// Numbers do not count, so that a loop over numbers occupies one place.
std::size_t InferredLayouts::place_of(const InferredCall& call) {
  std::uint64_t hash = call.op;
  for (const Var& argument : call.arguments) {
    if (!argument.is_tensor()) continue;
    for (const std::int64_t size : argument.named()->layout.geometry.shape) {
      hash = hash * 31 + static_cast<std::uint64_t>(size);
    }
  }
  return (hash ^ hash >> 5) % kEntries;
}

const core::Layout* InferredLayouts::find(const InferredCall& call) const {
  const Entry* entry = entries_[place_of(call)].get();
  if (entry == nullptr || entry->op != call.op || entry->default_dtype != call.default_dtype ||
      entry->operands != call.arguments.size()) {
    return nullptr;
  }
  for (std::size_t i = 0; i < entry->operands; ++i) {
    if (!entry->operand[i].matches(call.arguments[i])) return nullptr;
  }
  return entry->attributes == call.attributes ? &entry->result : nullptr;
}

void InferredLayouts::add(const InferredCall& call, const core::Layout& result) {
  if (call.arguments.size() > kOperands) return;
  for (const Var& argument : call.arguments) {
    if (argument.absent()) return;
  }
  std::unique_ptr<Entry>& entry = entries_[place_of(call)];
  if (entry == nullptr) entry = std::make_unique<Entry>();
  entry->op = call.op;
  entry->default_dtype = call.default_dtype;
  entry->operands = call.arguments.size();
  for (std::size_t i = 0; i < entry->operands; ++i) {
    const Var& argument = call.arguments[i];
    Operand& operand = entry->operand[i];
    operand.is_number = argument.is_number();
    if (operand.is_number) {
      operand.number = argument.number();
    } else {
      operand.layout = argument.named()->layout;
    }
  }
  entry->attributes = call.attributes;
  entry->result = result;
}

}  // namespace teletensor::ops
