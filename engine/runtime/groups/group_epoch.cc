#include "engine/runtime/groups/group_epoch.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace teletensor::runtime {

using collective::Action;
using collective::Call;
using collective::Slice;
using core::Status;

namespace {

bool is_transfer(const Call& call) {
  return call.op == collective::Op::kSend || call.op == collective::Op::kRecv;
}

}  // namespace

GroupEpoch::GroupEpoch(const Groups::Join& join, const EpochId& id, Groups::Adder& adder,
                       Fabric* fabric)
    : state_(join.name, join.ranks, join.elastic, adder, fabric), rest_(state_) {
  if (fabric != nullptr) return;
  std::vector<PeerMessage::Place> here(1);
  for (collective::Rank rank = 0; rank < join.ranks; ++rank) here[0].members.push_back({rank, 0});
  form(id, std::move(here), 0);
  core::MutexLock lock(state_.mu);
  state_.going = true;
}

GroupEpoch::GroupEpoch(const program::Image::Group& image, Groups::Adder& adder, Fabric* fabric)
    : state_(image.name, image.ranks, image.elastic, adder, fabric), rest_(state_, image.stamp) {
  rest_.continue_from(image);
}

bool GroupEpoch::ended() {
  core::MutexLock lock(state_.mu);
  return state_.ended();
}
bool GroupEpoch::closed() {
  core::MutexLock lock(state_.mu);
  return state_.closed();
}
EpochId GroupEpoch::id() {
  core::MutexLock lock(state_.mu);
  return state_.id;
}
bool GroupEpoch::has(collective::Rank rank) {
  core::MutexLock lock(state_.mu);
  return rank < ranks() && state_.ranks[rank].joined;
}
bool GroupEpoch::formed() {
  core::MutexLock lock(state_.mu);
  return state_.participant.has_value();
}
bool GroupEpoch::has_ranks() {
  core::MutexLock lock(state_.mu);
  return std::any_of(state_.ranks.begin(), state_.ranks.end(),
                     [](const auto& rank) { return rank.joined; });
}
GroupFacts GroupEpoch::facts() {
  core::MutexLock lock(state_.mu);
  GroupFacts facts;
  facts.name = state_.name;
  facts.ranks = ranks();
  if (state_.going) facts.state = GroupFacts::State::kRunning;
  if (state_.closed()) {
    facts.state = GroupFacts::State::kEnded;
    facts.why = state_.abandoned ? *state_.abandoned
                                 : state_.participant->epoch_end().ending()->status.message();
  }
  for (const PeerMessage::Place& place : state_.places) {
    for (const PeerMessage::Member& member : place.members) {
      const GroupRank& rank = state_.ranks[member.rank];
      const bool own = state_.fabric == nullptr || place.daemon == state_.fabric->name();
      const bool lost = state_.participant && !state_.participant->context().group.has(member.rank);
      if ((own && !rank.joined) || rank.lost || lost) continue;
      const bool here = rank.joined;
      facts.members.push_back(
          {member.rank, here ? "" : place.daemon, rank.who, here && rank.operations.waits()});
      facts.collectives = std::max(facts.collectives, rank.number);
    }
  }
  if (state_.places.empty()) {
    for (collective::Rank rank = 0; rank < ranks(); ++rank) {
      const GroupRank& own = state_.ranks[rank];
      if (own.joined) facts.members.push_back({rank, "", own.who, own.operations.waits()});
    }
  }
  for (const GroupRank& rank : state_.ranks) {
    if (rank.joined) facts.open += rank.operations.unfinished();
  }
  std::sort(facts.members.begin(), facts.members.end(),
            [](const auto& a, const auto& b) { return a.rank < b.rank; });
  return facts;
}
std::vector<std::string> GroupEpoch::daemons() {
  core::MutexLock lock(state_.mu);
  std::vector<std::string> daemons;
  for (const PeerMessage::Place& place : state_.places) daemons.push_back(place.daemon);
  return daemons;
}

// ---------------------------------------------------------------- forming

bool GroupEpoch::join(const Groups::Join& join) {
  core::MutexLock lock(state_.mu);
  GroupRank& rank = state_.ranks[join.rank];
  const bool formed = state_.fabric != nullptr && state_.participant;
  if (state_.closed() || rank.joined || rank.lost || formed) return false;
  if (join.elastic != state_.elastic) return false;
  rank.joined = true;
  rank.who = join.who;
  rank.attended = join.attended;
  rank.on_lost = join.on_lost;
  rank.timeout = join.timeout;
  if (state_.participant) state_.participant->describe_rank(join.rank, join.who);
  return true;
}

Status GroupEpoch::refuse_other(const Groups::Join& join) {
  Status refusal;
  state_.settle([&](Waiters& met) TT_REQUIRES(state_.mu) {
    const auto first = attended_rank();
    if ((join.ranks == ranks() && join.elastic == state_.elastic) || !first) return;
    const std::string why = "of " + std::to_string(ranks()) + " (" + state_.ranks[*first].who +
                            ") has joined, and later " +
                            joined_text(join.rank, join.ranks, join.who) + ": " +
                            (join.ranks == ranks() ? kOtherKind : kOtherSize);
    refusal = Status(core::Code::kDeadlineExceeded,
                     "group \"" + state_.name + "\": " + collective::rank_text(*first) + " " + why);
    if (state_.waits_for_ranks()) state_.part(*first, why, false, met);
  });
  return refusal;
}

bool GroupEpoch::is_attended(collective::Rank rank) const {
  const GroupRank& own = state_.ranks[rank];
  return own.joined && !own.lost && (!own.attended || own.attended());
}

std::optional<collective::Rank> GroupEpoch::attended_rank() const {
  if (state_.closed()) return std::nullopt;
  for (collective::Rank rank = 0; rank < ranks(); ++rank) {
    if (is_attended(rank)) return rank;
  }
  return std::nullopt;
}

bool GroupEpoch::continues_without(collective::Rank rank, const std::string& why) {
  bool continues = false;
  state_.settle([&](Waiters& met) TT_REQUIRES(state_.mu) {
    if (!state_.heals() || rank >= ranks()) return;
    for (const collective::Rank other : state_.participant->context().group.present()) {
      const bool here = state_.participant->context().group.place_of(other) == state_.own;
      if (other != rank && (!here || is_attended(other))) continues = true;
    }
    if (continues && state_.ranks[rank].joined) state_.depart(rank, why, met);
  });
  return continues;
}

bool GroupEpoch::continues() {
  core::MutexLock lock(state_.mu);
  return state_.heals();
}

std::optional<std::pair<collective::Rank, std::string>> GroupEpoch::attended() {
  core::MutexLock lock(state_.mu);
  const auto rank = attended_rank();
  if (!rank) return std::nullopt;
  return std::pair(*rank, state_.ranks[*rank].who);
}

void GroupEpoch::form(const EpochId& id, std::vector<PeerMessage::Place> places,
                      collective::Place own) {
  core::MutexLock lock(state_.mu);
  state_.id = id;
  state_.places = std::move(places);
  state_.place_ranks(own, {});
}

void GroupEpoch::go() {
  state_.settle([&](Waiters& met) TT_REQUIRES(state_.mu) {
    state_.going = true;
    for (collective::Rank rank = 0; rank < ranks(); ++rank) {
      for (const GroupRank::Declined& declined : std::exchange(state_.ranks[rank].declined, {})) {
        open_declined(rank, declined);
      }
      state_.ranks[rank].operations.finish_all(Open::Kind::kBegin, {}, met);
    }
  });
}

void GroupEpoch::abandon(const std::string& why) {
  state_.settle([&](Waiters& met) TT_REQUIRES(state_.mu) {
    if (!state_.participant) state_.end_forming(why, met);
  });
}

std::optional<std::string> GroupEpoch::abandoned() {
  core::MutexLock lock(state_.mu);
  return state_.abandoned;
}

// ---------------------------------------------------------------- ranks

std::optional<GroupEpoch::Ticket> GroupEpoch::begin(collective::Rank rank) {
  core::MutexLock lock(state_.mu);
  if (state_.going || state_.ended()) return std::nullopt;
  GroupRank& own = state_.ranks[rank];
  own.operations.start(++tickets_, Open::Kind::kBegin, own.timeout);
  return tickets_;
}

void GroupEpoch::open_part(collective::Rank rank, Open& open, Part part) {
  if (state_.abandoned || state_.ranks[rank].lost) {
    open.ended = state_.abandoned ? state_.abandonment() : *state_.ranks[rank].lost;
    return;
  }
  const Call call = part.call;
  if (is_transfer(call)) {
    const bool sends = call.op == collective::Op::kSend;
    open.kind = sends ? Open::Kind::kSend : Open::Kind::kReceive;
    const auto token = transfer(rank, call, std::make_shared<Part>(std::move(part)));
    if (token.ok()) {
      open.token = *token;
    } else {
      open.ended = token.status();
    }
    return;
  }
  // The rows of lost ranks are zeros.
  if (state_.elastic && call.op == collective::Op::kAllGather && part.result.bytes > 0) {
    std::memset(part.result.data(), 0, part.result.bytes);
  }
  open.number = ++state_.ranks[rank].number;
  state_.memory.add(open.number, rank, std::move(part));
  const Status status = state_.participant->deposit(rank, open.number, call);
  if (status.ok()) return;
  // The other ranks must not wait for an invalid call.
  open.ended = status;
  state_.participant->lost(rank, status.message());
}

core::Result<std::uint64_t> GroupEpoch::transfer(collective::Rank rank, const Call& call,
                                                 std::shared_ptr<Part> part,
                                                 const collective::Failed& failed) {
  GroupRank& own = state_.ranks[rank];
  const std::uint64_t token = state_.memory.add_transfer(rank, std::move(part));
  if (call.op == collective::Op::kSend) own.operations.sends(token);
  const Status status = state_.participant->deposit_point_to_point(rank, token, call, failed);
  if (status.ok()) return token;
  (void)state_.memory.end_transfer(token);
  own.operations.does_not_send(token);
  return status;
}

GroupEpoch::Ticket GroupEpoch::deposit(collective::Rank rank, Part part) {
  Ticket ticket = 0;
  state_.settle([&](Waiters&) TT_REQUIRES(state_.mu) {
    GroupRank& own = state_.ranks[rank];
    ticket = ++tickets_;
    Open& open = own.operations.start(ticket, Open::Kind::kCollective, own.timeout);
    open_part(rank, open, std::move(part));
  });
  core::MutexLock lock(state_.mu);
  // The image is taken: the operation stays open, and is a part of the session's image.
  GroupRank& own = state_.ranks[rank];
  if (ticket == 0) {
    ticket = ++tickets_;
    own.operations.start(ticket, Open::Kind::kCollective, own.timeout);
  }
  Open& open = own.operations.at(ticket);
  if (open.kind == Open::Kind::kSend && !open.ended) open.ended = Status();
  return ticket;
}

// The declining rank does not wait, although its part of a transfer may stay open for the other
// rank.
void GroupEpoch::open_declined(collective::Rank rank, const GroupRank::Declined& declined) {
  if (is_transfer(declined.call)) {
    (void)transfer(rank, declined.call, nullptr, declined.failed);
  } else if (!state_.participant
                  ->deposit(rank, ++state_.ranks[rank].number, declined.call, declined.failed)
                  .ok()) {
    state_.participant->lost(rank, declined.failed.text);
  }
}

void GroupEpoch::decline(collective::Rank rank, const Call& call, const Status& why) {
  state_.settle([&](Waiters&) TT_REQUIRES(state_.mu) {
    if (state_.abandoned || state_.ranks[rank].lost) return;
    // Every call of an elastic group has a number.
    if (state_.elastic && is_transfer(call)) return;
    GroupRank::Declined declined{call, {why.code(), why.message()}};
    if (state_.going) return open_declined(rank, declined);
    state_.ranks[rank].declined.push_back(std::move(declined));
  });
}

GroupEpoch::Ticket GroupEpoch::await_sends(collective::Rank rank) {
  core::MutexLock lock(state_.mu);
  GroupRank& own = state_.ranks[rank];
  own.operations.await_sends(++tickets_, own.timeout);
  return tickets_;
}

bool GroupEpoch::wait(collective::Rank rank, Ticket ticket, Waiter* waiter) {
  core::MutexLock lock(state_.mu);
  Open& open = state_.ranks[rank].operations.at(ticket);
  if (open.ended) return false;
  open.waiter = waiter;
  return true;
}

bool GroupEpoch::ended(collective::Rank rank, Ticket ticket) {
  core::MutexLock lock(state_.mu);
  return state_.ranks[rank].operations.at(ticket).ended.has_value();
}

Groups::Outcome GroupEpoch::take(collective::Rank rank, Ticket ticket) {
  Groups::Outcome outcome;
  std::vector<Groups::Lost> lost;
  std::function<void(const Groups::Lost&)> on_lost;
  {
    core::MutexLock lock(state_.mu);
    GroupRank& own = state_.ranks[rank];
    const collective::Number number = own.operations.at(ticket).number;
    outcome = own.operations.take(ticket);
    while (own.told < state_.lost.size() && state_.lost[own.told].after < number) {
      lost.push_back(state_.lost[own.told++]);
    }
    if (!lost.empty()) on_lost = own.on_lost;
  }
  if (on_lost) std::for_each(lost.begin(), lost.end(), on_lost);
  return outcome;
}

void GroupEpoch::set_timeout(collective::Rank rank, std::chrono::milliseconds timeout) {
  core::MutexLock lock(state_.mu);
  state_.ranks[rank].timeout = timeout;
}

void GroupEpoch::give_up(collective::Rank rank, const std::string& why) {
  {
    core::MutexLock lock(state_.mu);
    if (!state_.ranks[rank].operations.waits()) return;
  }
  lose(rank, why);
}

void GroupEpoch::lose(collective::Rank rank, const std::string& why) {
  state_.settle([&](Waiters& met) TT_REQUIRES(state_.mu) {
    if (state_.heals()) {
      state_.depart(rank, why, met);
    } else {
      state_.part(rank, why, true, met);
    }
  });
}

void GroupEpoch::leave(collective::Rank rank, const std::string& why) {
  state_.settle([&](Waiters& met) TT_REQUIRES(state_.mu) { state_.part(rank, why, true, met); });
}

void GroupEpoch::replace(collective::Rank rank, const std::string& why) {
  state_.settle([&](Waiters& met) TT_REQUIRES(state_.mu) { state_.part(rank, why, false, met); });
}

void GroupEpoch::forget(collective::Rank rank) {
  core::MutexLock lock(state_.mu);
  state_.ranks[rank].joined = false;
  state_.ranks[rank].attended = nullptr;
  state_.ranks[rank].on_lost = nullptr;
}

// ---------------------------------------------------------------- messages and deadlines

Status GroupEpoch::received(const std::string& daemon, const collective::Message& message,
                            Pieces payload) {
  Status status;
  state_.settle([&](Waiters& met) TT_REQUIRES(state_.mu) {
    const auto from = state_.place_of(daemon);
    if (!from || !state_.participant) {
      status = core::invalid("a message of a group that has no rank in " + daemon);
      return;
    }
    Slice at;
    if (message.payload > 0 && !state_.participant->epoch_end().over(message)) {
      auto expected = state_.participant->expect(*from, message);
      if (!expected.ok()) {
        status = expected.status();
        return;
      }
      at = *expected;
      EpochState::Work no_work;
      // Allocate the staging that expect() has requested.
      for (Action& action : state_.participant->take()) state_.carry_out(action, no_work, met);
      if (state_.memory.lacks()) return;
      GroupMemory::Held held;
      state_.memory.hold(at, held);
      char* to = held.at(at);
      for (const std::span<const char> piece : payload) {
        std::memcpy(to, piece.data(), piece.size());
        to += piece.size();
      }
    }
    status = state_.participant->receive(*from, message, at);
  });
  return status;
}

void GroupEpoch::lose(const std::string& daemon, const std::string& why) {
  state_.settle([&](Waiters&) TT_REQUIRES(state_.mu) {
    const auto place = state_.place_of(daemon);
    if (place && state_.participant) state_.participant->lost_place(*place, why);
  });
}

void GroupEpoch::look(Groups::Clock::time_point now, const std::string& missing) {
  state_.settle([&](Waiters& met) TT_REQUIRES(state_.mu) {
    const auto passed = now - std::exchange(looked_, now);
    // Deadlines do not pass while the group is held.
    if (state_.participant && state_.participant->cut().holding()) {
      for (GroupRank& rank : state_.ranks) rank.operations.postpone(passed);
    }
    for (const GroupRank& rank : state_.ranks) {
      for (const auto& [ticket, open] : rank.operations.all()) {
        if (!open.ended && rank.joined && !look(rank, open, now, missing, met)) return;
      }
    }
  });
}

bool GroupEpoch::look(const GroupRank& rank, const Open& open, Groups::Clock::time_point now,
                      const std::string& missing, Waiters& met) {
  using OpenKind = Open::Kind;
  if (open.deadline > now) {
    if (open.kind == OpenKind::kCollective && state_.participant &&
        now - open.began > rank.timeout / 2) {
      state_.participant->patience_passed(open.number);
    }
    return true;
  }
  switch (open.kind) {
    case OpenKind::kBegin:
      if (state_.participant) {
        state_.participant->lost(state_.lowest, "has waited too long for the group to begin");
      } else {
        state_.end_forming(
            "timeout in joining, waits for " + (missing.empty() ? "the group" : missing), met);
      }
      return false;
    case OpenKind::kCollective:
      state_.participant->deadline_passed(open.number);
      return false;
    case OpenKind::kSend:
    case OpenKind::kReceive:
      state_.participant->deadline_passed_point_to_point(open.token);
      return false;
    case OpenKind::kAwaitSends:
      state_.participant->deadline_passed_point_to_point(rank.operations.oldest_send());
      return false;
  }
  return true;
}

}  // namespace teletensor::runtime
