#include "engine/runtime/groups/group_rest.h"

#include <algorithm>
#include <utility>

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

void GroupRest::continue_from(const program::Image::Group& image) {
  core::MutexLock lock(state_.mu);
  state_.id = {image.former, image.epoch};
  state_.places = places_of(image);
  awaited_.insert(image.joined.begin(), image.joined.end());
  for (const collective::Rank rank : awaited_) state_.ranks[rank].number = image.collectives;
  for (const auto& lost : image.lost) {
    state_.lost.push_back({lost.rank, lost.why, 0});
    state_.ranks[lost.rank].lost = Status(
        Code::kDeadlineExceeded,
        "group \"" + image.name + "\": " + collective::rank_text(lost.rank) + " " + lost.why);
  }
  state_.going = true;
  state_.place_ranks(image.place, participant_of(image));
}

bool GroupRest::busy() {
  core::MutexLock lock(state_.mu);
  return !state_.closed() &&
         (state_.busy() || (state_.participant && state_.participant->cut().repeats()));
}

bool GroupRest::wanted(collective::Rank rank) {
  core::MutexLock lock(state_.mu);
  if (!state_.participant || !state_.going || state_.closed()) return false;
  collective::Number last = state_.run_to;
  for (const GroupRank& each : state_.ranks) last = std::max(last, each.number);
  return state_.ranks[rank].number < last;
}

bool GroupRest::rest() {
  {
    core::MutexLock lock(state_.mu);
    if (state_.kept) return true;
  }
  bool rests = false;
  state_.settle([&](Waiters&) TT_REQUIRES(state_.mu) {
    // With several levels, the restart may lose a message from a third daemon, so the group cannot
    // continue.
    if (state_.closed() ||
        (state_.participant && state_.participant->context().group.levels() > 1)) {
      rests = true;
      return;
    }
    const bool still = !state_.busy();
    rests = state_.alone() ? still : state_.going && state_.participant->come_to_rest(still);
  });
  return rests;
}

void GroupRest::end_moving(const std::string& why) {
  state_.settle([&](Waiters& met) TT_REQUIRES(state_.mu) {
    const bool rests = !state_.busy() && (state_.alone() || state_.participant->cut().rests());
    for (collective::Rank rank = 0; !rests && rank < state_.count(); ++rank) leave(rank, why, met);
  });
}

// The image of a session contains its own open collectives, but no call that the group keeps for a
// rank whose command has ended.
bool GroupRest::may_hold_open() const {
  if (state_.memory.has_transfers()) return false;
  if (state_.participant && !state_.participant->context().departures.empty()) return false;
  for (const GroupRank& rank : state_.ranks) {
    if (!rank.joined || rank.lost) continue;
    if (!rank.declined.empty()) return false;
    if (!state_.participant) continue;
    const collective::Number finished = state_.participant->finished();
    if (rank.number != finished + rank.operations.open_after(finished)) return false;
  }
  return true;
}

void GroupRest::leave(collective::Rank rank, const std::string& why, Waiters& met) {
  if (!state_.ranks[rank].joined) return;
  state_.part(rank, named(why, state_.fabric, state_.places.size()), true, met);
}

bool GroupRest::hold_open(const std::string& why) {
  {
    core::MutexLock lock(state_.mu);
    if (state_.kept) return true;
  }
  bool holds = true;
  state_.settle([&](Waiters& met) TT_REQUIRES(state_.mu) {
    if (state_.closed()) return;
    const bool alone = state_.alone();
    const bool one_level = !state_.participant || state_.participant->context().group.levels() == 1;
    if (!alone && state_.going && one_level &&
        !state_.participant->come_to_rest(!state_.busy(), true)) {
      holds = false;
      return;
    }
    if ((alone || state_.participant->cut().rests()) && may_hold_open()) {
      state_.kept = true;
      return;
    }
    for (collective::Rank rank = 0; rank < state_.count() && !state_.closed(); ++rank) {
      leave(rank, why, met);
    }
  });
  return holds;
}

void GroupRest::end_waits(collective::Rank rank) {
  Waiters met;
  {
    core::MutexLock lock(state_.mu);
    if (!state_.kept) return;
    state_.ranks[rank].operations.finish_all(Status(Code::kAborted, "the session ends"), met);
  }
  for (Groups::Waiter* const waiter : met) waiter->met();
}

std::optional<program::Image::Group> GroupRest::image(collective::Rank rank) {
  core::MutexLock lock(state_.mu);
  if (state_.closed() || (state_.busy() && !state_.kept)) return std::nullopt;
  program::Image::Group image;
  image.name = state_.name;
  image.rank = rank;
  image.ranks = state_.count();
  image.elastic = state_.elastic;
  image.timeout_ms = static_cast<std::uint64_t>(state_.ranks[rank].timeout.count());
  if (!state_.participant) return image;
  if (state_.places.size() > 1 && !state_.participant->cut().rests()) return std::nullopt;
  if (state_.ranks[rank].lost || !state_.participant->context().departures.empty())
    return std::nullopt;
  for (const Groups::Lost& lost : state_.lost) image.lost.push_back({lost.rank, lost.why});
  state_.kept = true;
  image.former = state_.id.former;
  image.epoch = state_.id.number;
  for (const PeerMessage::Place& place : state_.places) {
    auto& saved = image.places.emplace_back();
    saved.daemon = place.daemon;
    for (const PeerMessage::Member& member : place.members) saved.ranks.push_back(member.rank);
  }
  image.place = state_.own;
  for (collective::Rank each = 0; each < state_.count(); ++each) {
    if (state_.ranks[each].joined && !state_.ranks[each].lost) image.joined.push_back(each);
  }
  const collective::Participant::Image now = state_.participant->image();
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

bool GroupRest::come_back(const Groups::Join& join) {
  core::MutexLock lock(state_.mu);
  if (state_.closed() || awaited_.erase(join.rank) == 0) return false;
  GroupRank& rank = state_.ranks[join.rank];
  rank.joined = true;
  rank.who = join.who;
  rank.attended = join.attended;
  rank.on_lost = join.on_lost;
  rank.timeout = join.timeout;
  state_.participant->describe_rank(join.rank, join.who);
  return true;
}

void GroupRest::restored() {
  state_.settle([&](Waiters&) TT_REQUIRES(state_.mu) {
    for (const collective::Rank rank : std::exchange(awaited_, {})) {
      state_.participant->lost(rank,
                               "has lost its session, which could not be kept over a restart of "
                               "its daemon");
    }
    if (state_.participant->cut().drains) state_.participant->end_drain();
  });
}

std::optional<PeerMessage::Kept> GroupRest::kept_with(const std::string& daemon) {
  core::MutexLock lock(state_.mu);
  if (!state_.participant || state_.ended() || !state_.place_of(daemon)) return std::nullopt;
  return PeerMessage::Kept{state_.id, state_.participant->cut().generation()};
}

void GroupRest::met(const std::string& daemon, const std::optional<PeerMessage::Kept>& kept) {
  state_.settle([&](Waiters&) TT_REQUIRES(state_.mu) {
    const auto place = state_.place_of(daemon);
    if (!place || !state_.participant) return;
    if (kept && state_.participant->cut().holding() &&
        kept->generation == state_.participant->cut().generation()) {
      state_.participant->restarted(*place);
    } else {
      state_.participant->lost_place(*place, "has lost its daemon: " + daemon + " has restarted");
    }
  });
}

}  // namespace teletensor::runtime
