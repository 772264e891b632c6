// What a session's stream brought and its lanes did, and when: the raw matter of a profile.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/program/instruction.h"

namespace teletensor::program {

// Work of a lane. Times are nanoseconds of the daemon's steady clock.
struct Span {
  std::uint64_t begin = 0;
  std::uint64_t ns = 0;     // without what others ran in between
  std::uint64_t seq = 0;    // of the command (of a program's call: the call's)
  OpId op = 0;              // of a loop: of its first step
  std::uint32_t steps = 1;  // 0: a constant, an upload or a fetch; more than 1: one loop of so many
  std::uint32_t lane = 0;   // numbers of threads, from 1
};

// A frame that has come.
struct Arrival {
  std::uint64_t at = 0;
  std::uint64_t first_seq = 0;
  std::uint64_t commands = 0;
};

struct Timeline {
  std::uint64_t now = 0;  // when it was taken
  std::vector<Span> spans;
  std::vector<Arrival> arrivals;
  std::uint64_t dropped = 0;  // spans and arrivals that found no room so far
  bool more = false;          // there are more to be taken
};

}  // namespace teletensor::program
