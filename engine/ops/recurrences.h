// Linear recurrences along a dimension as derivatives of products use them: s_i = a s_(i-1) + b_i.
// Their own derivatives are recurrences, so products have derivatives of any order, also at zeros.
#pragma once

#include "engine/ops/functions.h"

namespace teletensor::ops {

enum class Direction { kForward, kBackward };

// s_i = f * s_p + b_i, p the place before i (after it, going backward), s outside 0. The factor f
// is a_i if `own`, else a_p. a and b have one shape of rank 1 at least.
Var recurrence(const Var& a, const Var& b, int dim, Direction direction, bool own);
// Moved along dim by one place in the direction, a zero coming in.
Var shifted(const Var& x, int dim, Direction direction);
// Zeros like x with ones at the first (last) place of dim. x is not empty.
Var one_at_end(const Var& x, int dim, bool last);

}  // namespace teletensor::ops
