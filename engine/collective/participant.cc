#include "engine/collective/participant.h"

#include <algorithm>
#include <utility>

namespace teletensor::collective {
namespace {

// The maximum size of an operand or a result, so that sums of such sizes over 16,384 ranks are
// below 2^63.
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 48;

void shorten(Call& call, Failed& failed) {
  call.site = program::shortened(std::move(call.site), kMaxNote);
  failed.text = program::shortened(std::move(failed.text), kMaxReason);
}

// The status code of collectives that end because a rank is lost. It is the code of a timeout,
// which clients expect for a missing rank.
constexpr core::Code kRankLost = core::Code::kDeadlineExceeded;

}  // namespace

Participant::Participant(const Group& group, Place place, std::string name, const Limits& limits,
                         Image image)
    : context_{group, place, std::move(name), limits, Spread(group, place), Outbox(group.places()),
               {},    {}},
      point_to_point_(context_.group, place, context_.limits, context_.out,
                      std::move(image.point_to_point)),
      cut_(context_.spread, image.generation, image.number),
      collectives_(context_, cut_, image.number),
      end_(std::move(image.ending)) {
  Outbox& out = context_.out;
  out.done = image.number;
  for (Place other = 0; other < group.places(); ++other) out.hear(other, image.number);
  if (image.generation == 0) return;
  point_to_point_.hold(true);
  // Peers may not have received these messages before this daemon stopped.
  if (end_.ending()) {
    for (const Place neighbour : group.neighbours(place)) out.send(neighbour, end_.message());
    point_to_point_.expect_leaving();
  }
  context_.send_votes(Purpose::kRest, image.generation, cut_.current().rest);
}

// ---------------------------------------------------------------- deposits

core::Status Participant::check(Rank rank, const Call& call) const {
  const auto bad = [&](const std::string& why) {
    return core::invalid(describe(call) + ": " + why);
  };
  if (!context_.group.has(rank) || context_.group.place_of(rank) != context_.place)
    return bad("the rank is not here");
  if (context_.departures.has(rank)) return bad("the rank is lost");
  const bool elastic = context_.limits.elastic;
  if (elastic && !replicated(call.op)) return bad("an elastic group has only replicated results");
  const bool point_to_point = call.op == Op::kSend || call.op == Op::kRecv;
  const std::int64_t maximum =
      kMaxBytes / static_cast<std::int64_t>(core::size_of(accumulator_of(call.dtype)));
  if (call.count < 0) return bad("a negative number of elements");
  if (call.count > maximum) return bad("more than 2^48 bytes");
  if (point_to_point) {
    if (call.peer == rank) return bad("a rank cannot send to itself");
    if (call.op == Op::kRecv && call.peer == kNoRank) return {};
    return context_.group.has(call.peer) ? core::Status()
                                         : bad("the other rank is not in the group");
  }
  const bool lost_root = elastic && (call.root < context_.group.ranks() || call.root == kNoRank);
  if (!context_.group.has(call.root) && !lost_root && call.op != Op::kAllReduce &&
      call.op != Op::kBarrier && call.counts.empty() && call.op != Op::kAllToAll) {
    return bad("the root is not in the group");
  }
  const bool counted = call.op == Op::kAllGather || call.op == Op::kReduceScatter;
  if (counted && call.counts.size() != context_.group.ranks())
    return bad("sizes must be one per rank");
  if (!counted && !call.counts.empty()) {
    return bad("sizes are allowed only for all_gather and reduce_scatter");
  }
  for (const auto* sizes : {&call.counts, &call.sends, &call.receives}) {
    if (sizes != &call.counts && !sizes->empty() && sizes->size() != context_.group.ranks()) {
      return bad("sizes must be one per rank");
    }
    std::int64_t sum = 0;
    for (Rank r = 0; r < sizes->size(); ++r) {
      const std::int64_t size = (*sizes)[r];
      if (size < 0) return bad("a negative number of elements");
      if (size > maximum - sum) return bad("more than 2^48 bytes");
      if (size > 0 && !context_.group.has(r) && !elastic)
        return bad("elements for a rank that is not in the group");
      sum += size;
    }
  }
  return {};
}

core::Status Participant::deposit(Rank rank, Number number, Call call, Failed failed) {
  if (core::Status status = check(rank, call); !status.ok()) return status;
  if (call.op == Op::kSend || call.op == Op::kRecv) return core::invalid("no collective");
  const std::vector<Rank>& ranks = context_.ranks();
  const std::size_t at =
      static_cast<std::size_t>(std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin());
  const Collective* const known = collectives_.find(number);
  if (number <= collectives_.announced() || (known != nullptr && known->has_deposit(at))) {
    return {core::Code::kAlreadyExists,
            context_.title(number) + rank_text(rank) + " has already deposited this number"};
  }
  shorten(call, failed);
  if (const core::Status* const over = end_.reason(number)) {
    Action action;
    action.kind = Action::Kind::kComplete;
    action.number = number;
    action.rank = rank;
    action.status = *over;
    context_.out.push(std::move(action));
    return {};
  }
  collectives_.at(number).deposit(at, std::move(call), std::move(failed));
  advance();
  return {};
}

core::Status Participant::deposit_point_to_point(Rank rank, std::uint64_t token, Call call,
                                                 Failed failed) {
  if (core::Status status = check(rank, call); !status.ok()) return status;
  if (call.op != Op::kSend && call.op != Op::kRecv) return core::invalid("no send, no receive");
  shorten(call, failed);
  point_to_point_.deposit(rank, token, std::move(call), std::move(failed));
  if (end_.final()) point_to_point_.end(end_.ending()->status);
  return {};
}

// Takes all steps that an event has made possible, until no further step is possible.
void Participant::advance() {
  if (end_.ended()) return;
  if (const core::Status status = collectives_.advance(); !status.ok()) {
    return end(0, status.code(), status.message());
  }
  if (end_.final() && context_.out.done >= end_.ending()->last) return finish_end();
  collectives_.retire();
  collectives_.tell_progress();
  advance_cut();
  advance_leaving();
}

void Participant::reduced(std::uint64_t job) {
  if (!end_.ended() && !point_to_point_.reduced(job)) collectives_.reduced(job);
  advance();
}

// ---------------------------------------------------------------- messages of peers

core::Result<Slice> Participant::expect(Place from, const Message& message) {
  if (end_.over(message)) return violation("data after the end of the epoch");
  collectives_.discard(from);
  if (message.kind == Kind::kData) return point_to_point_.expect(from, message);
  return collectives_.expect(from, message);
}

core::Status Participant::receive_vote(Place from, const Message& message) {
  if (message.purpose == Purpose::kAnnounce || message.purpose == Purpose::kExplain) {
    if (!collectives_.acceptable(message.number)) {
      return violation("a vote on a collective that has ended");
    }
    return collectives_.at(message.number).receive_vote(from, message);
  }
  if (message.purpose == Purpose::kLeave) {
    // A restarted place sends its vote again, and this place may have received it earlier.
    if (message.level == 0) end_.add_left(from);
    (void)end_.leaving().receive(context_.spread, message.level, from, message.vote);
    return {};
  }
  if (message.purpose < Purpose::kHold || message.purpose > Purpose::kLower) {
    return violation("a vote of an unknown purpose");
  }
  if (message.number > cut_.generation() + 1) return violation("a cut that is not the next one");
  if (message.vote.announced > collectives_.announced() + context_.limits.ahead) {
    return violation("a cut at a number that cannot be announced yet");
  }
  Cut::Generation* generation = cut_.find(message.number);
  // A restarted place sends its votes again, and this place may have received them earlier.
  if (generation == nullptr) return {};
  if (message.purpose == Purpose::kLower && message.vote.done < context_.out.done) {
    return violation("a cut before a collective that has finished");
  }
  for (const Claim& claim : message.vote.claims) {
    // A place repeats its vote after the rank has been dropped.
    const bool known =
        claim.rank < context_.group.ranks() &&
        (!context_.group.has(claim.rank) || context_.group.place_of(claim.rank) == from);
    if (!context_.limits.elastic || !known) return violation("a lost rank that it does not have");
  }
  Fold& fold = message.purpose == Purpose::kHold    ? generation->hold
               : message.purpose == Purpose::kLower ? generation->lower
               : message.purpose == Purpose::kRest  ? generation->rest
                                                    : generation->release;
  (void)fold.receive(context_.spread, message.level, from, message.vote);
  return {};
}

// Checks conditions for messages of all kinds.
core::Status Participant::check(const Message& message) const {
  if (message.done > collectives_.announced()) {
    return violation("that it has finished a collective that is not announced");
  }
  const Vote& vote = message.vote;
  if (vote.code < core::Code::kOk || vote.code > core::Code::kDataLoss) {
    return violation("an unknown code");
  }
  const std::size_t claims = message.kind == Kind::kState ? kStateClaims : Vote::kClaims;
  if (vote.claims.size() > claims) return violation("the calls of too many ranks");
  std::size_t longest = vote.failure.size();
  for (const Claim& claim : vote.claims) longest = std::max(longest, claim.text.size());
  return longest > kMaxText ? violation("a text that is too long") : core::Status();
}

core::Status Participant::receive(Place from, const Message& message, const Slice& at) {
  if (end_.ended()) return {};
  if (core::Status status = check(message); !status.ok()) return status;
  if (context_.out.hear(from, message.done)) collectives_.pump();
  if (end_.over(message)) {
    advance();
    return {};
  }
  const core::Status status = receive_about(from, message, at);
  if (status.ok()) advance();
  return status;
}

core::Status Participant::receive_about(Place from, const Message& message, const Slice& at) {
  Collective* const known = collectives_.find(message.number);
  switch (message.kind) {
    case Kind::kVote:
      return receive_vote(from, message);
    case Kind::kPartial:
    case Kind::kFinal:
      return collectives_.receive(from, message, at);
    case Kind::kCredit:
      if (known == nullptr || known->exchange() == nullptr) {
        return violation("a credit for a transfer that does not exist");
      }
      return known->exchange()->receive(from, message, {});
    case Kind::kProgress:
      return {};
    case Kind::kEnd:
      if (message.vote.code == core::Code::kOk) return violation("an end without an error");
      if (message.number > collectives_.announced() + context_.limits.ahead) {
        return violation("an end at a number that cannot be announced yet");
      }
      if (message.from != kNoRank && !context_.group.has(message.from)) {
        return violation("an unknown rank");
      }
      end(message.number, message.vote.code, message.vote.failure, message.from, from);
      return {};
    case Kind::kQuery:
      if (!collectives_.acceptable(message.number)) return {};
      return collectives_.at(message.number).receive_query(from);
    case Kind::kState:
      for (const Claim& claim : message.vote.claims) {
        const bool lost = context_.limits.elastic && claim.rank < context_.group.ranks();
        if (!lost && !context_.group.has(claim.rank)) return violation("an unknown rank");
      }
      if (known != nullptr) known->receive_state(message);
      return {};
    default:
      return point_to_point_.receive(from, message);
  }
}

// ---------------------------------------------------------------- deadlines and the end

void Participant::patience_passed(Number number) {
  Collective* const found = collectives_.find(number);
  if (end_.ended() || found == nullptr || found->complete()) return;
  found->ask();
}

void Participant::deadline_passed(Number number) {
  const Collective* const found = collectives_.find(number);
  if (end_.ended() || !cut_.allows(number) || found == nullptr || found->complete()) return;
  end(0, core::Code::kDeadlineExceeded, found->timeout());
}

void Participant::deadline_passed_point_to_point(std::uint64_t token) {
  if (end_.ended() || cut_.holding()) return;
  const std::string waiting = point_to_point_.waiting(token);
  if (waiting.empty()) return;
  end(0, core::Code::kDeadlineExceeded, "group \"" + context_.name + "\": timeout in " + waiting);
}

void Participant::lost(Rank rank, const std::string& text, Number last) {
  end(last, kRankLost, context_.about(rank, text));
}

void Participant::depart(Rank rank, Number last, const std::string& text) {
  if (end_.ended() || !context_.group.has(rank)) return;
  context_.departures.add(rank, last, program::shortened(text, kMaxNote));
  advance();
}

void Participant::lost_place(Place place, const std::string& text) {
  if (context_.group.ranks_of(place).empty()) {
    context_.leave_out_lost();
    return advance();
  }
  // With several levels, other places may not know that the place has left, and would wait for its
  // votes.
  if (!end_.has_left(place) || context_.group.levels() > 1) {
    return lost(context_.group.ranks_of(place).front(), text);
  }
  if (end_.ended()) return;
  for (const Rank rank : context_.group.ranks_of(place)) {
    point_to_point_.forsaken(rank, {kRankLost, context_.about(rank, "has left the group")});
  }
  advance();
}

void Participant::leave(Rank rank, Number last, const std::string& text) {
  if (end_.ended() || has_left(rank)) return;
  if (point_to_point_.owes(rank)) return lost(rank, text, last);
  point_to_point_.leave(rank, {kRankLost, context_.about(rank, text)});
  end(last, kRankLost, context_.about(rank, text), rank);
  if (!end_.ended()) advance();
}

// Ends collectives after `last`; at once if it is 0. Places inform the places with which they
// exchange votes.
void Participant::end(Number last, core::Code code, const std::string& text, Rank left,
                      std::optional<Place> teller) {
  if (!end_.add({last, core::Status(code, program::shortened(text, kMaxText)), left})) return;
  const Ending& ending = *end_.ending();
  for (const Place neighbour : context_.group.neighbours(context_.place)) {
    if (neighbour != teller) context_.out.send(neighbour, end_.message());
  }
  collectives_.end(ending.last, ending.status);
  if (!ending.final()) return point_to_point_.expect_leaving();
  point_to_point_.end(ending.status);
  if (context_.out.done >= ending.last) finish_end();
}

// Ends the epoch when all ranks of all places have left.
void Participant::advance_leaving() {
  if (!end_.ending() || end_.ended()) return;
  const std::vector<Rank>& ranks = context_.ranks();
  Fold& leaving = end_.leaving();
  if (!leaving.started() && context_.out.done >= end_.ending()->last &&
      std::all_of(ranks.begin(), ranks.end(), [&](Rank rank) { return has_left(rank); })) {
    leaving.start({});
  }
  context_.send_votes(Purpose::kLeave, 0, leaving);
  if (leaving.complete(context_.spread)) finish_end();
}

void Participant::finish_end() {
  collectives_.clear();
  end_.finish();
  Action action;
  action.kind = Action::Kind::kEnded;
  action.status = end_.ending()->status;
  context_.out.push(std::move(action));
}

}  // namespace teletensor::collective
