// The inner loops of reductions, compiled per instruction set. Bits depend on lengths alone: 64
// partial results (32 for 8-byte types) whatever the vector width, then a binary tree.
#pragma once

#include <cstdint>

namespace teletensor::backends::cpu {

// Elements that one leaf of a reduction tree covers; the number of rows in a leaf of an outer
// reduction.
inline constexpr std::int64_t kLeaf = 2048;
inline constexpr std::int64_t kLeafRows = 64;

// kNanSum: of what is not NaN, where A is a floating type.
enum class FoldKind { kSum, kNanSum, kProd, kMax, kMin };

// An associative operation over A. Max and min return NaN once they have met one.
template <class A>
struct Fold {
  A identity;
  A (*pair)(A a, A b);
  // The tree over x[0..n), 1 <= n.
  A (*leaf)(const A* x, std::int64_t n);
  // acc[c] = fold of acc[c] and x[r * row_stride + c] over r < rows.
  void (*rows)(A* acc, const A* x, std::int64_t row_stride, std::int64_t rows,
               std::int64_t columns);
  // acc[c] = pair(acc[c], other[c]).
  void (*merge)(A* acc, const A* other, std::int64_t columns);
};
// A: float, double, int64, uint64; Complex64, Complex128 (kSum and kProd only).
template <class A>
const Fold<A>& fold_of(FoldKind kind);

// What happens to an element before it is folded, given the output element's `center`.
enum class Map {
  kNone,
  kSquaredDifference,  // (x - center)^2
  kExpDifference,      // exp(x - center)
  kAbs,
  kSquare,
  kAbsPower,  // |x|^p
  kNonZero,   // 1 or 0
};
// y[i] = map(x[i]) with center[i * center_step]. x may be y. A: float, double (others: kNone only).
template <class A>
void apply_map(Map map, const A* x, std::int64_t n, const A* center, std::int64_t center_step,
               double p, A* y);

}  // namespace teletensor::backends::cpu
