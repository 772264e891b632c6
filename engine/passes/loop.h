// Fusion: decides which steps become one kernel, a loop. A loop runs once over the elements of its
// layout, block by block; a value that only steps of the loop read is never written to memory. The
// same rule applies to captured programs and to windows of the stream; both are first described as
// FuseSteps.
//
// A loop consists of elementwise steps of one layout, connected by reading each other's results at
// exactly that layout, and at its end of reductions over trailing dimensions. Only steps whose data
// cannot make them fail are candidates. Inside the loop, values are rounded to their dtypes by the
// same functors, so the bits are those of separate kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/ops/op.h"
#include "engine/program/program.h"

namespace teletensor::passes {

struct FuseStep {
  enum class Kind : std::uint8_t {
    kPlain,
    kElement,  // each element of the result needs one element of each operand (broadcasts included)
    kFold,     // operand 0, of layout `layout`, is reduced over its trailing dimensions
    kBarrier,  // control flow: all earlier loops end before it
  };
  struct Read {
    std::uint32_t value = 0;
    std::uint32_t layout = 0;  // equal numbers mean equal shape, strides and offset
  };
  Kind kind = Kind::kPlain;
  std::uint32_t layout = 0;  // layout of the loop that the step can join
  std::vector<Read> reads;
  std::vector<std::uint32_t> writes;
  std::vector<std::uint32_t> overwrites;  // values whose storage a result may reuse
};

// Steps that run together: a single step, or the steps of a loop in their order.
struct Unit {
  std::vector<std::uint32_t> steps;
  bool loop() const { return steps.size() > 1; }
  friend bool operator==(const Unit&, const Unit&) = default;
};

inline constexpr std::size_t kMaxLoopSteps = 24;
inline constexpr std::int64_t kShortRow = 256;    // shorter rows are reduced by the op's own kernel
inline constexpr std::size_t kMaxLoopReads = 32;  // maximum number of values from outside the loop

// Returns the units in an order in which readers of a value come before the step that overwrites
// it. Takes time linear in the number of steps.
std::vector<Unit> fuse(const std::vector<FuseStep>& steps);

// Describes the steps of a block of the program for fuse(); the second form describes the program's
// body.
std::vector<FuseStep> fuse_steps(const program::Block& block, const program::Program& program,
                                 const ops::Catalog& catalog);
std::vector<FuseStep> fuse_steps(const program::Program& program,
                                 const ops::Catalog& catalog = ops::catalog());
// Returns true if this op can be a step of a loop. (may_fail() decides whether its dtypes allow
// that.)
bool loopable(const ops::OpDef& op);
// Returns true if this is a reduction over the trailing dimensions of a row-major operand, which
// can end a loop.
bool trailing_fold(const ops::OpDef& op, const core::Attributes& attributes,
                   const core::Geometry& operand);

}  // namespace teletensor::passes
