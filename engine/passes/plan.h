// The memory plan of a program's body: which results share bytes of one block, and how many bytes
// it needs at its peak. Values inside a loop that only the loop reads have no memory at all.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/passes/loop.h"
#include "engine/program/program.h"

namespace teletensor::passes {

struct MemoryPlan {
  static constexpr std::uint64_t kNone = ~0ull;  // no place: a parameter, a literal, never stored
  std::vector<std::uint64_t> offsets;            // by value
  std::uint64_t peak = 0;                        // bytes of the block, 64-byte aligned pieces
  // By unit: what its operands, its results and all that is read later have together. Parameters
  // and literals are the caller's.
  std::vector<std::uint64_t> held;
  std::uint64_t results = 0;  // bytes of those that the program returns
};

// `units` is fuse() of the program's steps. A result that overwrites an operand takes its place
// where nobody reads the old value later; so does an elementwise one that is laid out like it.
MemoryPlan plan_memory(const program::Program& program, const std::vector<Unit>& units,
                       const ops::Catalog& catalog = ops::catalog());

}  // namespace teletensor::passes
