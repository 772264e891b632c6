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

}  // namespace

Participant::Participant(const Group& group, Place place, std::string name, const Limits& limits,
                         Image image)
    : group_(group),
      place_(place),
      name_(std::move(name)),
      limits_(limits),
      spread_(group, place),
      neighbours_(group.neighbours(place)),
      out_(group.places()),
      point_to_point_(group, place, limits_, out_, std::move(image.point_to_point)),
      cut_(spread_, image.generation, image.number) {
  announced_ = out_.done = everywhere_ = retired_ = image.number;
  for (Place other = 0; other < group.places(); ++other) out_.hear(other, image.number);
  ending_ = std::move(image.ending);
  if (image.generation == 0) return;
  point_to_point_.hold(true);
  // Peers may not have received these messages before this daemon stopped.
  if (ending_) {
    for (const Place neighbour : neighbours_) tell_end(neighbour);
    point_to_point_.expect_leaving();
  }
  send_votes(Purpose::kRest, image.generation, cut_.current().rest);
}

Participant::Slot& Participant::slot(Number number) {
  Slot& slot = slots_[number];
  slot.deposits.resize(group_.ranks_of(place_).size());
  return slot;
}

bool Participant::deposited(const Slot& slot) const {
  return std::all_of(slot.deposits.begin(), slot.deposits.end(),
                     [](const auto& d) { return d.has_value(); });
}

core::Status Participant::check(Rank rank, const Call& call) const {
  const auto bad = [&](const std::string& why) {
    return core::invalid(describe(call) + ": " + why);
  };
  if (!group_.has(rank) || group_.place_of(rank) != place_) return bad("the rank is not here");
  const bool point_to_point = call.op == Op::kSend || call.op == Op::kRecv;
  const std::int64_t maximum =
      kMaxBytes / static_cast<std::int64_t>(core::size_of(accumulator_of(call.dtype)));
  if (call.count < 0) return bad("a negative number of elements");
  if (call.count > maximum) return bad("more than 2^48 bytes");
  if (point_to_point) {
    if (call.peer == rank) return bad("a rank cannot send to itself");
    if (call.op == Op::kRecv && call.peer == kNoRank) return {};
    return group_.has(call.peer) ? core::Status() : bad("the other rank is not in the group");
  }
  if (!group_.has(call.root) && call.op != Op::kAllReduce && call.op != Op::kBarrier &&
      call.counts.empty() && call.op != Op::kAllToAll) {
    return bad("the root is not in the group");
  }
  const bool counted = call.op == Op::kAllGather || call.op == Op::kReduceScatter;
  if (counted && call.counts.size() != group_.ranks()) return bad("sizes must be one per rank");
  if (!counted && !call.counts.empty()) {
    return bad("sizes are allowed only for all_gather and reduce_scatter");
  }
  for (const auto* sizes : {&call.counts, &call.sends, &call.receives}) {
    if (sizes != &call.counts && !sizes->empty() && sizes->size() != group_.ranks()) {
      return bad("sizes must be one per rank");
    }
    std::int64_t sum = 0;
    for (Rank r = 0; r < sizes->size(); ++r) {
      const std::int64_t size = (*sizes)[r];
      if (size < 0) return bad("a negative number of elements");
      if (size > maximum - sum) return bad("more than 2^48 bytes");
      if (size > 0 && !group_.has(r)) return bad("elements for a rank that is not in the group");
      sum += size;
    }
  }
  return {};
}

core::Status Participant::deposit(Rank rank, Number number, Call call, Failed failed) {
  if (core::Status status = check(rank, call); !status.ok()) return status;
  if (call.op == Op::kSend || call.op == Op::kRecv) return core::invalid("no collective");
  const std::vector<Rank>& ranks = group_.ranks_of(place_);
  const std::size_t at =
      static_cast<std::size_t>(std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin());
  const auto known = slots_.find(number);
  if (number <= announced_ || (known != slots_.end() && known->second.deposits[at])) {
    return {core::Code::kAlreadyExists, "group \"" + name_ + "\" #" + std::to_string(number) +
                                            ": " + rank_text(rank) +
                                            " has already deposited this number"};
  }
  shorten(call, failed);
  if (const core::Status* const over = end_of(number)) {
    Action action;
    action.kind = Action::Kind::kComplete;
    action.number = number;
    action.rank = rank;
    action.status = *over;
    out_.push(std::move(action));
    return {};
  }
  slot(number).deposits[at] = {std::move(call), std::move(failed)};
  advance();
  return {};
}

core::Status Participant::deposit_point_to_point(Rank rank, std::uint64_t token, Call call,
                                                 Failed failed) {
  if (core::Status status = check(rank, call); !status.ok()) return status;
  if (call.op != Op::kSend && call.op != Op::kRecv) return core::invalid("no send, no receive");
  shorten(call, failed);
  point_to_point_.deposit(rank, token, std::move(call), std::move(failed));
  if (ending_ && ending_->final()) point_to_point_.end(ending_->status);
  return {};
}

bool Participant::may_announce(Number number, const Slot& slot) const {
  if (!deposited(slot) || !cut_.allows(number) || number > out_.done + limits_.ahead) return false;
  const bool barrier = slot.deposits.front()->call.op == Op::kBarrier;
  return !barrier || out_.done + 1 == number;
}

// Takes all steps that an event has made possible, until no further step is possible.
void Participant::advance() {
  for (bool more = true; more && !ended_;) {
    more = false;
    const auto next = slots_.find(announced_ + 1);
    if (next != slots_.end() && may_announce(next->first, next->second)) {
      announce(next->first, next->second);
      more = true;
    }
    for (auto at = slots_.upper_bound(out_.done); at != slots_.end() && at->first <= announced_;
         ++at) {
      const bool went_on = progress(at->first, at->second);
      if (ended_) return;  // no collective is left
      more = went_on || more;
    }
    while (true) {
      const auto first = slots_.find(out_.done + 1);
      if (first == slots_.end() || !first->second.finished) break;
      ++out_.done;
      more = true;
    }
  }
  if (ended_) return;
  if (ending_ && ending_->final() && out_.done >= ending_->last) return finish_end();
  retire();
  tell_progress();
  advance_cut();
  advance_leaving();
}

void Participant::send_votes(Purpose purpose, Number number, Fold& fold) {
  for (const int level : fold.advance(spread_)) {
    for (const Place to : spread_.levels[static_cast<std::size_t>(level)].to) {
      send_vote(to, purpose, number, level, fold);
    }
  }
}

void Participant::send_vote(Place to, Purpose purpose, Number number, int level, const Fold& fold) {
  Message message;
  message.kind = Kind::kVote;
  message.purpose = purpose;
  message.level = static_cast<std::uint8_t>(level);
  message.number = number;
  message.vote = fold.at(level);
  out_.send(to, std::move(message));
}

void Participant::announce(Number number, Slot& slot) {
  announced_ = number;
  Vote sum;
  const std::vector<Rank>& ranks = group_.ranks_of(place_);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    Vote vote;
    vote.lowest = ranks[i];
    vote.fingerprint = fingerprint(slot.deposits[i]->call);
    vote.balance = balance(slot.deposits[i]->call, ranks[i]);
    if (slot.deposits[i]->failed.code != core::Code::kOk) vote.failed = ranks[i];
    vote.done = out_.done;
    sum = i == 0 ? vote : merge(sum, vote);
  }
  const bool good = sum.equal && sum.failed == kNoRank;
  slot.announce.start(std::move(sum));
  send_votes(Purpose::kAnnounce, number, slot.announce);
  if (good && slot.deposits.front()->call.op != Op::kBarrier) make_exchange(number, slot);
}

void Participant::make_exchange(Number number, Slot& slot) {
  std::vector<Call> calls;
  for (const auto& deposit : slot.deposits) calls.push_back(deposit->call);
  slot.exchange.emplace(group_, place_, number, std::move(calls), limits_, out_);
  slot.exchange->announce();
}

// Returns true if the collective has made a step.
bool Participant::progress(Number number, Slot& slot) {
  if (slot.finished) return false;
  if (!slot.decided) {
    send_votes(Purpose::kAnnounce, number, slot.announce);
    if (!slot.announce.complete(spread_) || !decide(number, slot)) return false;
  }
  const Vote& vote = slot.announce.result();
  if (!vote.good()) {
    if (!slot.explain.started()) start_explaining(slot);
    send_votes(Purpose::kExplain, number, slot.explain);
    if (!slot.explain.complete(spread_)) return false;
    const Vote& why = slot.explain.result();
    const bool desync = !vote.equal || vote.balance != 0;
    fail(number, slot,
         {desync ? core::Code::kInvalidArgument
          : why.code == core::Code::kOk
              ? core::Code::kInternal  // a vote for a failure without a code
              : why.code,
          explanation(number, why)});
    return true;
  }
  if (!slot.exchange) {  // a barrier: all earlier collectives have finished everywhere
    everywhere_ = std::max(everywhere_, number);
    complete(number, slot, {});
    return slot.finished = true;
  }
  Exchange& exchange = *slot.exchange;
  if (!exchange.started() && (exchange.small() || number <= out_.done + limits_.active)) {
    exchange.start();
  }
  if (!slot.complete && exchange.complete()) complete(number, slot, {});
  if (!exchange.finished()) return false;
  exchange.release();
  slot.exchange.reset();
  return slot.finished = true;
}

// Returns false if the epoch ends because early data does not fit the call.
bool Participant::decide(Number number, Slot& slot) {
  slot.decided = true;
  everywhere_ = std::max(everywhere_, slot.announce.result().done);
  if (!slot.announce.result().good() && slot.exchange) {
    slot.exchange->release();  // a place sends no data after its texts
    slot.exchange.reset();
  }
  if (!slot.announce.result().good()) return true;
  while (!slot.early.empty()) {  // a barrier has no exchange, so no data fits it
    const Early early = slot.early.back();
    if (slot.exchange && slot.exchange->receive(early.from, early.message, early.at).ok()) {
      slot.early.pop_back();
      continue;
    }
    end(0, core::Code::kInternal,
        "group \"" + name_ + "\" #" + std::to_string(number) + ": the daemon of " +
            rank_text(group_.ranks_of(early.from).front()) +
            " sent data that does not match its call");
    return false;
  }
  return true;
}

void Participant::start_explaining(Slot& slot) {
  const bool desync = !slot.announce.result().equal || slot.announce.result().balance != 0;
  const std::vector<Rank>& ranks = group_.ranks_of(place_);
  Vote sum;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Deposit& deposit = *slot.deposits[i];
    Vote vote;
    vote.lowest = ranks[i];
    if (desync) {
      // If only the sizes between pairs of ranks disagree, each rank's call is listed separately.
      const std::uint64_t print =
          slot.announce.result().equal ? ranks[i] : fingerprint(deposit.call);
      vote.claims = {{ranks[i], print, 1, describe(deposit.call)}};
    } else if (ranks[i] == slot.announce.result().failed) {
      vote.failed = ranks[i];
      vote.code = deposit.failed.code;
      vote.failure = deposit.failed.text;
      vote.claims = {{ranks[i], 0, 1, describe(deposit.call)}};
    }
    sum = i == 0 ? vote : merge(sum, vote);
  }
  sum.equal = true;
  slot.explain.start(std::move(sum));
}

// Returns the error message, for example `group "default" #1843: rank 0 is in all_reduce(sum,
// float32[1024]) at train.py:41, rank 1 in ...`.
std::string Participant::explanation(Number number, const Vote& vote) const {
  std::string text = "group \"" + name_ + "\" #" + std::to_string(number) + ": ";
  if (vote.claims.empty()) return text + "the call failed, and the peers' votes give no reason";
  if (vote.failed != kNoRank) {
    return text + rank_text(vote.failed) + " in " + vote.claims.front().text + ": " + vote.failure;
  }
  for (const Claim& claim : vote.claims) {
    const bool first = &claim == vote.claims.data();
    text += (first ? "" : ", ") + rank_text(claim.rank) + (first ? " is in " : " in ") + claim.text;
  }
  const std::uint32_t like = vote.claims.front().ranks;
  if (like > 1) {
    text += " (" + std::to_string(like) + " ranks as " + rank_text(vote.claims.front().rank) + ")";
  }
  return text;
}

void Participant::fail(Number number, Slot& slot, const core::Status& status) {
  drop_early(slot);
  complete(number, slot, status);
  slot.finished = true;
}

void Participant::drop_early(Slot& slot) {
  for (const Early& early : slot.early) out_.free(early.at.buffer);
  slot.early.clear();
}

void Participant::complete(Number number, Slot& slot, const core::Status& status) {
  slot.complete = true;
  const std::vector<Rank>& ranks = group_.ranks_of(place_);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (!slot.deposits[i]) continue;
    Action action;
    action.kind = Action::Kind::kComplete;
    action.number = number;
    action.rank = ranks[i];
    action.status = status;
    out_.push(std::move(action));
  }
}

// Retires the collectives that have finished at all places. Their `done` arrived with the votes of
// a later collective. A barrier is announced when all earlier collectives have finished, so it
// retires them.
void Participant::retire() {
  if (group_.places() == 1) everywhere_ = out_.done;
  while (retired_ < std::min(everywhere_, out_.done)) {
    Action action;
    action.kind = Action::Kind::kRetire;
    action.number = ++retired_;
    slots_.erase(retired_);
    out_.push(std::move(action));
  }
}

// Tells the places with partial sums for this one that the turn of a collective has come.
void Participant::tell_progress() {
  for (Number number = out_.done + 1; number <= out_.done + limits_.active; ++number) {
    const auto found = slots_.find(number);
    if (found == slots_.end() || !found->second.exchange) continue;
    const Exchange& exchange = *found->second.exchange;
    if (!exchange.started()) continue;
    for (const Place giver : exchange.givers()) {
      if (out_.told(giver) + limits_.active < number) out_.send(giver, Message());
    }
  }
}

void Participant::reduced(std::uint64_t job) {
  if (ended_ || point_to_point_.reduced(job)) {
    advance();
    return;
  }
  for (auto at = slots_.upper_bound(out_.done); at != slots_.end(); ++at) {
    if (at->second.exchange && at->second.exchange->reduced(job)) break;
  }
  advance();
}

}  // namespace teletensor::collective
