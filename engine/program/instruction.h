// Instruction: an op with operands, attributes and results, over values. The front end passes
// instructions to the back end. They fit in few cache lines, because layouts and attributes are
// pointers into the queue's interner.
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
  ValueRef value;  // if kTensor
  core::DType dtype = core::DType::kF32;
  const core::Geometry* geometry = nullptr;  // if kTensor: a view on the value's storage; interned
  core::Number number;                       // if kNumber
};

struct ResultSlot {
  ValueRef value;  // the storage that is written; always a new value, even if `overwrites` >= 0
  const core::Geometry* geometry = nullptr;  // the region that is written; interned
  // The index of the operand whose value this result replaces: the new value is the old one with
  // the region overwritten. The executor writes in place if nothing else refers to the old value.
  // -1 means a new storage.
  int overwrites = -1;
};

struct Instruction {
  OpId op = 0;
  std::uint64_t seq = 0;  // of the command that issued it; the instructions of a Backward share one
  core::InlineVector<Operand, 3> operands;
  core::InlineVector<ResultSlot, 1> results;
  const core::Attributes* attributes = nullptr;  // interned
  core::InlineVector<std::uint32_t, 2> counts;   // lengths of list arguments, in signature order
};

}  // namespace teletensor::program
