// Passes: functions from a Program to a better one. None changes a bit of what it computes, the
// errors it can raise, or the order in which values are overwritten. Pure: the argument stays as it
// is. They run over captured and saved programs (`program.passes()` shows each); windows of the
// stream use fuse() and the memory plan (loop.h, plan.h).
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/ops/op.h"
#include "engine/program/program.h"

namespace teletensor::passes {

using program::Program;

// One line a step:
//   program step(w: float32[10, 1], x: float32[1, 1]):
//     v2: float32[10, 1] = mul(w, 2.0)
//     v3: float32[1, 10] = relu(v2[1, 10 | 1, 1])  # train.py:12: y = ...
//     w := v4
//     return v3
// A view that is not its whole value in row-major order has its shape and strides in brackets, and
// its offset where there is one.
// `loops`: in the order in which fuse() has them, the steps of a loop below a line of its own.
std::string to_string(const Program& program, const ops::Catalog& catalog = ops::catalog(),
                      bool loops = false);

// Steps whose results nobody reads, where leaving them out cannot hide an error (may_fail()).
Program dce(Program program, const ops::Catalog& catalog = ops::catalog());
// Equal steps over equal operands become one, but random ones.
Program cse(Program program, const ops::Catalog& catalog = ops::catalog());
// Structural identities: a cast to the dtype that a value has, a widening cast and the one back, a
// copy (clone, contiguous, reshape, relayout) whose elements lie in the same order already, double
// negation. Arithmetic identities (x + 0, x * 1) are none: they change bits or errors.
Program peephole(Program program, const ops::Catalog& catalog = ops::catalog());
// Steps over literals alone, and over what such steps make of nothing (zeros, arange), become
// literals. `evaluate` computes one step (results row-major), or says no; results above
// `most_bytes` stay steps, and so does what may fail or takes a call's number.
using Evaluate = std::function<bool(const program::Step& step, const Program& program,
                                    std::span<const std::string_view> operands,
                                    std::vector<std::string>& results)>;
inline constexpr std::size_t kMaxFolded = 4096;
Program fold(Program program, const Evaluate& evaluate, std::size_t most_bytes = kMaxFolded,
             const ops::Catalog& catalog = ops::catalog());
// An `if` whose condition is a literal becomes its branch; a `while` whose condition block returns
// a literal False ends before it begins.
Program inline_blocks(Program program);

// Collectives, and what lays their operands together, come as early as their operands allow, in
// their order: later steps run while other ranks have not come. Where all steps are as they were,
// the program is.
Program early(Program program, const ops::Catalog& catalog = ops::catalog());

// Values that wait at the program's peak of memory (plan.h) and are cheap to make of others that
// are there anyway die before it, and the same steps make them again just before they are read. The
// peak is lower afterwards or the program is as it was. Last of all: cse would undo it.
struct Effort {
  double time = 0.02;              // the share of the program's time that it may take in all
  double worth = 1;                // of the time for a share of the memory
  std::int64_t least = 64 * 1024;  // bytes of a value
};
Program rematerialise(Program program, const ops::Catalog& catalog = ops::catalog(),
                      const Effort& effort = {});

// All of them, again until nothing changes (at most a few rounds), and then early() and
// rematerialise(). Without `evaluate` nothing is folded. `seen`, where given, is told of each pass
// of the first round.
using Seen =
    std::function<void(std::string_view name, const Program& before, const Program& after)>;
Program optimize(Program program, const ops::Catalog& catalog = ops::catalog(),
                 const Evaluate& evaluate = nullptr, const Seen& seen = nullptr);

// Can a step fail by its data (an index out of range, an integer divided by zero, a singular
// matrix)? Running out of memory does not count.
bool may_fail(const program::Step& step, const Program& program, const ops::Catalog& catalog);

}  // namespace teletensor::passes
