// Amounts: the resources of a session, apart from the bytes of its tensors, that a client can make
// grow. The same struct holds limits and current amounts.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/core/status.h"
#include "engine/program/program.h"

namespace teletensor::program {

struct Amounts {
  std::uint64_t handles = 0;
  std::uint64_t tape_bytes = 0;    // memory of handles, tape and queue
  std::uint64_t staged_bytes = 0;  // bytes of uploads that no handle uses yet
  std::uint64_t programs = 0;
  std::uint64_t program_steps = 0;  // steps of all programs, including those of nested blocks
  std::uint64_t program_bytes = 0;
  std::uint64_t kept = 0;       // number of kept names
  std::uint64_t published = 0;  // number of published names
  std::uint64_t plan_ms = 0;    // time spent on checking and planning programs
};

// The default limits. 0 means as much as the session's memory limit allows.
inline constexpr Amounts kUsualLimits{0,        0,      0,      1024,  std::uint64_t{1} << 17,
                                      64 << 20, 10'000, 10'000, 60'000};

// One quantity, as flags, the settings file, error messages and reports name it.
struct AmountField {
  std::string_view name;  // name in error messages; the setting is "session_" + name
  std::uint64_t Amounts::*field;
  bool bytes;       // true: a number of bytes; false: a number of things
  bool may_be_all;  // 0 is allowed and means the session's memory limit
  std::string_view what;
};
inline constexpr std::array<AmountField, 9> kAmountFields{{
    {"handles", &Amounts::handles, false, true, "tensors that a session has"},
    {"tape", &Amounts::tape_bytes, true, true, "of a session's names, tape and queue"},
    {"staged", &Amounts::staged_bytes, true, true, "of a session's uploads that are not used yet"},
    {"programs", &Amounts::programs, false, false, "captured programs that a session has"},
    {"program_steps", &Amounts::program_steps, false, false, "of all programs of a session"},
    {"program_bytes", &Amounts::program_bytes, true, false, "of all programs of a session"},
    {"kept", &Amounts::kept, false, false, "names that a session keeps tensors under"},
    {"published", &Amounts::published, false, false, "names that a session publishes"},
    {"plan_ms", &Amounts::plan_ms, false, false,
     "milliseconds that checking and planning a session's programs has taken"},
}};

// The number of steps of a block and of the blocks nested in it.
inline std::uint64_t steps_of(const Block& block) {
  std::uint64_t steps = block.steps.size();
  for (const Step& step : block.steps) {
    for (const Block& inner : step.blocks) steps += steps_of(inner);
  }
  return steps;
}

// Returns the error "WHAT: the session has USED of its LIMIT NAME[, and needs MORE]; ADVICE, or
// ...".
inline core::Status over_limit(std::string_view what, std::uint64_t Amounts::*field,
                               std::uint64_t used, std::uint64_t more, std::uint64_t limit,
                               std::string_view advice) {
  const AmountField* found = kAmountFields.data();
  while (found->field != field) ++found;
  const auto text = [&](std::uint64_t amount) {
    return std::to_string(amount) + (found->bytes ? " bytes" : "");
  };
  std::string message(what);
  message += ": the session has " + text(used) + " of at most " + text(limit) +
             (more > 1 ? ", and this needs " + text(more) + " more" : "") + " (limit session_" +
             std::string(found->name) + "); " + std::string(advice) +
             ", or have the daemon's limit raised";
  return core::Status(core::Code::kResourceExhausted, std::move(message));
}

}  // namespace teletensor::program
