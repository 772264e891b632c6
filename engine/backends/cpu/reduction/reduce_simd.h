// The inner loops of reductions, compiled per instruction set. The bits depend only on lengths: 64
// partial results (32 for 8-byte types) for every vector width, and then a binary tree.
#pragma once

#include <cstdint>

namespace teletensor::backends::cpu {

// kLeaf: the number of elements in one leaf of a reduction tree. kLeafRows: the number of rows in a
// leaf of an outer reduction.
inline constexpr std::int64_t kLeaf = 2048;
inline constexpr std::int64_t kLeafRows = 64;

// kNanSum: the sum of the elements that are not NaN, if A is a floating type.
enum class FoldKind { kSum, kNanSum, kProd, kMax, kMin };

// An associative operation over A. Maximum and minimum are NaN if any element is NaN.
template <class A>
struct Fold {
  A identity;
  A (*pair)(A a, A b);
  // Reduces x[0..n) in a tree, 1 <= n.
  A (*leaf)(const A* x, std::int64_t n);
  // acc[c] = reduction of acc[c] and x[r * row_stride + c] over r < rows.
  void (*rows)(A* acc, const A* x, std::int64_t row_stride, std::int64_t rows,
               std::int64_t columns);
  // acc[c] = pair(acc[c], other[c]).
  void (*merge)(A* acc, const A* other, std::int64_t columns);
};
// A is float, double, int64 or uint64; for kSum and kProd also Complex64 and Complex128.
template <class A>
const Fold<A>& fold_of(FoldKind kind);

// The function that is applied to an element before the reduction, given the result's `center`.
enum class Map {
  kNone,
  kSquaredDifference,  // (x - center)^2
  kExpDifference,      // exp(x - center)
  kAbs,
  kSquare,
  kAbsPower,  // |x|^p
  kNonZero,   // 1 or 0
};
// y[i] = map(x[i]) with center[i * center_step]. x may be y. A is float or double (for other types
// only kNone).
template <class A>
void apply_map(Map map, const A* x, std::int64_t n, const A* center, std::int64_t center_step,
               double p, A* y);

}  // namespace teletensor::backends::cpu
