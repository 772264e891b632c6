// Verify: the checks that a Program must pass before anything runs it. The author of a program may
// be hostile. After verification every step is a call that the op's infer accepts, with exactly the
// layouts that infer gives; every view is inside its storage; and every value is made once, before
// it is read, and is visible where it is read.
#pragma once

#include <span>

#include "engine/core/clock.h"
#include "engine/core/status.h"
#include "engine/ops/op.h"
#include "engine/program/program.h"
#include "engine/program/serialize.h"

namespace teletensor::ops {

// Steps that are reached after `until` are not checked, except for which values they make and
// overwrite; if there is no other error, the result is kDeadlineExceeded. The effect of such a
// program on handles is well-defined, but the program must not run.
core::Status verify(const program::Program& program, const Catalog& catalog,
                    core::Clock::time_point until = core::Clock::time_point::max());

// What the value of a number among the operands of a call determines besides the data.
struct Decides {
  bool layout = false;   // the shape or the dtype of a result: infer gives others for other numbers
  bool refusal = false;  // Infer refuses some numbers, such as a negative exponent of integers.
};
// Asks infer with other numbers in place of operand `number`. Refusals count only for a call whose
// results are no floating-point numbers. Precondition: the op is no view.
Decides decided_by(const OpDef& op, std::span<const OperandInfo> operands,
                   std::span<const std::uint32_t> counts, const core::Attributes& attributes,
                   std::size_t number);

// Returns true if the program contains collectives.
bool has_collectives(const program::Program& program, const Catalog& catalog);

// Functions that map ops to names and revisions and back, for program::serialize and deserialize.
program::NameOp op_names(const Catalog& catalog);
program::FindOp op_finder(const Catalog& catalog);

}  // namespace teletensor::ops
