// The element-wise inner loop of optimizer steps, one pass over all of a parameter's memory: one
// skeleton, and a rule for each optimizer.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/ops/scalar_steps.h"

namespace teletensor::backends::cpu {

using ops::scalar::kStepParts;
using ops::scalar::Rule;
template <class A>
using Step = ops::scalar::Step<A>;

// n elements of each part; in[i] is null where a part is absent, out[i] too where it is not
// written. An output may be the matching input. `found`: kUnscale sets it where param is infinite
// or NaN. A: float or double.
template <class A>
void step_block(const Step<A>& step, std::int64_t n, const A* const* in, A* const* out,
                std::atomic<bool>* found);

}  // namespace teletensor::backends::cpu
