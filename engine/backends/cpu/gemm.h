// One matrix product on the calling thread: oneDNN's, or our own where a call costs more than the
// work.
#pragma once

#include "engine/backends/cpu/gemm_simd.h"
#include "engine/core/status.h"

namespace teletensor::backends::cpu {

// c = a @ b, [m, k] x [k, n]; rows of c are `ldc` apart. Operands whose rows or columns are dense
// are read in place.
core::Status gemm(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef<const float> a,
                  MatrixRef<const float> b, float* c, std::int64_t ldc);
core::Status gemm(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef<const double> a,
                  MatrixRef<const double> b, double* c, std::int64_t ldc);

}  // namespace teletensor::backends::cpu
