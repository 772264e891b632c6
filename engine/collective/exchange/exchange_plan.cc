// Exchange's planning: segments, transfers, and the locations of partial sums and results.
#include <algorithm>

#include "engine/collective/exchange/exchange.h"

namespace teletensor::collective {
namespace {

// Index of the staging of home_. Lower indices belong to levels.
constexpr std::uint64_t kHome = 999;

}  // namespace

Exchange::Exchange(const Group& group, Place place, Number number, std::vector<Call> calls,
                   const Limits& limits, Outbox& out)
    : group_(group),
      place_(place),
      number_(number),
      calls_(std::move(calls)),
      limits_(limits),
      out_(out),
      schedule_(schedule_of(group, place, calls_, limits)),
      item_(static_cast<std::int64_t>(core::size_of(calls_.front().dtype))) {
  const std::size_t levels = schedule_.levels.size();
  stages_.resize(levels);
  levels_.resize(levels + 1);
  levels_[0].region.add({0, schedule_.count});
  const Op op = calls_.front().op;
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    const Rank rank = group_.ranks_of(place_)[i];
    if (op == Op::kAllReduce || op == Op::kBroadcast || op == Op::kAllGather ||
        (op == Op::kReduce && rank == calls_[i].root)) {
      wanting_.push_back(rank);
    }
    if (op == Op::kReduceScatter) missing_ += calls_[i].counts[rank];
    for (const std::int64_t count : calls_[i].receives) missing_ += count;
  }
  if (!wanting_.empty()) missing_ += schedule_.count;
  // Nobody sends the elements of ranks that the group has lost.
  for (Rank rank = 0; op == Op::kAllGather && rank < group_.ranks(); ++rank) {
    if (!group_.has(rank)) missing_ -= calls_.front().counts[rank];
  }
  for (std::size_t l = 0; l < levels; ++l) {
    plan_stage(static_cast<int>(l));
    plan_transfers(static_cast<int>(l));
  }
  for (const Schedule::Part& part : schedule_.parts) {
    const Place to = group_.place_of(part.to);
    if (to == place_) continue;
    transfers_.push_back(
        {to, 0, false, &part,
         segments_of({0, part.count}, std::max<std::int64_t>(1, limits_.segment / item_)), 0, 0});
  }
  std::sort(givers_.begin(), givers_.end());
  givers_.erase(std::unique(givers_.begin(), givers_.end()), givers_.end());
}

std::size_t Exchange::node_bytes(const Node& node) const {
  const core::DType dtype = calls_.front().dtype;
  return core::size_of(node.contributors > 1 ? accumulator_of(dtype) : dtype);
}

void Exchange::plan_stage(int level) {
  const Schedule::Level& plan = schedule_.levels[static_cast<std::size_t>(level)];
  Stage& stage = stages_[static_cast<std::size_t>(level)];
  stage.nodes = plan.own;
  for (const Forest& forest : plan.given) {
    stage.nodes.insert(stage.nodes.end(), forest.begin(), forest.end());
  }
  if (!plan.owned.empty()) stage.sum = sum_of(stage.nodes, plan.sum);
  for (const Schedule::Owned& owned : plan.owned) {
    for (const Range& range : segments_of(owned.range, schedule_.grain)) {
      Segment segment{range, &owned, {}, owned.holders.size(), false};
      segment.given.resize(owned.holders.size());
      stage.segments.push_back(std::move(segment));
      for (const Place holder : owned.holders) ++stage.total[holder];
    }
    levels_[static_cast<std::size_t>(level) + 1].region.add(owned.range);
    for (std::size_t g = 0; g < owned.holders.size(); ++g) {
      if (!eager(plan.given[g])) givers_.push_back(owned.holders[g]);
    }
  }
  for (const auto& [holder, total] : stage.total) stage.granted[holder] = kGranted;
}

void Exchange::plan_transfers(int level) {
  const Schedule::Level& plan = schedule_.levels[static_cast<std::size_t>(level)];
  for (const Schedule::Push& push : plan.partials) {
    Transfer* known = transfer_to(push.to, level);
    if (known == nullptr) {
      transfers_.push_back({push.to, level, true, nullptr, {}, 0, kGranted});
      known = &transfers_.back();
    }
    const std::vector<Range> segments = segments_of(push.range, schedule_.grain);
    known->segments.insert(known->segments.end(), segments.begin(), segments.end());
  }
  const std::int64_t grain = std::max<std::int64_t>(1, limits_.segment / item_);
  for (const Schedule::Push& push : plan.finals) {
    transfers_.push_back({push.to, level, false, nullptr, segments_of(push.range, grain), 0, 0});
  }
}

Exchange::Transfer* Exchange::transfer_to(Place to, int level) {
  for (Transfer& transfer : transfers_) {
    if (transfer.partial && transfer.to == to && transfer.level == level) return &transfer;
  }
  return nullptr;
}

// Reserves staging for the partial sums of this place's block at each level, and for pieces of a
// result that no rank of this place receives.
void Exchange::plan_home() {
  const auto reserve = [&](std::uint64_t index, std::int64_t bytes) {
    if (bytes == 0) return;
    staged_[staging(index)] = bytes;
    out_.reserve(staging(index), bytes);
  };
  for (std::size_t l = 0; l < schedule_.levels.size(); ++l) {
    if (schedule_.origin) break;
    std::int64_t bytes = 0;
    for (const Node& node : schedule_.levels[l].own) {
      if (l > 0 || node.contributors > 1) {
        bytes += static_cast<std::int64_t>(node_bytes(node)) * levels_[l].region.size();
      }
    }
    reserve(l, bytes);
  }
  if (!whole(calls_.front().op) || !wanting_.empty()) return;
  home_ = levels_[1].region;
  reserve(kHome, home_.size() * item_);
}

Slice Exchange::partial_at(int level, std::size_t index, Range range) const {
  const std::size_t l = static_cast<std::size_t>(level);
  const Forest& forest = schedule_.levels[l].own;
  const Node& node = forest[index];
  const std::int64_t bytes = static_cast<std::int64_t>(node_bytes(node));
  if (node.contributors == 1 && (level == 0 || schedule_.origin)) {
    Rank rank = calls_.front().root;
    for (const Rank own : group_.ranks_of(place_)) {
      if (!schedule_.origin && node.begin <= own && own < node.end) rank = own;
    }
    return {{number_, Buffer::Kind::kOperand, rank}, range.begin * bytes, range.size() * bytes};
  }
  std::int64_t before = 0;
  for (std::size_t i = 0; i < index; ++i) {
    if (level > 0 || forest[i].contributors > 1) {
      before += static_cast<std::int64_t>(node_bytes(forest[i])) * levels_[l].region.size();
    }
  }
  return {staging(l), before + levels_[l].region.place_of(range.begin) * bytes,
          range.size() * bytes};
}

std::vector<Slice> Exchange::final_at(Range range) const {
  std::vector<Slice> slices;
  for (const Rank rank : wanting_) {
    slices.push_back(
        {{number_, Buffer::Kind::kResult, rank}, range.begin * item_, range.size() * item_});
  }
  if (calls_.front().op == Op::kReduceScatter) {
    for (const Rank rank : group_.ranks_of(place_)) {
      const std::int64_t at = offset_of(calls_.front().counts, rank);
      if (at <= range.begin && range.end <= at + calls_.front().counts[rank]) {
        slices.push_back({{number_, Buffer::Kind::kResult, rank},
                          (range.begin - at) * item_,
                          range.size() * item_});
      }
    }
  }
  if (slices.empty()) {
    slices.push_back({staging(kHome), home_.place_of(range.begin) * item_, range.size() * item_});
  }
  return slices;
}

Slice Exchange::part_at(Rank to, Rank from, Range range) const {
  const std::vector<Rank>& own = group_.ranks_of(place_);
  const std::size_t i =
      static_cast<std::size_t>(std::lower_bound(own.begin(), own.end(), to) - own.begin());
  const std::int64_t at = offset_of(calls_[i].receives, from) + range.begin;
  return {{number_, Buffer::Kind::kResult, to}, at * item_, range.size() * item_};
}

bool Exchange::eager(const Forest& forest) const {
  if (!small()) return false;
  std::int64_t bytes = 0;
  for (const Node& node : forest) {
    bytes += static_cast<std::int64_t>(node_bytes(node)) * schedule_.count;
  }
  return bytes <= limits_.eager;
}

}  // namespace teletensor::collective
