// Group: the ranks of a group, the daemons they are on, and which daemons exchange messages.
//
// The daemons of a group are its places, 0 to D - 1, in the order of their lowest ranks. A block of
// level l is radix^l neighbouring places (the last one may be smaller); a block of level l + 1 has
// up to `radix` blocks of level l as its children. Nothing here influences the bits of a result. A
// place that has lost all its ranks keeps its number, but no place sends it anything.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "engine/collective/exchange/tree.h"

namespace teletensor::collective {

using Place = std::uint32_t;

struct Range {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

// Part i of n parts of a range. The sizes of the parts differ by at most one element.
Range part(Range range, std::int64_t i, std::int64_t n);

class Group {
 public:
  // A block of places [begin, end).
  struct Block {
    Place begin = 0, end = 0;
    Place size() const { return end - begin; }
    bool has(Place place) const { return begin <= place && place < end; }
  };
  // A piece of an operand and the place that holds it for its block.
  struct Piece {
    Range range;
    Place place = 0;
  };

  // `ranks_of` lists the ranks of each daemon. The lists are ascending, disjoint and not empty.
  // Ranks below `ranks` that no daemon has are skipped. A radix of 0 means 64, or 32 if there are
  // more than 4,096 daemons.
  Group(Rank ranks, std::vector<std::vector<Rank>> ranks_of, Place radix = 0);

  // The group of the remaining ranks when `lost` are lost. Places keep their numbers. Precondition:
  // levels() <= 1.
  Group without(const std::vector<Rank>& lost) const;

  Rank ranks() const { return ranks_; }
  Place places() const { return static_cast<Place>(ranks_of_.size()); }
  int levels() const { return levels_; }
  const std::vector<Rank>& present() const { return present_; }  // ascending
  const std::vector<Rank>& ranks_of(Place place) const { return ranks_of_[place]; }
  bool has(Rank rank) const { return rank < ranks_ && place_of_[rank] != kNowhere; }
  Place place_of(Rank rank) const { return place_of_[rank]; }

  // The block of a level that contains the place, and the children of a block of level + 1. A place
  // without ranks is no child.
  Block block(int level, Place place) const;
  std::vector<Block> children(int level, Block parent) const;

  // Distribution of votes and results: for each sibling of its block at this level, a place
  // receives them from one place of that sibling (spread_from). It sends those of its own block to
  // the places that receive them from it (spread_to).
  std::vector<Place> spread_from(int level, Place place) const;
  std::vector<Place> spread_to(int level, Place place) const;
  // All places with which the place exchanges votes and results, ascending.
  std::vector<Place> neighbours(Place place) const;

  // The pieces into which n elements are scattered in a block of this level, in ascending order.
  // Places count from the block's begin. Results are cached, so calls from several threads must not
  // overlap.
  const std::vector<Piece>& pieces(int level, Block block, std::int64_t n) const;

  // The nodes that the places of a block can add by themselves, from the operands of all ranks or
  // of the rank `only`.
  Forest forest(int level, Block block, Rank only = kNoRank) const;

 private:
  static constexpr Place kNowhere = ~0u;
  Place size_of_level(int level) const;  // number of places in a full block
  void index();                          // derives the other members from ranks_of_

  Rank ranks_;
  std::vector<std::vector<Rank>> ranks_of_;
  std::vector<Place> place_of_;
  std::vector<Rank> present_;
  Place radix_;
  int levels_ = 0;
  std::vector<std::vector<Forest>> forests_;  // by level and block
  mutable std::map<std::tuple<std::int64_t, int, Place>, std::vector<Piece>> pieces_;
};

}  // namespace teletensor::collective
