// The number of ids that a command makes, unless its frame states another number.
#pragma once

#include <cstdint>
#include <variant>

#include "engine/program/command.h"

namespace teletensor::program {

inline std::uint32_t usual_made(const Command& command) {
  if (const auto* apply = std::get_if<Apply>(&command)) return apply->inplace ? 0 : 1;
  if (std::holds_alternative<Repeated>(command)) return 1;
  if (const auto* backward = std::get_if<Backward>(&command)) return backward->made;
  if (const auto* call = std::get_if<Call>(&command)) return call->made;
  return std::holds_alternative<Constant>(command) || std::holds_alternative<Uploaded>(command) ||
                 std::holds_alternative<Published>(command) ||
                 std::holds_alternative<Saved>(command)
             ? 1
             : 0;
}

}  // namespace teletensor::program
