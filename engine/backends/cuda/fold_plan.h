// The fold skeleton: reductions in the tree that the CPU's kernels use, so that the bits agree. A
// fold is a launch that makes one value of each leaf and, where a result has several leaves,
// launches that fold the leaves' values.
#pragma once

#include <string>
#include <string_view>

#include "engine/backends/cpu/reduce_plan.h"
#include "engine/backends/cuda/device_table.h"

namespace teletensor::backends::cuda {

enum class FoldOp : char { kSum, kProd, kMax, kMin, kFirstMax, kFirstMin };
enum class FoldMap : char {
  kNone,
  kTruth,  // 1 or 0
  kSquaredDifference,
  kExpDifference,
  kAbs,
  kSquare,
  kAbsPower,
  kNonZero,
  kNumber,  // NaN as 0
};
enum class FoldFinish : char {
  kNone,
  kDivide,      // by the number
  kDivideRoot,  // and the root of it
  kRoot,
  kPower,
  kFinite,  // infinities become 0
  kLogAdd,  // the logarithm and the center
  kPlace,   // an extremum's place
  kBoth,    // its value and its place
};
// All that the text of one launch depends on.
struct FoldGraph {
  enum class Stage : char { kAlong, kAcross, kMergeThread, kMergeBlock };
  Stage stage = Stage::kAlong;
  core::DType in = core::DType::kF32, compute = core::DType::kF32, out = core::DType::kF32;
  FoldOp op = FoldOp::kSum;
  FoldMap map = FoldMap::kNone;
  FoldFinish finish = FoldFinish::kNone;
  bool last = true;                    // it makes the result, not values of leaves
  bool wide = false;                   // indices of 64 bits
  std::uint8_t kept = 0, reduced = 1;  // axes

  std::string key() const;
  static FoldGraph of_key(std::string_view key);
};

KernelSource print_fold(const FoldGraph& graph);

inline bool finds(FoldOp op) { return op == FoldOp::kFirstMax || op == FoldOp::kFirstMin; }
// The bytes of a leaf's value.
inline std::size_t size_of_value(FoldOp op, core::DType compute) {
  return finds(op) ? 16 : core::size_of(compute);
}
// The leaves that one block merges, a power of two: each of its threads holds a part of them.
inline std::int64_t merge_block(FoldOp op, core::DType compute) {
  return size_of_value(op, compute) > 8 ? 2048 : 8192;
}

// One pass over the operand.
struct FoldPass {
  FoldOp op = FoldOp::kSum;
  FoldMap map = FoldMap::kNone;
  FoldFinish finish = FoldFinish::kNone;
  core::DType compute = core::DType::kF32;
  double number = 0;             // of the finish
  double power = 0;              // of the map
  const void* center = nullptr;  // one of the compute type for each result, in the plan's order
  void* to = nullptr;            // where the values go, one after the other: not to the result
  void* places = nullptr;        // kBoth: the second result
};
core::Status describe_fold(const TensorArg& in, const TensorArg& out, const cpu::ReducePlan& plan,
                           const FoldPass& pass, Scratch& scratch, Work& work);

}  // namespace teletensor::backends::cuda
