// Loops on the CPU run several elementwise instructions together, one block of each after the
// other. Values that only the loop reads need a few kilobytes, which stay in the first-level cache.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/backends/backend.h"
#include "engine/backends/cpu/pointwise/elementwise.h"

namespace teletensor::backends {

// Receives the descriptions of elementwise kernels, one step each, instead of running them.
class LoopMaker {
 public:
  // Describes the step as an elementwise computation.
  virtual core::Status add(std::span<const TensorArg> in, const cpu::Plan& plan) = 0;
  // Describes the step as a copy of `from`, cast to the dtype of the result.
  virtual core::Status add_copy(const TensorArg& from) = 0;
  // Called before add() by a step that refuses an integer zero in this operand. Returns an error if
  // a step of this loop must not fail.
  virtual core::Status add_check(const TensorArg& divisor) {
    (void)divisor;
    return core::Status(core::Code::kUnimplemented, "a step that may refuse");
  }

 protected:
  ~LoopMaker() = default;
};

}  // namespace teletensor::backends

namespace teletensor::backends::cpu {

// Returned by kernels that need the data of their operands and so cannot be a step.
inline core::Status no_step(const KernelCall& call) {
  return core::Status(core::Code::kUnimplemented, call.op.name + ": not in a loop");
}

}  // namespace teletensor::backends::cpu
