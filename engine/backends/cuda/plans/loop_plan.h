// The loop skeleton: elementwise steps over operands of any layout; each thread computes a few
// elements.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/backends/backend.h"
#include "engine/backends/cpu/pointwise/elementwise.h"
#include "engine/backends/cuda/codegen/kernel_source.h"
#include "engine/backends/cuda/codegen/key.h"

namespace teletensor::backends::cuda {

// How a kernel addresses one tensor: by the linear index of the loop (loaded 16 bytes at a time, or
// one by one), one element for all, or by coordinates: as a run of adjacent elements along the
// innermost dimension (aligned to 16 bytes or not), as one repeated element, or with a stride.
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
  std::uint8_t index = 0;  // index of the slot or of the step
  core::DType dtype = core::DType::kF32;
  bool round = false;  // rounded to the dtype of the step that made it
};
struct LoopNode {
  const cpu::Loops* loops = nullptr;        // null for a copy that casts to `dtype`
  core::DType compute = core::DType::kF32;  // the dtype of the compute type
  core::DType dtype = core::DType::kF32;    // cpu::Plan::dtype
  core::DType result = core::DType::kF32;
  bool condition = false;  // operand 0 is a condition
  bool empty = true;       // the functor has no data members
  bool stored = false;
  std::uint8_t slot = 0;
  std::uint8_t operands = 0;
  LoopOperand in[cpu::kMaxOperands];
};
// The properties of a loop that determine the source text of its kernel.
struct LoopGraph {
  bool wide = false;     // indices need 64 bits
  bool guarded = false;  // computes nothing if the call's flag is set
  std::uint8_t rank = 1, width = 1;
  std::vector<LoopSlot> slots;
  std::vector<LoopNode> nodes;

  std::string key() const;
  static LoopGraph of_key(std::string_view key);
};

KernelSource print_loop(const LoopGraph& graph);

// Describes the steps as one launch; see describe_loop in device_table.h. A step that can fail adds
// its check to `checks` and finds its flag there; if `checks` is null, such a step is refused.
struct LoopChecks {
  KernelCall& call;
  Work& work;
};
core::Status pack_loop(std::span<const LoopStep> steps, Parallel& parallel, Scratch& scratch,
                       LoopGraph& graph, std::vector<std::byte>& params, LaunchShape& shape,
                       const LoopChecks* checks = nullptr);

}  // namespace teletensor::backends::cuda
