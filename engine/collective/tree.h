// The tree of additions: one binary tree over rank numbers, of which every sum of a group is made.
//
// Node [begin, end) splits at the largest power of two below its size. Ranks that do not contribute
// are skipped: a node of which one half has no contributor is its other half. So the bits of a sum
// depend on operands and ranks alone, not on the daemons that add or on the pieces in which they
// do.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/collective/call.h"

namespace teletensor::collective {

struct Node {
  Rank begin = 0, end = 0;
  std::uint32_t contributors = 0;  // the number of ranks whose operands it is the sum of
  friend bool operator==(const Node&, const Node&) = default;
};

// Precondition: end - begin >= 2.
Rank split(Rank begin, Rank end);

// Disjoint nodes in ascending order: the sums that can be made of the operands of some ranks.
using Forest = std::vector<Node>;

// The largest nodes all of whose contributors are in `held`. Both lists are ascending, and `held`
// is a part of `contributors`.
Forest forest_of(Rank ranks, std::span<const Rank> contributors, std::span<const Rank> held);

// How sums of some nodes become sums of larger ones: in order, slot `into` becomes
// slot `into` (+) slot `from`. A slot is an index of the nodes given.
struct Addition {
  std::uint32_t into = 0, from = 0;
};
struct Sum {
  std::vector<Addition> additions;
  std::vector<std::uint32_t>
      slots;  // the slot of each node of the wanted forest after the additions
};
// Precondition: `given`, in any order, are disjoint nodes of the tree whose contributors together
// are those of `wanted`.
Sum sum_of(std::span<const Node> given, std::span<const Node> wanted);

}  // namespace teletensor::collective
