// How long a step takes, for whoever has to choose before anything has run.
#pragma once

#include "engine/ops/op.h"
#include "engine/program/program.h"

namespace teletensor::passes {

// Nanoseconds of the parts of a step: of one core, or of a GPU, where memory is 100 times as fast
// and products are 600 times as fast.
struct Speed {
  double step;      // of any step
  double element;   // that is read or written
  double product;   // a multiplication and an addition
  double computed;  // an element that a cheap op makes of others
};
const Speed& speed_of(core::Device device);

// Nanoseconds on the device of the step's result, right to a factor of two: products by their
// multiplications, other ops by the elements that they read and write, which is too little for
// those that do more with each. What is inside of branches and loops does not count.
double estimated_ns(const program::Step& step, const program::Program& program,
                    const ops::Catalog& catalog);

}  // namespace teletensor::passes
