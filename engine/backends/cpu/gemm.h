// One matrix product on the calling thread: by oneDNN, or by our own kernel if calling the library
// would cost more than the work.
#pragma once

#include "engine/backends/cpu/gemm_simd.h"
#include "engine/core/status.h"

namespace teletensor::backends::cpu {

// c = a @ b for [m, k] x [k, n]; rows of c are `ldc` elements apart. Operands with dense rows or
// dense columns are read in place.
core::Status gemm(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef<const float> a,
                  MatrixRef<const float> b, float* c, std::int64_t ldc);
core::Status gemm(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef<const double> a,
                  MatrixRef<const double> b, double* c, std::int64_t ldc);

}  // namespace teletensor::backends::cpu
