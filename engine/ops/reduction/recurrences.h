// Linear recurrences along a dimension, s_i = a s_(i-1) + b_i, for the derivatives of products.
// Their own derivatives are recurrences, so products have derivatives of any order, also at zeros.
#pragma once

#include "engine/ops/functions.h"

namespace teletensor::ops {

enum class Direction { kForward, kBackward };

// s_i = f * s_p + b_i, where p is the previous position in the given direction and s is 0 outside
// of the tensor. The factor f is a_i if `own`, otherwise a_p. a and b have the same shape, of rank
// 1 or more.
Var recurrence(const Var& a, const Var& b, int dim, Direction direction, bool own);
// Shifts x by one position along dim in the given direction and fills in a zero.
Var shifted(const Var& x, int dim, Direction direction);
// Zeros like x, with ones at the first (or last) position along dim. Precondition: x is not empty.
Var one_at_end(const Var& x, int dim, bool last);

}  // namespace teletensor::ops
