// Checks of the daemon's limits that a client makes before it issues a command.
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/core/status.h"
#include "engine/program/amounts.h"

namespace teletensor::client {

// Returns an error if `used` and `more` together exceed the limit in `most`. 0 is no limit.
// `advice` tells the user how to use less.
inline core::Status check_limit(std::string_view what, std::uint64_t program::Amounts::*field,
                                const program::Amounts& most, std::uint64_t used,
                                std::uint64_t more, std::string_view advice) {
  const std::uint64_t limit = most.*field;
  if (limit == 0 || (used <= limit && more <= limit - used)) return {};
  return program::over_limit(what, field, used, more, limit, advice);
}

}  // namespace teletensor::client
