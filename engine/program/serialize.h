// Converts programs to and from bytes, for the Define command and for files. The format is message
// Program of proto/teletensor/v1/program.proto. This code is its only reader and writer, for
// clients and daemon, and needs only the standard library. Ops are identified by name and revision.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "engine/core/status.h"
#include "engine/program/program.h"

namespace teletensor::program {

// Bounds the memory that reading may allocate, whatever the bytes contain.
struct ProgramLimits {
  std::size_t bytes = std::size_t{16} << 20;
  std::size_t steps = 1 << 14;
  std::size_t items = 1 << 18;  // total of operands, results, views, values, attributes, names, ...
  int depth = 8;                // nesting depth of blocks
};

// Returns the name and revision of an op.
using NameOp = std::function<std::pair<std::string, int>(OpId)>;
// Returns the op, or an error that says why this side does not have it.
using FindOp = std::function<core::Result<OpId>(std::string_view name, int revision)>;

std::string serialize(const Program& program, const NameOp& name);
// Returns INVALID_ARGUMENT if the bytes are malformed or their checksum is wrong,
// RESOURCE_EXHAUSTED if a limit is exceeded, and UNIMPLEMENTED for another format version. The
// returned program is well-formed but not trusted; ops/verify.h verifies it.
core::Result<Program> deserialize(std::string_view bytes, const FindOp& find,
                                  const ProgramLimits& limits = {});

}  // namespace teletensor::program
