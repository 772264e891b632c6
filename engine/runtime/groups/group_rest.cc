// GroupEpoch's functions that bring a group to rest and continue it after a restart.
#include <algorithm>
#include <utility>

#include "engine/runtime/groups/group_epoch.h"

namespace teletensor::runtime {

using core::Code;
using core::Status;

namespace {

std::vector<PeerMessage::Place> places_of(const program::Image::Group& image) {
  std::vector<PeerMessage::Place> places;
  for (const auto& saved : image.places) {
    PeerMessage::Place& place = places.emplace_back();
    place.daemon = saved.daemon;
    for (const collective::Rank rank : saved.ranks) place.members.push_back({rank, 0});
  }
  return places;
}

collective::Participant::Image participant_of(const program::Image::Group& image) {
  collective::Participant::Image made;
  made.number = image.collectives;
  made.generation = image.generation;
  for (const auto& each : image.transfers) {
    const collective::PointToPoint::Key key{each.from, each.to, each.tag};
    if (each.sent > 0) made.point_to_point.sent[key] = each.sent;
    if (each.received > 0) made.point_to_point.received[key] = each.received;
  }
  for (const auto& each : image.failed_transfers) {
    made.point_to_point.failures[{{each.from, each.to, each.tag}, each.number}] = {
        each.status.code(), each.status.message()};
  }
  return made;
}

// The reason why a daemon ends a group, with its name if the group has several daemons.
std::string named(const std::string& why, const Fabric* fabric, std::size_t daemons) {
  return fabric == nullptr || daemons < 2 ? why : why + ": " + fabric->name();
}

}  // namespace

GroupEpoch::GroupEpoch(const program::Image::Group& image, Groups::Adder& adder, Fabric* fabric)
    : name_(image.name), adder_(adder), fabric_(fabric), ranks_(image.ranks), stamp_(image.stamp) {
  core::MutexLock lock(mu_);
  id_ = {image.former, image.epoch};
  places_ = places_of(image);
  awaited_.insert(image.joined.begin(), image.joined.end());
  for (const collective::Rank rank : awaited_) ranks_[rank].number = image.collectives;
  going_ = true;
  place_ranks(image.place, participant_of(image));
}

bool GroupEpoch::busy_locked() const {
  return !transfers_.empty() || std::any_of(ranks_.begin(), ranks_.end(), [](const auto& rank) {
    return rank.joined && (rank.waits() || !rank.declined.empty());
  });
}

bool GroupEpoch::busy() {
  core::MutexLock lock(mu_);
  return !closed_locked() && (busy_locked() || (participant_ && participant_->repeats()));
}

bool GroupEpoch::wanted(collective::Rank rank) {
  core::MutexLock lock(mu_);
  if (!participant_ || !going_ || closed_locked()) return false;
  collective::Number last = run_to_;
  for (const RankState& each : ranks_) last = std::max(last, each.number);
  return ranks_[rank].number < last;
}

bool GroupEpoch::rest() {
  {
    core::MutexLock lock(mu_);
    if (kept_) return true;
  }
  bool rests = false;
  settle([&](Waiters&) TT_REQUIRES(mu_) {
    // With several levels, the restart may lose a message from a third daemon, so the group cannot
    // continue.
    if (closed_locked() || (group_ && group_->levels() > 1)) {
      rests = true;
      return;
    }
    const bool still = !busy_locked();
    const bool alone = !participant_ || places_.size() == 1;
    rests = alone ? still : going_ && participant_->come_to_rest(still);
  });
  return rests;
}

void GroupEpoch::end_moving(const std::string& why) {
  settle([&](Waiters& met) TT_REQUIRES(mu_) {
    const bool rests =
        !busy_locked() && (!participant_ || places_.size() == 1 || participant_->rests());
    for (collective::Rank rank = 0; !rests && rank < ranks(); ++rank) {
      if (ranks_[rank].joined) part(rank, named(why, fabric_, places_.size()), true, met);
    }
  });
}

// The image of a session contains its own open collectives, but no call that the group keeps for a
// rank whose command has ended.
bool GroupEpoch::may_hold_open() const {
  if (!transfers_.empty()) return false;
  for (const RankState& rank : ranks_) {
    if (!rank.joined) continue;
    if (!rank.declined.empty()) return false;
    if (!participant_) continue;
    const collective::Number finished = participant_->finished();
    const auto open = std::count_if(rank.open.begin(), rank.open.end(), [&](const auto& each) {
      return each.second.number > finished && !each.second.ended;
    });
    if (rank.number != finished + static_cast<collective::Number>(open)) {
      return false;
    }
  }
  return true;
}

bool GroupEpoch::hold_open(const std::string& why) {
  {
    core::MutexLock lock(mu_);
    if (kept_) return true;
  }
  bool holds = true;
  settle([&](Waiters& met) TT_REQUIRES(mu_) {
    if (closed_locked()) return;
    const bool alone = !participant_ || places_.size() == 1;
    const bool one_level = !group_ || group_->levels() == 1;
    if (!alone && going_ && one_level && !participant_->come_to_rest(!busy_locked(), true)) {
      holds = false;
      return;
    }
    if ((alone || participant_->rests()) && may_hold_open()) {
      kept_ = true;
      return;
    }
    for (collective::Rank rank = 0; rank < ranks() && !closed_locked(); ++rank) {
      if (ranks_[rank].joined) part(rank, named(why, fabric_, places_.size()), true, met);
    }
  });
  return holds;
}

void GroupEpoch::end_waits(collective::Rank rank) {
  Waiters met;
  {
    core::MutexLock lock(mu_);
    if (!kept_) return;
    for (auto& [ticket, open] : ranks_[rank].open) {
      finish(open, Status(Code::kAborted, "the session ends"), met);
    }
  }
  for (Waiter* const waiter : met) waiter->met();
}

std::optional<program::Image::Group> GroupEpoch::image(collective::Rank rank) {
  core::MutexLock lock(mu_);
  if (closed_locked() || (busy_locked() && !kept_)) return std::nullopt;
  program::Image::Group image;
  image.name = name_;
  image.rank = rank;
  image.ranks = ranks();
  image.timeout_ms = static_cast<std::uint64_t>(ranks_[rank].timeout.count());
  if (!participant_) return image;
  if (places_.size() > 1 && !participant_->rests()) return std::nullopt;
  kept_ = true;
  image.former = id_.former;
  image.epoch = id_.number;
  for (const PeerMessage::Place& place : places_) {
    auto& saved = image.places.emplace_back();
    saved.daemon = place.daemon;
    for (const PeerMessage::Member& member : place.members) saved.ranks.push_back(member.rank);
  }
  image.place = group_->place_of(lowest_);
  for (collective::Rank each = 0; each < ranks(); ++each) {
    if (ranks_[each].joined) image.joined.push_back(each);
  }
  const collective::Participant::Image now = participant_->image();
  image.collectives = now.number;
  image.generation = now.generation;
  for (const auto& [key, number] : now.point_to_point.sent) {
    image.transfers.push_back({key.from, key.to, key.tag, number, 0});
  }
  for (const auto& [key, number] : now.point_to_point.received) {
    image.transfers.push_back({key.from, key.to, key.tag, 0, number});
  }
  for (const auto& [which, failed] : now.point_to_point.failures) {
    const auto& [key, number] = which;
    image.failed_transfers.push_back(
        {key.from, key.to, key.tag, number, core::Status(failed.code, failed.text)});
  }
  return image;
}

bool GroupEpoch::come_back(const Groups::Join& join) {
  core::MutexLock lock(mu_);
  if (closed_locked() || awaited_.erase(join.rank) == 0) return false;
  RankState& rank = ranks_[join.rank];
  rank.joined = true;
  rank.who = join.who;
  rank.timeout = join.timeout;
  participant_->describe_rank(join.rank, join.who);
  return true;
}

void GroupEpoch::restored() {
  settle([&](Waiters&) TT_REQUIRES(mu_) {
    for (const collective::Rank rank : std::exchange(awaited_, {})) {
      participant_->lost(rank,
                         "has lost its session, which could not be kept over a restart of "
                         "its daemon");
    }
    if (participant_->drains()) participant_->end_drain();
  });
}

std::optional<PeerMessage::Kept> GroupEpoch::kept_with(const std::string& daemon) {
  core::MutexLock lock(mu_);
  if (!participant_ || ended_locked() || !place_of(daemon)) return std::nullopt;
  return PeerMessage::Kept{id_, participant_->generation()};
}

void GroupEpoch::met(const std::string& daemon, const std::optional<PeerMessage::Kept>& kept) {
  settle([&](Waiters&) TT_REQUIRES(mu_) {
    const auto place = place_of(daemon);
    if (!place || !participant_) return;
    if (kept && participant_->held() && kept->generation == participant_->generation()) {
      participant_->restarted(*place);
    } else {
      participant_->lost_place(*place, "has lost its daemon: " + daemon + " has restarted");
    }
  });
}

}  // namespace teletensor::runtime
