// Programs as bytes: what a client defines and what a file holds. The form is message Program of
// proto/teletensor/v1/program.proto; written and read here alone, by clients and daemon alike, with
// nothing but the standard library. Ops travel by name and revision.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "engine/core/status.h"
#include "engine/program/program.h"

namespace teletensor::program {

// Bounds what reading may allocate, whatever the bytes say.
struct ProgramLimits {
  std::size_t bytes = std::size_t{16} << 20;
  std::size_t steps = 1 << 14;
  std::size_t items = 1 << 18;  // operands, results, views, values, attributes, names, ...
  int depth = 8;                // of blocks
};

using NameOp = std::function<std::pair<std::string, int>(OpId)>;  // name and revision
// The op, or why this side has not got it.
using FindOp = std::function<core::Result<OpId>(std::string_view name, int revision)>;

std::string serialize(const Program& program, const NameOp& name);
// Refuses with INVALID_ARGUMENT what is not well-formed, with DATA_LOSS a wrong checksum, with
// RESOURCE_EXHAUSTED what is over a limit, with UNIMPLEMENTED another format. What it gives is
// well-formed and not yet trusted: ops/verify.h.
core::Result<Program> deserialize(std::string_view bytes, const FindOp& find,
                                  const ProgramLimits& limits = {});

}  // namespace teletensor::program
