// Passes: functions that turn a Program into a better one. No pass changes a bit of the results,
// the errors that can occur, or the order in which values are overwritten. Passes are pure: they do
// not change their argument. They run on captured and saved programs (`program.passes()` shows each
// of them). Windows of the stream use only fuse() and the memory plan (loop.h, plan.h).
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

// Prints a program, one line per step:
//   program step(w: float32[10, 1], x: float32[1, 1]):
//     v2: float32[10, 1] = mul(w, 2.0)
//     v3: float32[1, 10] = relu(v2[1, 10 | 1, 1])  # train.py:12: y = ...
//     w := v4
//     return v3
// A view that is not the whole value in row-major order shows its shape and strides in brackets,
// and its offset if it is not 0. With `loops`, prints the steps in the order of fuse(); the steps
// of a loop are listed below a line for the loop.
std::string to_string(const Program& program, const ops::Catalog& catalog = ops::catalog(),
                      bool loops = false);

// Removes steps whose results are never read, unless a step can fail (may_fail()), because that
// would hide an error.
Program dce(Program program, const ops::Catalog& catalog = ops::catalog());
// Merges equal steps with equal operands, except random ones.
Program cse(Program program, const ops::Catalog& catalog = ops::catalog());
// Applies structural identities: a cast to the dtype that the value already has, a widening cast
// followed by the cast back, a copy (clone, contiguous, reshape, relayout) whose elements already
// have the same order, and a double negation. Arithmetic identities (x + 0, x * 1) are not applied,
// because they change bits or errors.
Program peephole(Program program, const ops::Catalog& catalog = ops::catalog());
// Turns steps that read only literals, or only the results of steps without operands (zeros,
// arange), into literals. `evaluate` computes the row-major results of one step, or returns false.
// Steps with results of more than `most_bytes` stay; so do steps that can fail or that use a number
// of the call.
using Evaluate = std::function<bool(const program::Step& step, const Program& program,
                                    std::span<const std::string_view> operands,
                                    std::vector<std::string>& results)>;
inline constexpr std::size_t kMaxFolded = 4096;
Program fold(Program program, const Evaluate& evaluate, std::size_t most_bytes = kMaxFolded,
             const ops::Catalog& catalog = ops::catalog());
// Replaces an `if` whose condition is a literal by its branch, and removes a `while` whose
// condition block returns a literal False.
Program inline_blocks(Program program);

// Moves collectives, and the steps that pack their operands, to the earliest possible positions, in
// their order. So later steps run while other ranks have not reached the collective. Returns the
// program unchanged if no step moves.
Program early(Program program, const ops::Catalog& catalog = ops::catalog());

// Lowers the program's peak of memory (plan.h): frees values that are only waiting at the peak and
// are cheap to recompute from values that stay in memory, and repeats their steps just before they
// are read. Returns the program unchanged if the peak does not become lower. Must be the last pass,
// because cse would undo it.
struct Effort {
  double time = 0.02;              // maximum total cost, as a share of the program's time
  double worth = 1;                // share of the time that may be spent per share of memory saved
  std::int64_t least = 64 * 1024;  // minimum size in bytes of a value
};
Program rematerialise(Program program, const ops::Catalog& catalog = ops::catalog(),
                      const Effort& effort = {});

// Runs all passes, repeated until nothing changes (at most a few rounds), and then early() and
// rematerialise(). Without `evaluate` nothing is folded. `seen`, if given, is called after each
// pass of the first round.
using Seen =
    std::function<void(std::string_view name, const Program& before, const Program& after)>;
Program optimize(Program program, const ops::Catalog& catalog = ops::catalog(),
                 const Evaluate& evaluate = nullptr, const Seen& seen = nullptr);

// Returns true if the data can make the step fail (an index out of range, an integer divided by
// zero, a singular matrix). Running out of memory does not count.
bool may_fail(const program::Step& step, const Program& program, const ops::Catalog& catalog);

}  // namespace teletensor::passes
