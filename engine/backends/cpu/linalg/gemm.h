// One matrix product on the calling thread: by oneDNN, or by our own kernel if calling the library
// would cost more than the work.
#pragma once

#include "engine/backends/cpu/linalg/gemm_simd.h"
#include "engine/core/status.h"

namespace teletensor::backends::cpu {

// c = a @ b for [m, k] x [k, n]; rows of c are `ldc` elements apart. Operands with dense rows or
// dense columns are read in place.
core::Status gemm(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef<const float> a,
                  MatrixRef<const float> b, float* c, std::int64_t ldc);
core::Status gemm(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef<const double> a,
                  MatrixRef<const double> b, double* c, std::int64_t ldc);

// oneDNN's sgemm for AVX2 reads two kinds of operands in place for each block of the result: a left
// factor with dense columns, and a right factor with dense rows. Returns true if the lines of such
// an f32 operand, `stride` elements apart, share a few sets of the cache, because the distance is a
// multiple of 2 KiB. The product then takes 1.5 to 3 times as long.
bool lines_collide(std::int64_t stride);

// The distance at which lines of `length` elements are stored so that they do not collide: at most
// length + kLineGap.
constexpr std::int64_t kLineGap = 16;
inline std::int64_t stride_of_lines(std::int64_t length) {
  return lines_collide(length) ? length + kLineGap : length;
}

}  // namespace teletensor::backends::cpu
