#include "engine/collective/exchange/tree.h"

#include <algorithm>
#include <bit>

namespace teletensor::collective {
namespace {

std::span<const Rank> within(std::span<const Rank> ranks, Rank begin, Rank end) {
  const auto first = std::lower_bound(ranks.begin(), ranks.end(), begin);
  return {first, std::lower_bound(first, ranks.end(), end)};
}

void grow(Rank begin, Rank end, std::span<const Rank> contributors, std::span<const Rank> held,
          Forest& forest) {
  if (held.empty()) return;
  if (held.size() == contributors.size()) {
    forest.push_back({begin, end, static_cast<std::uint32_t>(held.size())});
    return;
  }
  const Rank middle = split(begin, end);
  grow(begin, middle, within(contributors, begin, middle), within(held, begin, middle), forest);
  grow(middle, end, within(contributors, middle, end), within(held, middle, end), forest);
}

struct Slot {
  Node node;
  std::uint32_t index;
};

// Returns the slot that contains [begin, end) after all additions inside it. `slots` are the slots
// inside it.
std::uint32_t add(Rank begin, Rank end, std::span<const Slot> slots, Sum& sum) {
  if (slots.size() == 1) return slots[0].index;
  const Rank middle = split(begin, end);
  const auto cut = std::lower_bound(slots.begin(), slots.end(), middle,
                                    [](const Slot& s, Rank r) { return s.node.begin < r; });
  const auto left = slots.first(static_cast<std::size_t>(cut - slots.begin()));
  const auto right = slots.subspan(left.size());
  if (left.empty()) return add(middle, end, right, sum);
  if (right.empty()) return add(begin, middle, left, sum);
  const std::uint32_t into = add(begin, middle, left, sum);
  sum.additions.push_back({into, add(middle, end, right, sum)});
  return into;
}

}  // namespace

Rank split(Rank begin, Rank end) { return begin + std::bit_floor(end - begin - 1); }

Forest forest_of(Rank ranks, std::span<const Rank> contributors, std::span<const Rank> held) {
  Forest forest;
  grow(0, ranks, contributors, held, forest);
  return forest;
}

Sum sum_of(std::span<const Node> given, std::span<const Node> wanted) {
  std::vector<Slot> slots;
  for (const Node& node : given) slots.push_back({node, static_cast<std::uint32_t>(slots.size())});
  std::sort(slots.begin(), slots.end(),
            [](const Slot& a, const Slot& b) { return a.node.begin < b.node.begin; });
  Sum sum;
  auto at = slots.begin();
  for (const Node& node : wanted) {
    const auto first = at;
    while (at != slots.end() && at->node.begin < node.end) ++at;
    sum.slots.push_back(add(node.begin, node.end, {first, at}, sum));
  }
  return sum;
}

}  // namespace teletensor::collective
