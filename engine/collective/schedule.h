// Schedule: what one place does in one collective. Ranges count elements of the whole.
//
// Partial sums of all_reduce, reduce and broadcast (a sum to which only the root contributes) move
// up the levels: each piece of an operand has an owner in a block of places, to which the siblings
// send their partial sums of it. Final pieces move down: owners send them to their siblings. A
// small operand is one piece that every place owns, so that no final piece is sent. reduce_scatter
// has one level of all places, whose pieces are the ranks' results. all_gather spreads final pieces
// upwards. gather, scatter and all_to_all send each rank's part to its place without levels.
#pragma once

#include <vector>

#include "engine/collective/outbox.h"

namespace teletensor::collective {

struct Schedule {
  // A piece that this place adds at a level, and the places that hold partial sums of it, one for
  // each of Level::given, in that order.
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
    std::vector<Forest> given;  // of the siblings that have any
    Forest sum;                 // of all of them together
    std::vector<Owned> owned;
    std::vector<Push> partials;  // of `own`, to owners
    std::vector<Push> finals;
  };
  // The elements that one rank sends to another.
  struct Part {
    Rank from = 0, to = 0;
    std::int64_t count = 0;
  };

  std::int64_t count = 0;     // elements of the whole
  std::vector<Level> levels;  // at least one where there is something to add
  std::vector<Part> parts;    // gather, scatter, all_to_all: of the ranks here
  bool scattered = false;     // pieces, not one whole
  bool origin = false;        // this place has the root of a broadcast
  std::int64_t grain = 1;     // elements of a segment of partial sums
};

// `calls`: of the ranks of this place, in their order.
Schedule schedule_of(const Group& group, Place place, const std::vector<Call>& calls,
                     const Limits& limits);

// The dtype in which partial sums of two or more ranks are kept: float32 for 16-bit floats.
core::DType accumulator_of(core::DType dtype);
// Elements before those of `rank`.
std::int64_t offset_of(const std::vector<std::int64_t>& counts, Rank rank);

}  // namespace teletensor::collective
