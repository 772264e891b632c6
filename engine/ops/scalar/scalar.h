// The scalar functors of the elementwise ops; the CPU and the CUDA backend share them. They are
// total: every input has one defined result, even where C++ defines none (division by zero, the
// minimum divided by -1, shifts, overflow).
//
// A functor is called with a compute type: float (for f16, bf16, f32), double, int64 (for bool and
// the other integers; the store wraps the result to the dtype, and a bool is true if the result is
// not zero), uint64 (for u64), Complex64 or Complex128. It declares
//   kOp       the op that it computes
//   kTypes    the compute types that it supports (kReal: float and double; kAny: also the integers;
//             kInexact: kReal and complex; kAll: all of them)
// and, only if they differ from the default,
//   kLibm     it calls a function of scalar/math.h (its loops then avoid scalar remainders, so that
//             an element's bits do not depend on its position in the tensor)
//   kCost     rough time relative to an addition (default 1; used to decide about threads)
// A functor with parameters has a constructor that reads them from the op's attributes. If its
// result is a bool, so is the op's. Branches have to be selections between computed values, because
// the loops must vectorise.
#pragma once

#include "engine/ops/scalar/binary.h"
#include "engine/ops/scalar/ternary.h"
#include "engine/ops/scalar/unary.h"
