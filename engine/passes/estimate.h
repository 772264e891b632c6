// How long a step takes, for whoever has to choose before anything has run.
#pragma once

#include "engine/ops/op.h"
#include "engine/program/program.h"

namespace teletensor::passes {

inline constexpr double kStepNs = 1000;  // of any step

// Nanoseconds of one core, right to a factor of two: products by their multiplications, other ops
// by the elements that they read and write, which is too little for those that do more with each.
// What is inside of branches and loops does not count.
double estimated_ns(const program::Step& step, const program::Program& program,
                    const ops::Catalog& catalog);

}  // namespace teletensor::passes
