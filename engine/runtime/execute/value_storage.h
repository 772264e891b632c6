// The storages of values: who refers to them, and which part of them a geometry describes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/memory/storage.h"
#include "engine/program/instruction.h"

namespace teletensor::runtime {

// Below this size, taking over an operand's memory is not worth the checks.
inline constexpr std::size_t kWorthReusing = std::size_t{64} << 10;

// The storage of a value's contents; null if it has none.
inline memory::Storage* storage_of(const program::Value& value) {
  return static_cast<memory::Storage*>(value.contents.get());
}

// Returns true if the region is the whole storage, with each element once.
inline bool covers(const core::Geometry& region, std::int64_t elements) {
  return region.offset == 0 && region.dense() && region.numel() == elements;
}

// Returns true if only this instruction's own operands refer to the value.
inline bool held_only_here(const program::Instruction& instruction, const program::Value& value) {
  const std::uint32_t references = value.references();
  if (references == 1) return true;
  std::uint32_t own = 0;
  for (const program::Operand& operand : instruction.operands) own += operand.value.get() == &value;
  return own == references;
}

// Returns true if, in addition, nothing else uses its storage, so that the storage can be taken
// over.
inline bool free_to_take(const program::Instruction& instruction, const program::Value& value) {
  return value.contents->references() == 1 && storage_of(value)->sharing() == nullptr &&
         held_only_here(instruction, value);
}

// Records the dtype and shape of the results in their storages, for reports.
inline void describe_results(const program::Instruction& instruction) {
  for (const program::ResultSlot& result : instruction.results) {
    if (result.geometry == nullptr || !result.value->contents) continue;
    memory::Described& described = storage_of(*result.value)->described();
    if (result.overwrites < 0) {
      described.set(result.value->dtype, result.geometry->shape);
    } else if (!described.known()) {
      const auto old = static_cast<std::size_t>(result.overwrites);
      const program::Value& value = *instruction.operands[old].value;
      if (value.contents) described.set(storage_of(value)->described());
    }
  }
}

}  // namespace teletensor::runtime
