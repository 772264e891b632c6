#include "engine/collective/vote.h"

#include <algorithm>

namespace teletensor::collective {
namespace {

void add_claim(std::vector<Claim>& claims, const Claim& claim) {
  for (Claim& known : claims) {
    if (known.fingerprint != claim.fingerprint) continue;
    known.ranks += claim.ranks;
    if (claim.rank < known.rank) {
      known.rank = claim.rank;
      known.text = claim.text;
    }
    return;
  }
  claims.push_back(claim);
}

}  // namespace

Vote merge(const Vote& a, const Vote& b) {
  Vote sum = a;
  if (b.lowest < a.lowest) {
    sum.lowest = b.lowest;
    sum.fingerprint = b.fingerprint;
  }
  sum.equal = a.equal && b.equal &&
              (a.lowest == kNoRank || b.lowest == kNoRank || a.fingerprint == b.fingerprint);
  sum.balance = a.balance + b.balance;
  if (b.failed < a.failed) {
    sum.failed = b.failed;
    sum.code = b.code;
    sum.failure = b.failure;
  }
  sum.done = std::min(a.done, b.done);
  sum.announced = std::max(a.announced, b.announced);
  sum.interrupted = a.interrupted || b.interrupted;
  for (const Claim& claim : b.claims) add_claim(sum.claims, claim);
  std::sort(sum.claims.begin(), sum.claims.end(),
            [](const Claim& x, const Claim& y) { return x.rank < y.rank; });
  if (sum.claims.size() > Vote::kClaims) sum.claims.resize(Vote::kClaims);
  return sum;
}

Spread::Spread(const Group& group, Place place) {
  for (int level = 0; level < group.levels(); ++level) {
    Level next{group.spread_from(level, place), 0, group.spread_to(level, place)};
    const Place own = group.block(level, place).begin;
    while (next.own < next.from.size() && next.from[next.own] < own) ++next.own;
    levels.push_back(std::move(next));
  }
}

bool Fold::receive(const Spread& spread, int level, Place from, Vote vote) {
  if (level < 0 || level >= static_cast<int>(spread.levels.size())) return false;
  const std::vector<Place>& known = spread.levels[static_cast<std::size_t>(level)].from;
  if (!std::binary_search(known.begin(), known.end(), from)) return false;
  if (level < reached()) return false;
  return heard_.emplace(std::make_pair(level, from), std::move(vote)).second;
}

std::vector<int> Fold::advance(const Spread& spread) {
  std::vector<int> fresh;
  while (started()) {
    const std::size_t level = own_.size() - 1;
    while (sent_ <= level && sent_ < spread.levels.size()) {
      fresh.push_back(static_cast<int>(sent_++));
    }
    if (level == spread.levels.size()) break;
    if (!missing(spread).empty()) break;
    const Spread::Level& peers = spread.levels[level];
    std::optional<Vote> sum;
    for (std::size_t i = 0; i <= peers.from.size(); ++i) {
      if (i == peers.own) sum = sum ? merge(*sum, own_[level]) : own_[level];
      if (i == peers.from.size()) break;
      const auto heard = heard_.find({static_cast<int>(level), peers.from[i]});
      sum = sum ? merge(*sum, heard->second) : heard->second;
      heard_.erase(heard);
    }
    own_.push_back(std::move(*sum));
  }
  return fresh;
}

std::vector<Place> Fold::missing(const Spread& spread) const {
  const std::size_t level = own_.empty() ? 0 : own_.size() - 1;
  std::vector<Place> places;
  if (level == spread.levels.size()) return places;
  for (const Place from : spread.levels[level].from) {
    if (!heard_.contains({static_cast<int>(level), from})) places.push_back(from);
  }
  return places;
}

}  // namespace teletensor::collective
