#include "engine/collective/exchange/schedule.h"

#include <algorithm>
#include <numeric>

namespace teletensor::collective {
namespace {

using Block = Group::Block;

// The nodes that the places of a level add, which are the same for every piece.
Schedule::Level sums(const Group& group, Place place, int level, Rank only,
                     std::vector<std::size_t>& givers) {
  Schedule::Level result;
  result.own = group.forest(level, group.block(level, place), only);
  const Block parent = group.block(level + 1, place);
  result.sum = group.forest(std::min(level + 1, group.levels()), parent, only);
  std::size_t sibling = 0;
  for (const Block& child : group.children(level, parent)) {
    if (!child.has(place)) {
      Forest forest = group.forest(level, child, only);
      if (!forest.empty()) {
        result.given.push_back(std::move(forest));
        givers.push_back(sibling);
      }
    }
    ++sibling;
  }
  return result;
}

void spread_level(const Group& group, Place place, int level, Rank only, Schedule& schedule) {
  std::vector<std::size_t> givers;
  Schedule::Level next = sums(group, place, level, only, givers);
  const Range all{0, schedule.count};
  if (!schedule.origin && !next.sum.empty()) {
    Schedule::Owned owned{all, {}};
    const Place own = group.block(level, place).begin;
    for (const Block& child : group.children(level, group.block(level + 1, place))) {
      if (!child.has(place) && !group.forest(level, child, only).empty()) {
        owned.holders.push_back(child.begin + (place - own) % child.size());
      }
    }
    next.owned.push_back(std::move(owned));
  }
  if (!next.own.empty()) {
    for (const Place to : group.spread_to(level, place)) {
      if (only == kNoRank || to != group.place_of(only)) next.partials.push_back({to, all});
    }
  }
  schedule.levels.push_back(std::move(next));
}

// The places that hold the elements from `at` on, one in each child of the parent block, and the
// end of the range for which these places are valid.
struct Holders {
  std::vector<Place> places;
  std::int64_t end = 0;
};
Holders holders_of(const Group& group, const std::vector<Block>& children, int level,
                   std::int64_t at, std::int64_t count) {
  Holders result{{}, count};
  for (const Block& child : children) {
    const std::vector<Group::Piece>& pieces = group.pieces(level, child, count);
    const auto after =
        std::upper_bound(pieces.begin(), pieces.end(), at,
                         [](std::int64_t x, const Group::Piece& p) { return x < p.range.begin; });
    result.places.push_back(child.begin + std::prev(after)->place);
    result.end = std::min(result.end, std::prev(after)->range.end);
  }
  return result;
}

// Adds to `level` the work of `place`, which is one of the holders, for one part of their elements.
// The owner of the part is holders[i].
void share_part(const Group& group, Place place, const Call& call, const Holders& holders,
                const std::vector<Block>& children, std::size_t i, Range range,
                const std::vector<std::size_t>& givers, const Schedule& schedule,
                Schedule::Level& level) {
  if (range.size() == 0) return;
  const bool broadcast = call.op == Op::kBroadcast;
  const Place root = call.op == Op::kAllReduce ? 0 : group.place_of(call.root);
  if (holders.places[i] != place) {
    const bool needed = !broadcast || holders.places[i] != root;
    if (!level.own.empty() && needed) level.partials.push_back({holders.places[i], range});
    return;
  }
  if (!schedule.origin && !level.sum.empty()) {
    Schedule::Owned owned{range, {}};
    for (const std::size_t giver : givers) owned.holders.push_back(holders.places[giver]);
    level.owned.push_back(std::move(owned));
  }
  for (std::size_t c = 0; c < children.size(); ++c) {
    const Place to = holders.places[c];
    const bool wants = call.op == Op::kReduce ? children[c].has(root) : !broadcast || to != root;
    if (to != place && wants) level.finals.push_back({to, range});
  }
}

void scatter_level(const Group& group, Place place, int level, const Call& call, Rank only,
                   Schedule& schedule) {
  std::vector<std::size_t> givers;
  Schedule::Level next = sums(group, place, level, only, givers);
  const Block own = group.block(level, place);
  const std::vector<Block> children = group.children(level, group.block(level + 1, place));
  const std::vector<Group::Piece> mine = group.pieces(level, own, schedule.count);
  for (const Group::Piece& piece : mine) {
    if (own.begin + piece.place != place) continue;
    for (std::int64_t at = piece.range.begin; at < piece.range.end;) {
      const Holders holders = holders_of(group, children, level, at, schedule.count);
      const Range range{at, std::min(holders.end, piece.range.end)};
      for (std::size_t i = 0; i < children.size(); ++i) {
        const Range share =
            part(range, static_cast<std::int64_t>(i), static_cast<std::int64_t>(children.size()));
        share_part(group, place, call, holders, children, i, share, givers, schedule, next);
      }
      at = range.end;
    }
  }
  schedule.levels.push_back(std::move(next));
}

// Plans the level of reduce_scatter, which contains all places. The pieces are the results of the
// ranks.
void chunk_level(const Group& group, Place place, const Call& call, Schedule& schedule) {
  Schedule::Level level;
  level.own = group.forest(0, group.block(0, place));
  level.sum = group.forest(group.levels(), {0, group.places()});
  std::vector<Place> others;
  for (Place other = 0; other < group.places(); ++other) {
    if (other == place) continue;
    others.push_back(other);
    level.given.push_back(group.forest(0, group.block(0, other)));
  }
  std::int64_t at = 0;
  for (Rank rank = 0; rank < call.counts.size(); ++rank) {
    const Range range{at, at + call.counts[rank]};
    at = range.end;
    if (range.size() == 0 || !group.has(rank)) continue;
    if (group.place_of(rank) == place) {
      level.owned.push_back({range, others});
    } else {
      level.partials.push_back({group.place_of(rank), range});
    }
  }
  schedule.levels.push_back(std::move(level));
}

void gather_levels(const Group& group, Place place, const Call& call, Schedule& schedule) {
  for (int l = 0; l < group.levels(); ++l) {
    Schedule::Level level;
    const Block own = group.block(l, place);
    std::int64_t at = 0;
    std::vector<Range> ranges;  // adjoining ranges are merged
    for (Rank rank = 0; rank < call.counts.size(); ++rank) {
      const Range range{at, at + call.counts[rank]};
      at = range.end;
      if (range.size() == 0 || !group.has(rank) || !own.has(group.place_of(rank))) continue;
      if (!ranges.empty() && ranges.back().end == range.begin) {
        ranges.back().end = range.end;
      } else {
        ranges.push_back(range);
      }
    }
    for (const Place to : group.spread_to(l, place)) {
      for (const Range& range : ranges) level.finals.push_back({to, range});
    }
    schedule.levels.push_back(std::move(level));
  }
}

}  // namespace

core::DType accumulator_of(core::DType dtype) {
  const bool narrow = dtype == core::DType::kF16 || dtype == core::DType::kBF16;
  return narrow ? core::DType::kF32 : dtype;
}

std::int64_t offset_of(const std::vector<std::int64_t>& counts, Rank rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
}

Schedule schedule_of(const Group& group, Place place, const std::vector<Call>& calls,
                     const Limits& limits) {
  const Call& call = calls.front();
  Schedule schedule;
  schedule.count = call.counts.empty()
                       ? call.count
                       : offset_of(call.counts, static_cast<Rank>(call.counts.size()));
  const std::int64_t item = static_cast<std::int64_t>(core::size_of(call.dtype));
  const Place peers = call.op == Op::kReduceScatter
                          ? group.places()
                          : static_cast<Place>(group.neighbours(0).size() + 1);
  const std::int64_t window = std::min(limits.window, limits.staging / peers);
  // A peer's window contains two segments of each active collective.
  const std::int64_t accumulated =
      static_cast<std::int64_t>(core::size_of(accumulator_of(call.dtype)));
  schedule.grain = std::max<std::int64_t>(
      1, window / 2 / static_cast<std::int64_t>(limits.active) / accumulated);
  if (whole(call.op)) {
    const Rank only = call.op == Op::kBroadcast ? call.root : kNoRank;
    schedule.origin = only != kNoRank && group.place_of(only) == place;
    schedule.scattered = schedule.count > limits.whole / item && group.places() > 1;
    // One segment, so that a peer sends at most one message with data per level before the vote.
    if (!schedule.scattered) schedule.grain = std::max<std::int64_t>(1, schedule.count);
    for (int level = 0; level < std::max(group.levels(), 1); ++level) {
      if (schedule.scattered) {
        scatter_level(group, place, level, call, only, schedule);
      } else {
        spread_level(group, place, level, only, schedule);
      }
    }
  } else if (call.op == Op::kReduceScatter) {
    chunk_level(group, place, call, schedule);
  } else if (call.op == Op::kAllGather) {
    gather_levels(group, place, call, schedule);
  } else {
    const std::vector<Rank>& ranks = group.ranks_of(place);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      for (Rank to = 0; to < calls[i].sends.size(); ++to) {
        if (calls[i].sends[to] > 0) schedule.parts.push_back({ranks[i], to, calls[i].sends[to]});
      }
    }
  }
  return schedule;
}

}  // namespace teletensor::collective
