// Schedule: the work of one place in one collective. Ranges count elements of the whole.
//
// Partial sums of all_reduce, reduce and broadcast (a sum to which only the root contributes) move
// up the levels: each piece of an operand has an owner in a block of places, to which the siblings
// send their partial sums of it. Final pieces move down: owners send them to their siblings. A
// small operand is one piece that every place owns, so that no final piece is sent. reduce_scatter
// has a single level with all places, whose pieces are the ranks' results. all_gather distributes
// final pieces upwards. gather, scatter and all_to_all send each rank's part to its place without
// levels.
#pragma once

#include <vector>

#include "engine/collective/outbox.h"

namespace teletensor::collective {

struct Schedule {
  // A piece that this place adds at a level, and the places with partial sums of it, one for each
  // entry of Level::given, in that order.
  struct Owned {
    Range range;
    std::vector<Place> holders;
  };
  struct Push {
    Place to = 0;
    Range range;
  };
  struct Level {
    Forest own;                 // partial sums of the own block
    std::vector<Forest> given;  // partial sums of the siblings that have any
    Forest sum;                 // the sum of all of them
    std::vector<Owned> owned;
    std::vector<Push> partials;  // parts of `own` that are sent to owners
    std::vector<Push> finals;
  };
  // The elements that one rank sends to another.
  struct Part {
    Rank from = 0, to = 0;
    std::int64_t count = 0;
  };

  std::int64_t count = 0;     // elements of the whole
  std::vector<Level> levels;  // at least one if there is something to add
  std::vector<Part> parts;    // gather, scatter, all_to_all: parts of the ranks of this place
  bool scattered = false;     // the operand is divided into pieces
  bool origin = false;        // this place has the root of a broadcast
  std::int64_t grain = 1;     // elements of a segment of partial sums
};

// `calls` are those of the ranks of this place, in their order.
Schedule schedule_of(const Group& group, Place place, const std::vector<Call>& calls,
                     const Limits& limits);

// The dtype in which partial sums of two or more ranks are stored: float32 for 16-bit floats.
core::DType accumulator_of(core::DType dtype);
// The number of elements before those of `rank`.
std::int64_t offset_of(const std::vector<std::int64_t>& counts, Rank rank);

}  // namespace teletensor::collective
