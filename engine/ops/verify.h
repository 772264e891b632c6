// Verify: what a Program must be before anything runs it. Whoever wrote it may be hostile: after
// this every step is a call that its op's infer accepts, with exactly the layouts that infer gives;
// every view lies inside its storage; every value is made once, before it is read, where the reader
// can see it.
#pragma once

#include "engine/core/clock.h"
#include "engine/core/status.h"
#include "engine/ops/op.h"
#include "engine/program/program.h"
#include "engine/program/serialize.h"

namespace teletensor::ops {

// Steps that are reached after `until` are not looked at, but for which values they make and
// overwrite: kDeadlineExceeded where nothing else is wrong. What such a program makes of names is
// well-defined; it must not run.
core::Status verify(const program::Program& program, const Catalog& catalog,
                    core::Clock::time_point until = core::Clock::time_point::max());

// Has it collectives?
bool has_collectives(const program::Program& program, const Catalog& catalog);

// By name and revision, for program::serialize and deserialize.
program::NameOp op_names(const Catalog& catalog);
program::FindOp op_finder(const Catalog& catalog);

}  // namespace teletensor::ops
