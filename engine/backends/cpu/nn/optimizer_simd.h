// The elementwise inner loop of optimizer steps: one pass over a parameter and its states, with a
// common skeleton and one rule per optimizer.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/ops/scalar/steps.h"

namespace teletensor::backends::cpu {

using ops::scalar::kStepParts;
using ops::scalar::Rule;
template <class A>
using Step = ops::scalar::Step<A>;

// Computes n elements of each part. in[i] is null if a part is absent; out[i] is null also if a
// part is not written. An output may be the same memory as its input. With kUnscale `found` is set
// if param is infinite or NaN. A is float or double.
template <class A>
void step_block(const Step<A>& step, std::int64_t n, const A* const* in, A* const* out,
                std::atomic<bool>* found);

}  // namespace teletensor::backends::cpu
