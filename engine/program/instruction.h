// Instruction: op, operands, attributes, results, over values. What the front hands to the back, in
// few cache lines: layouts and attributes are pointers into the queue's interner.
#pragma once

#include <cstdint>

#include "engine/core/attributes.h"
#include "engine/core/geometry.h"
#include "engine/core/inline_vector.h"
#include "engine/program/value.h"

namespace teletensor::program {

using OpId = std::uint16_t;  // index into the catalog

struct Operand {
  enum class Kind : std::uint8_t { kAbsent, kTensor, kNumber };
  Kind kind = Kind::kAbsent;
  ValueRef value;  // kTensor
  core::DType dtype = core::DType::kF32;
  const core::Geometry* geometry = nullptr;  // kTensor: a view on the value's storage; interned
  core::Number number;                       // kNumber
};

struct ResultSlot {
  ValueRef value;  // the storage written; a new one, also when `overwrites` >= 0
  const core::Geometry* geometry = nullptr;  // the region written; interned
  // Operand whose value this result rebinds: the new value is the old one with the region replaced.
  // The executor writes in place when nobody else holds the old value. -1: a fresh storage.
  int overwrites = -1;
};

struct Instruction {
  OpId op = 0;
  std::uint64_t seq = 0;  // of the command that issued it; several may share one (Backward)
  core::InlineVector<Operand, 3> operands;
  core::InlineVector<ResultSlot, 1> results;
  const core::Attributes* attributes = nullptr;  // interned
  core::InlineVector<std::uint32_t, 2> counts;   // lengths of list arguments, in signature order
};

}  // namespace teletensor::program
