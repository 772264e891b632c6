// Timeline: when a session's frames arrived and when lanes worked for it; the raw data of a
// profile.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/program/instruction.h"

namespace teletensor::program {

// Work that a lane did. Times are nanoseconds of the daemon's steady clock.
struct Span {
  std::uint64_t begin = 0;
  std::uint64_t ns = 0;     // without the time of other work that ran in between
  std::uint64_t seq = 0;    // of the command; for a step of a program, of the call
  OpId op = 0;              // for a fused loop: the op of its first step
  std::uint32_t steps = 1;  // 0: a constant, upload or fetch; > 1: steps of a fused loop
  std::uint32_t lane = 0;   // number of the thread, from 1
};

// The arrival of a frame.
struct Arrival {
  std::uint64_t at = 0;
  std::uint64_t first_seq = 0;
  std::uint64_t commands = 0;
};

struct Timeline {
  std::uint64_t now = 0;  // time at which this timeline was read
  std::vector<Span> spans;
  std::vector<Arrival> arrivals;
  std::uint64_t dropped = 0;  // spans and arrivals for which there was no room or no memory
  bool more = false;          // more entries remain to be read
};

}  // namespace teletensor::program
