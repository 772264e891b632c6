// The memory plan of a program's body: the place of each result in one block of memory, and the
// block's peak size. Values that only one loop makes and reads have no memory.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/passes/loop.h"
#include "engine/program/program.h"

namespace teletensor::passes {

struct MemoryPlan {
  // Without a place: parameters, literals and values that are never stored.
  static constexpr std::uint64_t kNone = ~0ull;
  std::vector<std::uint64_t> offsets;  // by value
  std::uint64_t peak = 0;              // size of the block in bytes; pieces are 64-byte aligned
  // By unit: bytes of its operands, its results and all values that are read later. Does not count
  // parameters and literals, which belong to the caller.
  std::vector<std::uint64_t> held;
  std::uint64_t results = 0;  // bytes of the values that the program returns
};

// `units` is the result of fuse() for the program's steps. A result that overwrites an operand uses
// the operand's memory if the old value is not read later; so does an elementwise result with the
// same layout.
MemoryPlan plan_memory(const program::Program& program, const std::vector<Unit>& units,
                       const ops::Catalog& catalog = ops::catalog());

}  // namespace teletensor::passes
