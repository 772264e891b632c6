// Estimates how long a step takes, for decisions before anything has run.
#pragma once

#include "engine/ops/op.h"
#include "engine/program/program.h"

namespace teletensor::passes {

// Cost model of a step in nanoseconds, for one CPU core or for a GPU. The GPU's memory counts as
// 100 times and its products as 600 times as fast.
struct Speed {
  double step;      // constant cost of a step
  double element;   // per element that is read or written
  double product;   // per multiply-add
  double computed;  // per element that a cheap op computes
};
const Speed& speed_of(core::Device device);

// Estimates the time in nanoseconds on the device of the step's result, within about a factor of
// two. Products are counted by their multiply-adds, and other ops by the elements that they read
// and write, which is too low for ops that compute much per element. Steps inside branches and
// loops are not counted.
double estimated_ns(const program::Step& step, const program::Program& program,
                    const ops::Catalog& catalog);

}  // namespace teletensor::passes
