// The scalar functors behind the elementwise ops, total: every input has one defined result, also
// where C++ has none (division by zero, the minimum by -1, shifts, overflow). Shared by CPU and
// CUDA.
//
// A functor is called with the compute type: float (for f16, bf16, f32), double, int64 (for bool
// and the other integers; the store wraps to the dtype, of a bool "not zero" remains), uint64 (for
// u64), Complex64 or Complex128. It says
//   kOp       the op it computes
//   kTypes    for which compute types it exists (kReal: float and double; kAny: also the integers;
//             kInexact: kReal and complex; kAll: all of them)
// and, only where they differ from the default,
//   kLibm     it calls a function of scalar_math.h (loops then avoid scalar remainders, so that an
//             element's bits do not depend on where in the tensor it lies)
//   kCost     rough time in units of an addition (default 1; for deciding about threads)
// and is made from the op's attributes by a constructor where it has parameters. A bool result
// means that the op's result is a bool. Branches are selections between computed values: loops must
// vectorise.
#pragma once

#include "engine/ops/scalar_binary.h"
#include "engine/ops/scalar_ternary.h"
#include "engine/ops/scalar_unary.h"
