#include "engine/backends/cpu/linalg/gemm_simd.h"

#include <algorithm>
#include <memory>
#include <new>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/backends/cpu/linalg/gemm_simd.cc"
#include "engine/backends/cpu/access/targets.h"
#include "hwy/foreach_target.h"  // compiles the part below once per instruction set
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace teletensor::backends::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The kRows x kVectors accumulators must fit into the registers, and so must the kDotRows x
// kDotColumns ones.
#if HWY_TARGET <= HWY_AVX3
constexpr int kRows = 8, kVectors = 3, kDotRows = 4, kDotColumns = 6;
#elif HWY_TARGET <= HWY_AVX2
constexpr int kRows = 4, kVectors = 3, kDotRows = 4, kDotColumns = 2;
#else
constexpr int kRows = 4, kVectors = 2, kDotRows = 4, kDotColumns = 2;
#endif

template <class T, int kR, int kV>
HWY_INLINE void tile(std::int64_t k, const T* HWY_RESTRICT a, std::int64_t row, std::int64_t column,
                     const T* HWY_RESTRICT b, std::int64_t b_row, T* HWY_RESTRICT c,
                     std::int64_t ldc, bool accumulate) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  V sum[kR][kV];
  for (int r = 0; r < kR; ++r) {
    for (int v = 0; v < kV; ++v) {
      sum[r][v] = accumulate ? hn::LoadU(d, c + r * ldc + v * lanes) : hn::Zero(d);
    }
  }
  for (std::int64_t p = 0; p < k; ++p) {
    V x[kV];
    for (int v = 0; v < kV; ++v) x[v] = hn::LoadU(d, b + p * b_row + v * lanes);
    for (int r = 0; r < kR; ++r) {
      const V factor = hn::Set(d, a[r * row + p * column]);
      for (int v = 0; v < kV; ++v) sum[r][v] = hn::MulAdd(factor, x[v], sum[r][v]);
    }
  }
  for (int r = 0; r < kR; ++r) {
    for (int v = 0; v < kV; ++v) hn::StoreU(sum[r][v], d, c + r * ldc + v * lanes);
  }
}

// The last columns, which are fewer than a vector.
template <class T, int kR>
HWY_INLINE void edge(std::int64_t n, std::int64_t k, const T* HWY_RESTRICT a, std::int64_t row,
                     std::int64_t column, const T* HWY_RESTRICT b, std::int64_t b_row,
                     T* HWY_RESTRICT c, std::int64_t ldc, bool accumulate) {
#if HWY_TARGET <= HWY_AVX2
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  const auto mask = hn::FirstN(d, static_cast<std::size_t>(n));
  V sum[kR];
  for (int r = 0; r < kR; ++r) {
    sum[r] = accumulate ? hn::MaskedLoad(mask, d, c + r * ldc) : hn::Zero(d);
  }
  for (std::int64_t p = 0; p < k; ++p) {
    const V x = hn::MaskedLoad(mask, d, b + p * b_row);
    for (int r = 0; r < kR; ++r) {
      sum[r] = hn::MulAdd(hn::Set(d, a[r * row + p * column]), x, sum[r]);
    }
  }
  for (int r = 0; r < kR; ++r) hn::BlendedStore(sum[r], mask, d, c + r * ldc);
#else
  for (int r = 0; r < kR; ++r) {
    for (std::int64_t j = 0; j < n; ++j) {
      T sum = accumulate ? c[r * ldc + j] : T(0);
      for (std::int64_t p = 0; p < k; ++p) sum += a[r * row + p * column] * b[p * b_row + j];
      c[r * ldc + j] = sum;
    }
  }
#endif
}

template <class T, int kR>
void strip(std::int64_t n, std::int64_t k, const T* a, std::int64_t row, std::int64_t column,
           const T* b, std::int64_t b_row, T* c, std::int64_t ldc, bool accumulate) {
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<T>()));
  std::int64_t j = 0;
  for (; j + kVectors * lanes <= n; j += kVectors * lanes) {
    tile<T, kR, kVectors>(k, a, row, column, b + j, b_row, c + j, ldc, accumulate);
  }
  for (; j + lanes <= n; j += lanes) {
    tile<T, kR, 1>(k, a, row, column, b + j, b_row, c + j, ldc, accumulate);
  }
  if (j < n) edge<T, kR>(n - j, k, a, row, column, b + j, b_row, c + j, ldc, accumulate);
}

template <class T>
void rows(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t row,
          std::int64_t column, const T* b, std::int64_t b_row, T* c, std::int64_t ldc,
          bool accumulate) {
  std::int64_t i = 0;
  for (; i + kRows <= m; i += kRows) {
    strip<T, kRows>(n, k, a + i * row, row, column, b, b_row, c + i * ldc, ldc, accumulate);
  }
  for (; i + 2 <= m; i += 2) {
    strip<T, 2>(n, k, a + i * row, row, column, b, b_row, c + i * ldc, ldc, accumulate);
  }
  if (i < m) strip<T, 1>(n, k, a + i * row, row, column, b, b_row, c + i * ldc, ldc, accumulate);
}

template <class T>
T dot_one(std::int64_t k, const T* HWY_RESTRICT a, const T* HWY_RESTRICT b) {
  const hn::ScalableTag<T> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  std::int64_t p = 0;
  for (; p + 4 * lanes <= k; p += 4 * lanes) {
    s0 = hn::MulAdd(hn::LoadU(d, a + p), hn::LoadU(d, b + p), s0);
    s1 = hn::MulAdd(hn::LoadU(d, a + p + lanes), hn::LoadU(d, b + p + lanes), s1);
    s2 = hn::MulAdd(hn::LoadU(d, a + p + 2 * lanes), hn::LoadU(d, b + p + 2 * lanes), s2);
    s3 = hn::MulAdd(hn::LoadU(d, a + p + 3 * lanes), hn::LoadU(d, b + p + 3 * lanes), s3);
  }
  for (; p + lanes <= k; p += lanes) {
    s0 = hn::MulAdd(hn::LoadU(d, a + p), hn::LoadU(d, b + p), s0);
  }
  T rest = 0;
#if HWY_TARGET <= HWY_AVX2
  if (p < k) {
    const auto mask = hn::FirstN(d, static_cast<std::size_t>(k - p));
    s1 = hn::MulAdd(hn::MaskedLoad(mask, d, a + p), hn::MaskedLoad(mask, d, b + p), s1);
  }
#else
  for (; p < k; ++p) rest += a[p] * b[p];
#endif
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)))) + rest;
}

// Several dot products, so that each loaded vector is used several times.
template <class T, int kR, int kC>
HWY_INLINE void dot_tile(std::int64_t k, const T* HWY_RESTRICT a, std::int64_t a_row,
                         const T* HWY_RESTRICT b, std::int64_t b_column, T* HWY_RESTRICT c,
                         std::int64_t ldc) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  V sum[kR][kC];
  for (auto& row : sum) {
    for (V& each : row) each = hn::Zero(d);
  }
  std::int64_t p = 0;
  for (; p + lanes <= k; p += lanes) {
    V x[kR];
    for (int r = 0; r < kR; ++r) x[r] = hn::LoadU(d, a + r * a_row + p);
    for (int j = 0; j < kC; ++j) {
      const V y = hn::LoadU(d, b + j * b_column + p);
      for (int r = 0; r < kR; ++r) sum[r][j] = hn::MulAdd(x[r], y, sum[r][j]);
    }
  }
  for (int r = 0; r < kR; ++r) {
    for (int j = 0; j < kC; ++j) {
      T total = hn::GetLane(hn::SumOfLanes(d, sum[r][j]));
      for (std::int64_t q = p; q < k; ++q) total += a[r * a_row + q] * b[j * b_column + q];
      c[r * ldc + j] = total;
    }
  }
}

// A few columns of b stay in the first-level cache while all rows of a are multiplied with them.
template <class T>
void dots(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t a_row,
          const T* b, std::int64_t b_column, T* c, std::int64_t ldc) {
  const std::int64_t tiled = m / kDotRows * kDotRows;
  std::int64_t j = 0;
  for (; j + kDotColumns <= n; j += kDotColumns) {
    for (std::int64_t i = 0; i < tiled; i += kDotRows) {
      dot_tile<T, kDotRows, kDotColumns>(k, a + i * a_row, a_row, b + j * b_column, b_column,
                                         c + i * ldc + j, ldc);
    }
    for (std::int64_t i = tiled; i < m; ++i) {
      dot_tile<T, 1, kDotColumns>(k, a + i * a_row, a_row, b + j * b_column, b_column,
                                  c + i * ldc + j, ldc);
    }
  }
  for (; j < n; ++j) {
    for (std::int64_t i = 0; i < m; ++i) {
      c[i * ldc + j] = dot_one(k, a + i * a_row, b + j * b_column);
    }
  }
}

void rows_f32(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t row,
              std::int64_t column, const float* b, std::int64_t b_row, float* c, std::int64_t ldc,
              bool accumulate) {
  rows(m, n, k, a, row, column, b, b_row, c, ldc, accumulate);
}
void rows_f64(std::int64_t m, std::int64_t n, std::int64_t k, const double* a, std::int64_t row,
              std::int64_t column, const double* b, std::int64_t b_row, double* c, std::int64_t ldc,
              bool accumulate) {
  rows(m, n, k, a, row, column, b, b_row, c, ldc, accumulate);
}
void dots_f32(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t a_row,
              const float* b, std::int64_t b_column, float* c, std::int64_t ldc) {
  dots(m, n, k, a, a_row, b, b_column, c, ldc);
}
void dots_f64(std::int64_t m, std::int64_t n, std::int64_t k, const double* a, std::int64_t a_row,
              const double* b, std::int64_t b_column, double* c, std::int64_t ldc) {
  dots(m, n, k, a, a_row, b, b_column, c, ldc);
}
// The number of columns of b that a tile takes at once, which is the width of packed strips.
std::int64_t width_f32() {
  return kVectors * static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<float>()));
}
std::int64_t width_f64() {
  return kVectors * static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<double>()));
}

}  // namespace HWY_NAMESPACE
}  // namespace teletensor::backends::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace teletensor::backends::cpu {

HWY_EXPORT(rows_f32);
HWY_EXPORT(rows_f64);
HWY_EXPORT(dots_f32);
HWY_EXPORT(dots_f64);
HWY_EXPORT(width_f32);
HWY_EXPORT(width_f64);

template <>
void gemm_rows(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef<const float> a,
               MatrixRef<const float> b, float* c, std::int64_t ldc, bool accumulate) {
  HWY_DYNAMIC_DISPATCH(rows_f32)
  (m, n, k, a.data, a.row, a.column, b.data, b.row, c, ldc, accumulate);
}
template <>
void gemm_rows(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef<const double> a,
               MatrixRef<const double> b, double* c, std::int64_t ldc, bool accumulate) {
  HWY_DYNAMIC_DISPATCH(rows_f64)
  (m, n, k, a.data, a.row, a.column, b.data, b.row, c, ldc, accumulate);
}
template <>
void gemm_dot(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef<const float> a,
              MatrixRef<const float> b, float* c, std::int64_t ldc) {
  HWY_DYNAMIC_DISPATCH(dots_f32)(m, n, k, a.data, a.row, b.data, b.column, c, ldc);
}
template <>
void gemm_dot(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef<const double> a,
              MatrixRef<const double> b, double* c, std::int64_t ldc) {
  HWY_DYNAMIC_DISPATCH(dots_f64)(m, n, k, a.data, a.row, b.data, b.column, c, ldc);
}

namespace {

// Blocks of b: kDepth x kColumns (rounded up to whole strips) stay in the second-level cache.
constexpr std::int64_t kDepth = 256, kColumns = 384;

std::int64_t width(float) { return HWY_DYNAMIC_DISPATCH(width_f32)(); }
std::int64_t width(double) { return HWY_DYNAMIC_DISPATCH(width_f64)(); }

// One block per thread, which is kept: it is small, and allocating it would cost more than many
// products.
template <class T>
T* pack_buffer() {
  struct Free {
    void operator()(T* p) const { ::operator delete(p, std::align_val_t(64)); }
  };
  thread_local const std::unique_ptr<T, Free> buffer(
      static_cast<T*>(::operator new((kColumns + 64) * kDepth * sizeof(T), std::align_val_t(64))));
  return buffer.get();
}

}  // namespace

template <class T>
void gemm_blocked(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef<const T> a,
                  MatrixRef<const T> b, T* c, std::int64_t ldc) {
  T* const packed = pack_buffer<T>();
  const std::int64_t strip = width(T{});
  for (std::int64_t j0 = 0; j0 < n; j0 += kColumns) {
    const std::int64_t columns = std::min(kColumns, n - j0);
    for (std::int64_t p0 = 0; p0 < k; p0 += kDepth) {
      const std::int64_t depth = std::min(kDepth, k - p0);
      for (std::int64_t s = 0; s < columns; s += strip) {
        const std::int64_t wide = std::min(strip, columns - s);
        T* to = packed + s * depth;
        const T* from = b.data + p0 * b.row + (j0 + s) * b.column;
        for (std::int64_t p = 0; p < depth; ++p) {
          for (std::int64_t j = 0; j < wide; ++j) to[p * wide + j] = from[p * b.row + j * b.column];
        }
      }
      // A few rows at a time are multiplied with all strips, so that the rows of a are read from
      // the first-level cache.
      for (std::int64_t i = 0; i < m; i += 64) {
        const std::int64_t rows = std::min<std::int64_t>(64, m - i);
        const MatrixRef<const T> part{a.data + i * a.row + p0 * a.column, a.row, a.column};
        for (std::int64_t s = 0; s < columns; s += strip) {
          const std::int64_t wide = std::min(strip, columns - s);
          gemm_rows<T>(rows, wide, depth, part, {packed + s * depth, wide, 1}, c + i * ldc + j0 + s,
                       ldc, p0 > 0);
        }
      }
    }
  }
}
template void gemm_blocked(std::int64_t, std::int64_t, std::int64_t, MatrixRef<const float>,
                           MatrixRef<const float>, float*, std::int64_t);
template void gemm_blocked(std::int64_t, std::int64_t, std::int64_t, MatrixRef<const double>,
                           MatrixRef<const double>, double*, std::int64_t);

}  // namespace teletensor::backends::cpu
#endif
