// Loops on the CPU: the block machines of several instructions, a block of each after the other.
// What only the loop reads lies in a few kilobytes of the first-level cache.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/backends/backend.h"
#include "engine/backends/cpu/elementwise.h"

namespace teletensor::backends {

// What elementwise kernels tell instead of computing: one machine for each step.
class LoopMaker {
 public:
  // The step whose kernel is about to be called.
  virtual core::Status add(std::span<const TensorArg> in, const cpu::Plan& plan) = 0;
  // The result is `from`, cast to its dtype.
  virtual core::Status add_copy(const TensorArg& from) = 0;
  // Before add(): the step refuses an integer zero in this operand. Not ok where steps may not.
  virtual core::Status add_check(const TensorArg& divisor) {
    (void)divisor;
    return core::Status(core::Code::kUnimplemented, "a step that may refuse");
  }

 protected:
  ~LoopMaker() = default;
};

}  // namespace teletensor::backends

namespace teletensor::backends::cpu {

// This call needs its operands' data: it cannot be a step.
inline core::Status no_step(const KernelCall& call) {
  return core::Status(core::Code::kUnimplemented, call.op.name + ": not in a loop");
}

}  // namespace teletensor::backends::cpu
