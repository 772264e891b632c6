// Our own matrix products: small f32 products, for which a library call costs more than the work,
// and all f64 products. Each element of the result is one chain of (fused) multiply-adds over k in
// ascending order (gemm_dot: a fixed number of partial chains), so its bits do not depend on how
// rows are split into parts.
#pragma once

#include <cstdint>

namespace teletensor::backends::cpu {

// A matrix in memory: element (i, j) is at data[i * row + j * column].
template <class T>
struct MatrixRef {
  T* data;
  std::int64_t row, column;
};

// c = a @ b, or c += a @ b. c is [m, n] with rows `ldc` apart. The elements of each row of c and of
// b are adjacent (b.column == 1).
template <class T>
void gemm_rows(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef<const T> a,
               MatrixRef<const T> b, T* c, std::int64_t ldc, bool accumulate);

// c = a @ b, where the k elements of each row of a and of each column of b are adjacent (a.column
// == 1, b.row == 1).
template <class T>
void gemm_dot(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef<const T> a,
              MatrixRef<const T> b, T* c, std::int64_t ldc);

// Any strides and size, on the calling thread; packs blocks of b.
template <class T>
void gemm_blocked(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef<const T> a,
                  MatrixRef<const T> b, T* c, std::int64_t ldc);

}  // namespace teletensor::backends::cpu
