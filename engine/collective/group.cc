#include "engine/collective/group.h"

#include <algorithm>
#include <set>

namespace teletensor::collective {

Range part(Range range, std::int64_t i, std::int64_t n) {
  // Avoids the product of two sizes, which may not fit into 63 bits.
  const std::int64_t each = range.size() / n, more = range.size() % n;
  const std::int64_t begin = range.begin + each * i + std::min(i, more);
  return {begin, begin + each + (i < more ? 1 : 0)};
}

Group::Group(Rank ranks, std::vector<std::vector<Rank>> ranks_of, Place radix)
    : ranks_(ranks), ranks_of_(std::move(ranks_of)) {
  std::sort(ranks_of_.begin(), ranks_of_.end());
  radix_ = radix != 0 ? radix : places() > 4096 ? 32 : 64;
  while (size_of_level(levels_) < places()) ++levels_;
  index();
}

Group Group::without(const std::vector<Rank>& lost) const {
  Group rest = *this;
  for (std::vector<Rank>& ranks : rest.ranks_of_) {
    std::erase_if(
        ranks, [&](Rank rank) { return std::find(lost.begin(), lost.end(), rank) != lost.end(); });
  }
  rest.index();
  return rest;
}

void Group::index() {
  place_of_.assign(ranks_, kNowhere);
  present_.clear();
  pieces_.clear();
  for (Place place = 0; place < places(); ++place) {
    for (const Rank rank : ranks_of_[place]) place_of_[rank] = place;
  }
  for (Rank rank = 0; rank < ranks_; ++rank) {
    if (place_of_[rank] != kNowhere) present_.push_back(rank);
  }
  forests_.assign(static_cast<std::size_t>(levels_) + 1, {});
  for (int level = 0; level <= levels_; ++level) {
    for (Place begin = 0; begin < places(); begin += size_of_level(level)) {
      std::vector<Rank> held;
      const Block here = block(level, begin);
      for (Place place = here.begin; place < here.end; ++place) {
        held.insert(held.end(), ranks_of_[place].begin(), ranks_of_[place].end());
      }
      std::sort(held.begin(), held.end());
      forests_[static_cast<std::size_t>(level)].push_back(forest_of(ranks_, present_, held));
    }
  }
}

Place Group::size_of_level(int level) const {
  Place size = 1;
  for (int i = 0; i < level; ++i) size *= radix_;
  return size;
}

Group::Block Group::block(int level, Place place) const {
  const Place size = size_of_level(level), begin = place / size * size;
  return {begin, std::min(begin + size, places())};
}

std::vector<Group::Block> Group::children(int level, Block parent) const {
  std::vector<Block> blocks;
  for (Place at = parent.begin; at < parent.end;) {
    const Block child = block(level, at);
    if (level > 0 || !ranks_of_[at].empty()) blocks.push_back(child);
    at = child.end;
  }
  return blocks;
}

std::vector<Place> Group::spread_from(int level, Place place) const {
  const Block own = block(level, place);
  std::vector<Place> from;
  for (const Block& child : children(level, block(level + 1, place))) {
    if (!child.has(place)) from.push_back(child.begin + (place - own.begin) % child.size());
  }
  return from;
}

std::vector<Place> Group::spread_to(int level, Place place) const {
  const Block own = block(level, place);
  std::vector<Place> to;
  for (const Block& child : children(level, block(level + 1, place))) {
    if (child.has(place)) continue;
    for (Place q = child.begin + place - own.begin; q < child.end; q += own.size()) to.push_back(q);
  }
  return to;
}

std::vector<Place> Group::neighbours(Place place) const {
  std::set<Place> all;
  for (int level = 0; level < levels_; ++level) {
    for (const Place p : spread_from(level, place)) all.insert(p);
    for (const Place p : spread_to(level, place)) all.insert(p);
  }
  return {all.begin(), all.end()};
}

const std::vector<Group::Piece>& Group::pieces(int level, Block block, std::int64_t n) const {
  constexpr std::size_t kKept = 256;
  if (pieces_.size() > kKept) pieces_.clear();
  const auto key = std::make_tuple(n, level, block.size());
  if (const auto found = pieces_.find(key); found != pieces_.end()) return found->second;
  std::vector<Piece> result;
  if (level == 0) {
    result.push_back({{0, n}, 0});
  } else {
    // The last child may have fewer places than the other children, and be divided into different
    // pieces.
    const std::vector<Block> below = children(level - 1, block);
    std::vector<std::vector<Piece>> held;
    for (const Block& child : below) held.push_back(pieces(level - 1, child, n));
    std::vector<std::size_t> at(below.size(), 0);
    for (std::int64_t begin = 0; begin < n;) {
      std::int64_t end = n;
      for (std::size_t c = 0; c < below.size(); ++c) {
        while (held[c][at[c]].range.end <= begin) ++at[c];
        end = std::min(end, held[c][at[c]].range.end);
      }
      const std::int64_t parts = static_cast<std::int64_t>(below.size());
      for (std::int64_t c = 0; c < parts; ++c) {
        const std::size_t i = static_cast<std::size_t>(c);
        const Range range = part({begin, end}, c, parts);
        if (range.size() == 0) continue;
        result.push_back({range, held[i][at[i]].place + below[i].begin - block.begin});
      }
      begin = end;
    }
  }
  return pieces_[key] = std::move(result);
}

Forest Group::forest(int level, Block block, Rank only) const {
  if (only == kNoRank) {
    return forests_[static_cast<std::size_t>(level)][block.begin / size_of_level(level)];
  }
  return block.has(place_of(only)) ? Forest{{0, ranks_, 1}} : Forest{};
}

}  // namespace teletensor::collective
