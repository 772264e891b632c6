// The loop skeleton: elementwise steps over operands of any layout, one thread for a few elements.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/backends/backend.h"
#include "engine/backends/cpu/elementwise.h"
#include "engine/backends/cuda/kernel_source.h"
#include "engine/backends/cuda/key.h"

namespace teletensor::backends::cuda {

// How a kernel addresses one tensor: the loop's linear index itself, loaded 16 bytes at a time or
// one by one; one element for all; or by coordinates, with a run of neighbours (aligned to 16 bytes
// or not), one element repeated, or strides of its own along the innermost dimension.
enum class Access : char {
  kLinear = 'l',
  kUnaligned = 'u',
  kConstant = 'c',
  kRun = 'r',
  kRepeated = 'b',
  kStrided = 's',
};
inline bool by_coordinates(Access access) {
  return access == Access::kRun || access == Access::kRepeated || access == Access::kStrided;
}

struct LoopSlot {  // a tensor in memory
  core::DType dtype = core::DType::kF32;
  Access access = Access::kLinear;
};
struct LoopOperand {
  enum class Kind : char { kSlot, kStep, kNumber };
  Kind kind = Kind::kSlot;
  std::uint8_t index = 0;  // of the slot or the step
  core::DType dtype = core::DType::kF32;
  bool round = false;  // through the step's dtype
};
struct LoopNode {
  const cpu::Loops* loops = nullptr;        // null: a copy, cast to its dtype
  core::DType compute = core::DType::kF32;  // the dtype of the compute type
  core::DType dtype = core::DType::kF32;    // cpu::Plan::dtype
  core::DType result = core::DType::kF32;
  bool condition = false;  // operand 0 is one
  bool empty = true;       // the functor has no members
  bool stored = false;
  std::uint8_t slot = 0;
  std::uint8_t operands = 0;
  LoopOperand in[cpu::kMaxOperands];
};
// All that a loop's text depends on.
struct LoopGraph {
  bool wide = false;     // indices of 64 bits
  bool guarded = false;  // computes nothing where the call's flag is set
  std::uint8_t rank = 1, width = 1;
  std::vector<LoopSlot> slots;
  std::vector<LoopNode> nodes;

  std::string key() const;
  static LoopGraph of_key(std::string_view key);
};

KernelSource print_loop(const LoopGraph& graph);

// One launch for the steps; see describe_loop in device_table.h.
// `checks`: where a step that may refuse puts its check, and finds its flag; null: it is refused.
struct LoopChecks {
  KernelCall& call;
  Work& work;
};
core::Status pack_loop(std::span<const LoopStep> steps, Parallel& parallel, Scratch& scratch,
                       LoopGraph& graph, std::vector<std::byte>& params, LaunchShape& shape,
                       const LoopChecks* checks = nullptr);

}  // namespace teletensor::backends::cuda
