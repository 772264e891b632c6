#include "engine/collective/exchange/exchange.h"

#include <algorithm>
#include <limits>

namespace teletensor::collective {
void Exchange::copy(Slice from, std::vector<Slice> to, std::int64_t elements, Running running) {
  Job job;
  job.dtype = calls_.front().dtype;
  job.elements = elements;
  job.sources = {{from, false}};
  job.outputs = {{0, std::move(to), false, 1}};
  running_[out_.reduce(std::move(job))] = running;
}

// Adds the operands of this place's ranks as far as the tree of additions allows.
void Exchange::presum() {
  if (schedule_.levels.empty() || schedule_.origin) return;
  const Schedule::Level& plan = schedule_.levels[0];
  const Range all{0, schedule_.count};
  const bool alone = std::all_of(plan.own.begin(), plan.own.end(),
                                 [](const Node& n) { return n.contributors == 1; });
  if (alone || all.size() == 0) {
    levels_[0].complete.add(all);
    return;
  }
  std::vector<Rank> held = group_.ranks_of(place_);
  std::vector<Node> nodes;
  for (const Rank rank : held) nodes.push_back({rank, rank + 1, 1});
  const Sum sum = sum_of(nodes, plan.own);
  for (const Range& range : segments_of(all, std::max<std::int64_t>(1, limits_.segment / item_))) {
    Job job;
    job.dtype = calls_.front().dtype;
    job.reduction = calls_.front().reduction;
    job.elements = range.size();
    job.additions = sum.additions;
    for (const Rank rank : held) {
      job.sources.push_back(
          {{{number_, Buffer::Kind::kOperand, rank}, range.begin * item_, range.size() * item_},
           false});
    }
    for (std::size_t i = 0; i < plan.own.size(); ++i) {
      if (plan.own[i].contributors > 1) {
        job.outputs.push_back({sum.slots[i], {partial_at(0, i, range)}, true, 1});
      }
    }
    running_[out_.reduce(std::move(job))] = {Running::Kind::kPresum, 0, 0, range, 0};
  }
}

void Exchange::prepare() {
  plan_home();
  presum();
  if (schedule_.origin) {
    for (Level& each : levels_) each.complete.add({0, schedule_.count});
  }
}

void Exchange::announce() {
  if (!small()) return;
  prepare();
  pump();
}

void Exchange::start() {
  if (!small()) prepare();
  started_ = true;
  give_operands();
  run_stages();
  pump();
}

// Copies data that needs no addition: the operand of a broadcast's root, the operands of
// all_gather, and parts that ranks of this place send to each other.
void Exchange::give_operands() {
  const Call& call = calls_.front();
  const std::vector<Rank>& own = group_.ranks_of(place_);
  if (schedule_.origin && schedule_.count > 0) {
    const Range all{0, schedule_.count};
    copy({{number_, Buffer::Kind::kOperand, call.root}, 0, all.size() * item_}, final_at(all),
         all.size(), {Running::Kind::kCopy, 0, 0, all, all.size()});
  }
  for (const Rank rank : call.op == Op::kAllGather ? own : std::vector<Rank>()) {
    const std::int64_t at = offset_of(call.counts, rank);
    const Range range{at, at + call.counts[rank]};
    if (range.size() == 0) continue;
    copy({{number_, Buffer::Kind::kOperand, rank}, 0, range.size() * item_}, final_at(range),
         range.size(), {Running::Kind::kCopy, 0, 0, range, range.size()});
  }
  for (const Schedule::Part& part : schedule_.parts) {
    if (group_.place_of(part.to) != place_) continue;
    const std::size_t i =
        static_cast<std::size_t>(std::lower_bound(own.begin(), own.end(), part.from) - own.begin());
    copy({{number_, Buffer::Kind::kOperand, part.from},
          offset_of(calls_[i].sends, part.to) * item_,
          part.count * item_},
         {part_at(part.to, part.from, {0, part.count})}, part.count,
         {Running::Kind::kCopy, 0, 0, {}, part.count});
  }
}

void Exchange::release() {
  for (const auto& [buffer, bytes] : staged_) out_.free(buffer);
  staged_.clear();
  running_.clear();
  transfers_.clear();
  stages_.clear();
}

core::Result<Exchange::Segment*> Exchange::segment_of(Place from, const Message& message,
                                                      std::size_t* holder) {
  if (message.level >= stages_.size()) return violation("a level that the operation does not have");
  Stage& stage = stages_[message.level];
  const auto at =
      std::lower_bound(stage.segments.begin(), stage.segments.end(), message.range.begin,
                       [](const Segment& s, std::int64_t x) { return s.range.begin < x; });
  if (at == stage.segments.end() || at->range != message.range) {
    return violation("a segment that is not this daemon's");
  }
  const std::vector<Place>& holders = at->owned->holders;
  *holder =
      static_cast<std::size_t>(std::find(holders.begin(), holders.end(), from) - holders.begin());
  if (*holder == holders.size()) return violation("a segment that it does not hold");
  if (at->given[*holder]) return violation("a segment twice");
  std::int64_t bytes = 0;
  for (const Node& node : schedule_.levels[message.level].given[*holder]) {
    bytes += static_cast<std::int64_t>(node_bytes(node)) * message.range.size();
  }
  if (bytes != message.payload) return violation("a segment of another size");
  if (eager(schedule_.levels[message.level].given[*holder])) return &*at;
  if (number_ > out_.done + limits_.active) return violation("a segment before its turn");
  if (stage.taken[from] >= stage.granted[from]) return violation("a segment without a credit");
  return &*at;
}

core::Status Exchange::check(Place from, const Message& message) {
  std::size_t holder = 0;
  return segment_of(from, message, &holder).status();
}

core::Result<Slice> Exchange::expect(Place from, const Message& message) {
  const Range range = message.range;
  if (range.begin < 0 || range.end <= range.begin ||
      range.size() > std::numeric_limits<std::int64_t>::max() / item_ ||
      message.payload != range.size() * item_) {
    return violation("a result's segment of another size");
  }
  if (message.to == kNoRank) {
    const Op op = calls_.front().op;
    if (range.end > schedule_.count || !(whole(op) || op == Op::kAllGather) ||
        (wanting_.empty() && !home_.has(range))) {
      return violation("a result that no rank here receives");
    }
    return final_at(range).front();
  }
  const std::vector<Rank>& own = group_.ranks_of(place_);
  const auto at = std::lower_bound(own.begin(), own.end(), message.to);
  if (at == own.end() || *at != message.to || !group_.has(message.from) ||
      group_.place_of(message.from) != from) {
    return violation("a part for a rank that this daemon does not have");
  }
  const std::vector<std::int64_t>& receives =
      calls_[static_cast<std::size_t>(at - own.begin())].receives;
  if (message.from >= receives.size() || range.end > receives[message.from]) {
    return violation("a longer part than the rank receives");
  }
  return part_at(message.to, message.from, range);
}

core::Status Exchange::receive(Place from, const Message& message, const Slice& at) {
  if (message.kind == Kind::kPartial) {
    std::size_t holder = 0;
    const core::Result<Segment*> segment = segment_of(from, message, &holder);
    if (!segment.ok()) return segment.status();
    staged_[at.buffer] = at.bytes;
    ++stages_[message.level].taken[from];
    (*segment)->given[holder] = at;
    --(*segment)->missing;
    run_stages();
  } else if (message.kind == Kind::kCredit) {
    Transfer* transfer = transfer_to(from, message.level);
    if (transfer == nullptr) return violation("a credit for a transfer that does not exist");
    if (message.range.end <= transfer->granted ||
        std::cmp_greater(message.range.end, transfer->segments.size())) {
      return violation("a credit that grants nothing new, or more than the transfer has");
    }
    transfer->granted = message.range.end;
  } else if (message.to == kNoRank) {
    if (!final_.add(message.range)) return violation("a result's segment twice");
    stand(message.range, message.range.size());
  } else {
    if (!parts_[{message.to, message.from}].add(message.range)) return violation("a part twice");
    missing_ -= message.range.size();
  }
  pump();
  return {};
}

// Handles a segment of a result that was received into the result of this place's first rank that
// needs it.
void Exchange::stand(Range range, std::int64_t counts) {
  std::vector<Slice> places = final_at(range);
  if (wanting_.size() > 1) {
    const Slice first = places.front();
    places.erase(places.begin());
    copy(first, std::move(places), range.size(), {Running::Kind::kCopy, 0, 0, {}, counts});
  } else if (!wanting_.empty()) {
    missing_ -= counts;
  }
}

void Exchange::run_stages() {
  if (!started_) return;
  for (std::size_t level = 0; level < stages_.size(); ++level) {
    for (std::size_t i = 0; i < stages_[level].segments.size(); ++i) {
      const Segment& segment = stages_[level].segments[i];
      if (segment.running || segment.missing > 0) continue;
      const bool own =
          schedule_.levels[level].own.empty() || levels_[level].complete.covers(segment.range);
      if (own) run_segment(static_cast<int>(level), i);
    }
  }
}

void Exchange::run_segment(int level, std::size_t index) {
  const std::size_t l = static_cast<std::size_t>(level);
  const Schedule::Level& plan = schedule_.levels[l];
  Stage& stage = stages_[l];
  Segment& segment = stage.segments[index];
  segment.running = true;
  Job job;
  job.dtype = calls_.front().dtype;
  job.reduction = calls_.front().reduction;
  job.elements = segment.range.size();
  job.additions = stage.sum.additions;
  for (std::size_t i = 0; i < plan.own.size(); ++i) {
    job.sources.push_back({partial_at(level, i, segment.range), plan.own[i].contributors > 1});
  }
  for (std::size_t g = 0; g < plan.given.size(); ++g) {
    std::int64_t offset = segment.given[g]->offset;
    for (const Node& node : plan.given[g]) {
      const std::int64_t bytes = static_cast<std::int64_t>(node_bytes(node)) * job.elements;
      job.sources.push_back({{segment.given[g]->buffer, offset, bytes}, node.contributors > 1});
      offset += bytes;
    }
  }
  const bool top = l + 1 == schedule_.levels.size();
  if (top) {
    const bool average = reduces(calls_.front().op) && job.reduction == Reduction::kAvg;
    const std::uint32_t divisor = average ? static_cast<std::uint32_t>(group_.present().size()) : 1;
    job.outputs.push_back({stage.sum.slots[0], final_at(segment.range), false, divisor});
  } else {
    const Forest& next = schedule_.levels[l + 1].own;
    for (std::size_t i = 0; i < next.size(); ++i) {
      job.outputs.push_back({stage.sum.slots[i],
                             {partial_at(level + 1, i, segment.range)},
                             next[i].contributors > 1,
                             1});
    }
  }
  running_[out_.reduce(std::move(job))] = {Running::Kind::kStage, level, index, segment.range, 0};
}

void Exchange::stage_reduced(const Running& done) {
  const std::size_t l = static_cast<std::size_t>(done.level);
  Stage& stage = stages_[l];
  Segment& segment = stage.segments[done.segment];
  ++stage.reduced;
  for (std::size_t g = 0; g < segment.given.size(); ++g) {
    out_.free(segment.given[g]->buffer);
    staged_.erase(segment.given[g]->buffer);
    const Place holder = segment.owned->holders[g];
    std::int64_t& granted = stage.granted[holder];
    if (eager(schedule_.levels[l].given[g]) || granted++ >= stage.total[holder]) continue;
    Message credit;
    credit.kind = Kind::kCredit;
    credit.level = static_cast<std::uint8_t>(done.level);
    credit.number = number_;
    credit.range.end = granted;
    out_.send(holder, std::move(credit));
  }
  if (l + 1 < stages_.size()) {
    levels_[l + 1].complete.add(done.range);
    return;
  }
  final_.add(done.range);
  if (!wanting_.empty() || calls_.front().op == Op::kReduceScatter) missing_ -= done.range.size();
}

bool Exchange::reduced(std::uint64_t job) {
  const auto found = running_.find(job);
  if (found == running_.end()) return false;
  const Running done = found->second;
  running_.erase(found);
  if (done.kind == Running::Kind::kPresum) {
    levels_[0].complete.add(done.range);
  } else if (done.kind == Running::Kind::kStage) {
    stage_reduced(done);
  } else {
    missing_ -= done.counts;
    final_.add(done.range);
  }
  run_stages();
  pump();
  return true;
}

bool Exchange::may_send(const Transfer& transfer) const {
  if (transfer.next == transfer.segments.size()) return false;
  const Range range = transfer.segments[transfer.next];
  if (transfer.part != nullptr) return started_;
  if (!transfer.partial) return started_ && final_.covers(range);
  if (!levels_[static_cast<std::size_t>(transfer.level)].complete.covers(range)) return false;
  if (eager(schedule_.levels[static_cast<std::size_t>(transfer.level)].own)) return true;
  return started_ && std::cmp_less(transfer.next, transfer.granted) &&
         number_ <= out_.heard(transfer.to) + limits_.active;
}

void Exchange::send_segment(Transfer& transfer) {
  const Range range = transfer.segments[transfer.next++];
  Message message;
  message.kind = transfer.partial ? Kind::kPartial : Kind::kFinal;
  message.number = number_;
  message.level = static_cast<std::uint8_t>(transfer.level);
  message.range = range;
  std::vector<Slice> slices;
  if (transfer.part != nullptr) {
    message.from = transfer.part->from;
    message.to = transfer.part->to;
    const std::vector<Rank>& own = group_.ranks_of(place_);
    const std::size_t i = static_cast<std::size_t>(
        std::lower_bound(own.begin(), own.end(), message.from) - own.begin());
    const std::int64_t at = offset_of(calls_[i].sends, message.to) + range.begin;
    slices.push_back(
        {{number_, Buffer::Kind::kOperand, message.from}, at * item_, range.size() * item_});
  } else if (transfer.partial) {
    const Forest& own = schedule_.levels[message.level].own;
    for (std::size_t i = 0; i < own.size(); ++i) {
      slices.push_back(partial_at(transfer.level, i, range));
    }
  } else {
    slices.push_back(final_at(range).front());
  }
  out_.send(transfer.to, std::move(message), std::move(slices));
}

void Exchange::pump() {
  for (Transfer& transfer : transfers_) {
    while (may_send(transfer)) send_segment(transfer);
  }
}

bool Exchange::finished() const {
  if (!complete() || !running_.empty()) return false;
  for (const Stage& stage : stages_) {
    if (stage.reduced != stage.segments.size()) return false;
  }
  return std::all_of(transfers_.begin(), transfers_.end(),
                     [](const Transfer& t) { return t.next == t.segments.size(); });
}

std::vector<Place> Exchange::waits_for() const {
  std::vector<Place> places;
  for (const Stage& stage : stages_) {
    for (const Segment& segment : stage.segments) {
      for (std::size_t g = 0; g < segment.given.size(); ++g) {
        if (!segment.given[g]) places.push_back(segment.owned->holders[g]);
      }
    }
  }
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  return places;
}

}  // namespace teletensor::collective
