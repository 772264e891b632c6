// The fold skeleton: reductions that add in the same tree as the CPU's kernels, so that the bits
// agree. A reduction splits the reduced elements of each result into leaves. One launch computes
// the value of each leaf; if a result has several leaves, further launches merge their values.
#pragma once

#include <string>
#include <string_view>

#include "engine/backends/cpu/reduction/reduce_plan.h"
#include "engine/backends/cuda/device_table.h"

namespace teletensor::backends::cuda {

enum class FoldOp : char { kSum, kProd, kMax, kMin, kFirstMax, kFirstMin };
enum class FoldMap : char {
  kNone,
  kTruth,  // nonzero becomes 1, zero 0
  kSquaredDifference,
  kExpDifference,
  kAbs,
  kSquare,
  kAbsPower,
  kNonZero,
  kNumber,  // NaN becomes 0
};
enum class FoldFinish : char {
  kNone,
  kDivide,      // by `number`
  kDivideRoot,  // divided by `number`, then the square root
  kRoot,
  kPower,
  kFinite,  // infinities become 0
  kLogAdd,  // the logarithm plus the center
  kPlace,   // the position of an extremum
  kBoth,    // the value and the position of an extremum
};
// The properties of a launch that determine the source text of its kernel.
struct FoldGraph {
  enum class Stage : char { kAlong, kAcross, kMergeThread, kMergeBlock };
  Stage stage = Stage::kAlong;
  core::DType in = core::DType::kF32, compute = core::DType::kF32, out = core::DType::kF32;
  FoldOp op = FoldOp::kSum;
  FoldMap map = FoldMap::kNone;
  FoldFinish finish = FoldFinish::kNone;
  bool last = true;                    // this launch computes the result and not values of leaves
  bool wide = false;                   // indices need 64 bits
  std::uint8_t kept = 0, reduced = 1;  // number of axes

  std::string key() const;
  static FoldGraph of_key(std::string_view key);
};

KernelSource print_fold(const FoldGraph& graph);

inline bool finds(FoldOp op) { return op == FoldOp::kFirstMax || op == FoldOp::kFirstMin; }
// The size in bytes of a leaf's value.
inline std::size_t size_of_value(FoldOp op, core::DType compute) {
  return finds(op) ? 16 : core::size_of(compute);
}
// The number of leaves that one block merges, a power of two; each of its threads merges a part of
// them.
inline std::int64_t merge_block(FoldOp op, core::DType compute) {
  return size_of_value(op, compute) > 8 ? 2048 : 8192;
}

// One reduction of an operand.
struct FoldPass {
  FoldOp op = FoldOp::kSum;
  FoldMap map = FoldMap::kNone;
  FoldFinish finish = FoldFinish::kNone;
  core::DType compute = core::DType::kF32;
  double number = 0;  // the number that `finish` uses
  double power = 0;   // the exponent that `map` uses
  // For each result one value of the compute type, in the plan's order.
  const void* center = nullptr;
  // If not null, the values are stored here without gaps, instead of in the result.
  void* to = nullptr;
  void* places = nullptr;  // kBoth: the second result, with the positions
};
core::Status describe_fold(const TensorArg& in, const TensorArg& out, const cpu::ReducePlan& plan,
                           const FoldPass& pass, Scratch& scratch, Work& work);

}  // namespace teletensor::backends::cuda
