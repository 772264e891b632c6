// The tree of additions: one binary tree over rank numbers that determines the order of additions
// in every sum of a group.
//
// Node [begin, end) splits at the largest power of two below its size. Ranks that do not contribute
// are skipped: if one half of a node has no contributor, the node equals its other half. So the
// bits of a sum depend only on operands and ranks, not on which daemons add or how the data is
// divided.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/collective/call.h"

namespace teletensor::collective {

struct Node {
  Rank begin = 0, end = 0;
  std::uint32_t contributors = 0;  // the number of ranks whose operands are in the sum
  friend bool operator==(const Node&, const Node&) = default;
};

// Precondition: end - begin >= 2.
Rank split(Rank begin, Rank end);

// Disjoint nodes in ascending order: the sums that can be computed from the operands of some ranks.
using Forest = std::vector<Node>;

// The largest nodes all of whose contributors are in `held`. Both lists are ascending, and `held`
// is a subset of `contributors`.
Forest forest_of(Rank ranks, std::span<const Rank> contributors, std::span<const Rank> held);

// The additions that turn sums of some nodes into sums of larger ones: in order, slot `into`
// becomes slot `into` (+) slot `from`. A slot is an index of the given nodes.
struct Addition {
  std::uint32_t into = 0, from = 0;
};
struct Sum {
  std::vector<Addition> additions;
  std::vector<std::uint32_t>
      slots;  // the slot of each node of the wanted forest after the additions
};
// Precondition: `given` contains, in any order, disjoint nodes of the tree whose contributors
// together are those of `wanted`.
Sum sum_of(std::span<const Node> given, std::span<const Node> wanted);

}  // namespace teletensor::collective
