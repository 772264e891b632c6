// Loops: which steps become one kernel. A loop goes once over the elements of its layout, block by
// block; what only its own steps read is never written to memory. The rule is the same for captured
// programs and for windows of the stream: both are described as FuseSteps first.
//
// A loop holds elementwise steps of one layout, joined by reading each other at exactly that
// layout, and at its end reductions over trailing dimensions. Only steps that cannot fail by their
// data are offered. Values are rounded to their dtypes inside the loop too, by the same functors:
// the bits are those of single kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/ops/op.h"
#include "engine/program/program.h"

namespace teletensor::passes {

struct FuseStep {
  enum class Kind : std::uint8_t {
    kPlain,
    kElement,  // each element of the result needs one of each operand (broadcasts included)
    kFold,     // operand 0, of layout `layout`, is folded along its trailing dimensions
    kBarrier,  // everything before ends before it (control flow)
  };
  struct Read {
    std::uint32_t value = 0;
    std::uint32_t layout = 0;  // equal numbers: equal shape, strides and offset
  };
  Kind kind = Kind::kPlain;
  std::uint32_t layout = 0;  // of the loop that it can be part of
  std::vector<Read> reads;
  std::vector<std::uint32_t> writes;
  std::vector<std::uint32_t> overwrites;  // values whose storage a result may take over
};

// What runs as one: a single step, or the steps of a loop in their order.
struct Unit {
  std::vector<std::uint32_t> steps;
  bool loop() const { return steps.size() > 1; }
  friend bool operator==(const Unit&, const Unit&) = default;
};

inline constexpr std::size_t kMaxLoopSteps = 24;
inline constexpr std::int64_t kShortRow = 256;    // a shorter one is folded by the op's own kernel
inline constexpr std::size_t kMaxLoopReads = 32;  // of values from outside

// Units in an order that respects every reader and every overwrite. Linear in the steps.
std::vector<Unit> fuse(const std::vector<FuseStep>& steps);

// Steps of a program's block as fuse() wants them; without one, of its body.
std::vector<FuseStep> fuse_steps(const program::Block& block, const program::Program& program,
                                 const ops::Catalog& catalog);
std::vector<FuseStep> fuse_steps(const program::Program& program,
                                 const ops::Catalog& catalog = ops::catalog());
// May this op be a step of a loop? (Its dtypes decide the rest: may_fail().)
bool loopable(const ops::OpDef& op);
// Is it a fold over trailing dimensions of a row-major operand that a loop can end with?
bool trailing_fold(const ops::OpDef& op, const core::Attributes& attributes,
                   const core::Geometry& operand);

}  // namespace teletensor::passes
