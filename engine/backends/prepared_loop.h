// PreparedLoop: a loop whose steps were described once and that runs many times, on other memory
// each time. LoopPreparer: a backend that can prepare loops.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "engine/backends/backend.h"

namespace teletensor::backends {

// Immutable. Any thread may run it.
class PreparedLoop {
 public:
  virtual ~PreparedLoop() = default;
  // Computes the steps from `first` up to `end`. in[i] is the storage of input i, and out[s] that
  // of the result of step s: for a step that is computed, null if only these steps read the result;
  // for an earlier one, null if they do not read it. Cannot fail.
  virtual void run(const void* const* in, void* const* out, std::size_t first,
                   std::size_t end) const = 0;
  virtual std::size_t bytes() const = 0;  // approximate memory
};

class LoopPreparer {
 public:
  virtual ~LoopPreparer() = default;
  // Prepares elementwise steps of one layout, which is dense and begins at offset 0. All operands
  // are numbers, or tensors of that layout without `data`: `number.integer` is the index of the
  // step that computes the operand, or -1 - i for input i of the loop. The bits are those of
  // Backend::run_loop. Returns null if a step cannot be prepared; `prepared` is the number of steps
  // in front of it.
  virtual std::unique_ptr<const PreparedLoop> prepare_loop(std::span<const LoopStep> steps,
                                                           std::size_t* prepared) = 0;
};

}  // namespace teletensor::backends
