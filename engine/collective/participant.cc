#include "engine/collective/participant.h"

#include <algorithm>
#include <utility>

namespace teletensor::collective {
namespace {

// So much that sums of sizes, over 16,384 ranks and in the accumulating dtype, stay below 2^63.
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 48;
constexpr std::size_t kStateClaims = 16;  // ranks that a kState message tells of

std::string rank_text(Rank rank) { return "rank " + std::to_string(rank); }

void shorten(Call& call, Failed& failed) {
  call.site = shortened(std::move(call.site), kMaxNote);
  failed.text = shortened(std::move(failed.text), kMaxReason);
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
  if (image.generation == 0) return;
  point_to_point_.hold(true);
  // Peers may not have heard it from the daemon that stopped.
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
  if (!counted && !call.counts.empty()) return bad("sizes are of all_gather and reduce_scatter");
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
                                            ": " + rank_text(rank) + " has deposited it already"};
  }
  shorten(call, failed);
  if (ended_) {
    Action action;
    action.kind = Action::Kind::kComplete;
    action.number = number;
    action.rank = rank;
    action.status = *ended_;
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
  if (ended_) point_to_point_.end(*ended_);
  return {};
}

bool Participant::may_announce(Number number, const Slot& slot) const {
  if (!deposited(slot) || !cut_.allows(number) || number > out_.done + limits_.ahead) return false;
  const bool barrier = slot.deposits.front()->call.op == Op::kBarrier;
  return !barrier || out_.done + 1 == number;
}

// What any event may have made possible, until nothing more is.
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
      if (ended_) return;  // no number is left
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
  retire();
  tell_progress();
  advance_cut();
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

// True where it went on.
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
         {desync                        ? core::Code::kInvalidArgument
          : why.code == core::Code::kOk ? core::Code::kInternal  // no peer may say so
                                        : why.code,
          explanation(number, why)});
    return true;
  }
  if (!slot.exchange) {  // a barrier: all earlier ones have finished everywhere
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

// False where that ends the epoch.
bool Participant::decide(Number number, Slot& slot) {
  slot.decided = true;
  everywhere_ = std::max(everywhere_, slot.announce.result().done);
  if (!slot.announce.result().good() && slot.exchange) {
    slot.exchange->release();  // before the texts go out: nobody sends data after them
    slot.exchange.reset();
  }
  if (!slot.announce.result().good()) return true;
  while (!slot.early.empty()) {  // a barrier has no exchange, and nothing fits it
    const Early early = slot.early.back();
    if (slot.exchange && slot.exchange->receive(early.from, early.message, early.at).ok()) {
      slot.early.pop_back();
      continue;
    }
    end(core::Code::kInternal,
        "group \"" + name_ + "\" #" + std::to_string(number) + ": the daemon of " +
            rank_text(group_.ranks_of(early.from).front()) + " sends what does not fit its call",
        std::nullopt);
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
      // Where only sizes between pairs disagree, each rank's call is one of its own.
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

// `group "default" #1843: rank 0 is in all_reduce(sum, float32[1024]) at train.py:41, rank 1 in
// ...`
std::string Participant::explanation(Number number, const Vote& vote) const {
  std::string text = "group \"" + name_ + "\" #" + std::to_string(number) + ": ";
  if (vote.claims.empty()) return text + "the peers' votes do not say why";
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

// Finished on all places: their `done` came with the votes of a later number. A barrier is
// announced when all earlier ones have finished, so it retires them.
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

// Those who have partial sums for this place may wait to hear that a number's turn has come.
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

bool Participant::acceptable(Number number) const {
  return number > out_.done && number <= out_.done + 2 * limits_.ahead;
}

// Partial sums whose call may turn out to be another one, or has.
bool Participant::early(const Message& message, const Slot& slot) const {
  return message.kind == Kind::kPartial && message.payload <= limits_.eager &&
         (!slot.decided || !slot.announce.result().good());
}

core::Result<Slice> Participant::expect(Place from, const Message& message) {
  if (ended_) return violation("data after the end of the epoch");
  discard(from);
  if (message.kind == Kind::kData) return point_to_point_.expect(from, message);
  if (message.kind != Kind::kPartial && message.kind != Kind::kFinal) {
    return violation("a payload with a message that has none");
  }
  if (!acceptable(message.number)) return violation("data of a number that is over");
  Slot& slot = this->slot(message.number);
  if (slot.finished) return violation("data of a number that is over");
  const bool early = this->early(message, slot);
  if (!early && !slot.exchange) return violation("data that nobody waits for");
  if (message.kind == Kind::kFinal) return slot.exchange->expect(from, message);
  const core::Status status =
      early ? check_early(from, message, slot) : slot.exchange->check(from, message);
  if (!status.ok()) return status;
  const Buffer buffer{message.number, Buffer::Kind::kStaging, next_staging_++};
  out_.reserve(buffer, message.payload);
  coming_[from] = buffer;
  return Slice{buffer, 0, message.payload};
}

// Before it is decided a place may have sent what it is granted from the beginning.
core::Status Participant::check_early(Place from, const Message& message, const Slot& slot) const {
  const auto same = [&](const Early& early) {
    return early.from == from && early.message.level == message.level;
  };
  if (message.payload <= 0 || message.level >= spread_.levels.size() ||
      std::count_if(slot.early.begin(), slot.early.end(), same) >= Exchange::kGranted) {
    return violation("too much before its announcement");
  }
  return {};
}

core::Status Participant::receive_data(Place from, const Message& message, const Slice& at) {
  // Without a payload nothing has called expect(), which checks the message.
  if (message.payload <= 0 || at.bytes != message.payload) return violation("data without payload");
  const bool partial = message.kind == Kind::kPartial;
  const auto coming = coming_.find(from);
  if (partial && (coming == coming_.end() || coming->second != at.buffer)) {
    return violation("data that was not announced");
  }
  const auto found = slots_.find(message.number);
  Slot* slot = found == slots_.end() || found->second.finished ? nullptr : &found->second;
  if (slot != nullptr && early(message, *slot)) {
    slot->early.push_back({from, message, at});
  } else if (slot != nullptr && slot->exchange) {
    const core::Status status = slot->exchange->receive(from, message, at);
    if (!status.ok()) return status;
  } else {
    discard(from);  // the number has failed since expect()
  }
  coming_.erase(from);
  return {};
}

core::Status Participant::receive_vote(Place from, const Message& message) {
  if (message.purpose == Purpose::kAnnounce || message.purpose == Purpose::kExplain) {
    if (!acceptable(message.number)) return violation("a vote on a number that is over");
    Slot& slot = this->slot(message.number);
    Fold& fold = message.purpose == Purpose::kAnnounce ? slot.announce : slot.explain;
    if (!fold.receive(spread_, message.level, from, message.vote)) return violation("a vote twice");
    return {};
  }
  if (message.purpose < Purpose::kHold || message.purpose > Purpose::kRelease) {
    return violation("a vote of an unknown purpose");
  }
  if (message.number > cut_.generation() + 1) return violation("a cut from the future");
  if (message.vote.announced > announced_ + limits_.ahead) {
    return violation("a cut at a number that cannot be announced yet");
  }
  Cut::Generation* generation = cut_.find(message.number);
  if (generation == nullptr) return {};  // said again to a place that knows
  Fold& fold = message.purpose == Purpose::kHold   ? generation->hold
               : message.purpose == Purpose::kRest ? generation->rest
                                                   : generation->release;
  (void)fold.receive(spread_, message.level, from, message.vote);  // may be said again
  return {};
}

// Frees what expect() has reserved for a payload of this place that has not come.
void Participant::discard(Place from) {
  const auto coming = coming_.find(from);
  if (coming == coming_.end()) return;
  out_.free(coming->second);
  coming_.erase(coming);
}

// What holds for messages of all kinds.
core::Status Participant::check(const Message& message) const {
  if (message.done > announced_) return violation("that it has finished what is not announced");
  const Vote& vote = message.vote;
  if (vote.code < core::Code::kOk || vote.code > core::Code::kDataLoss) {
    return violation("an unknown code");
  }
  const std::size_t claims = message.kind == Kind::kState ? kStateClaims : Vote::kClaims;
  if (vote.claims.size() > claims) return violation("too many calls of ranks");
  std::size_t longest = vote.failure.size();
  for (const Claim& claim : vote.claims) longest = std::max(longest, claim.text.size());
  return longest > kMaxText ? violation("a text that is too long") : core::Status();
}

core::Status Participant::receive(Place from, const Message& message, const Slice& at) {
  if (ended_) return {};
  if (core::Status status = check(message); !status.ok()) return status;
  if (out_.hear(from, message.done)) {
    for (auto& [number, slot] : slots_) {
      if (slot.exchange) slot.exchange->pump();
    }
  }
  core::Status status;
  switch (message.kind) {
    case Kind::kVote:
      status = receive_vote(from, message);
      break;
    case Kind::kPartial:
    case Kind::kFinal:
      status = receive_data(from, message, at);
      break;
    case Kind::kCredit: {
      const auto found = slots_.find(message.number);
      if (found == slots_.end() || !found->second.exchange) return violation("credit for nothing");
      status = found->second.exchange->receive(from, message, {});
      break;
    }
    case Kind::kProgress:
      break;
    case Kind::kEnd:
      if (message.vote.code == core::Code::kOk) return violation("an end without an error");
      end(message.vote.code, message.vote.failure, from);
      return {};
    case Kind::kQuery:
      status = receive_query(from, message.number);
      break;
    case Kind::kState:
      status = receive_state(message);
      break;
    default:
      status = point_to_point_.receive(from, message);
  }
  if (status.ok()) advance();
  return status;
}

core::Status Participant::receive_query(Place from, Number number) {
  if (!acceptable(number)) return {};
  Slot& slot = this->slot(number);
  if (!slot.queried.insert(from).second) return violation("a query twice");
  slot.askers.insert(from);
  ask(number, slot);
  answer(number, slot);
  return {};
}

core::Status Participant::receive_state(const Message& message) {
  for (const Claim& claim : message.vote.claims) {
    if (!group_.has(claim.rank)) return violation("an unknown rank");
  }
  const auto found = slots_.find(message.number);
  if (found == slots_.end()) return {};
  for (const Claim& claim : message.vote.claims) found->second.late[claim.rank] = claim.text;
  answer(message.number, found->second);
  return {};
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

// Who is late for a number, as far as this place knows.
std::map<Rank, std::string> Participant::late(const Slot& slot) const {
  std::map<Rank, std::string> late = slot.late;
  const std::vector<Rank>& ranks = group_.ranks_of(place_);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (slot.deposits[i]) continue;
    const auto text = doing_.find(ranks[i]);
    late[ranks[i]] = text == doing_.end() ? "" : text->second;
  }
  if (!deposited(slot) || slot.announce.reached() > 0) return late;
  for (const Place place : slot.announce.missing(spread_)) {
    for (const Rank rank : group_.ranks_of(place)) late.emplace(rank, "");
  }
  return late;
}

void Participant::ask(Number number, Slot& slot) {
  if (slot.asked) return;
  slot.asked = true;
  for (const Place place : slot.announce.missing(spread_)) {
    Message message;
    message.kind = Kind::kQuery;
    message.number = number;
    out_.send(place, std::move(message));
  }
}

// Only what is known for sure: ranks here, and what other places have said of theirs.
void Participant::answer(Number number, Slot& slot) {
  std::map<Rank, std::string> known = slot.late;
  const std::vector<Rank>& ranks = group_.ranks_of(place_);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (slot.deposits[i]) continue;
    const auto text = doing_.find(ranks[i]);
    known[ranks[i]] = text == doing_.end() ? "" : text->second;
  }
  if (known.empty()) return;
  for (const Place asker : slot.askers) {
    Message message;
    message.kind = Kind::kState;
    message.number = number;
    for (const auto& [rank, text] : known) {
      if (message.vote.claims.size() < kStateClaims) {
        message.vote.claims.push_back({rank, 0, 1, text});
      }
    }
    out_.send(asker, std::move(message));
  }
  slot.askers.clear();
}

void Participant::patience_passed(Number number) {
  const auto found = slots_.find(number);
  if (ended_ || found == slots_.end() || found->second.complete) return;
  ask(number, found->second);
}

void Participant::deadline_passed(Number number) {
  const auto found = slots_.find(number);
  if (ended_ || !cut_.allows(number) || found == slots_.end() || found->second.complete) return;
  const Slot& slot = found->second;
  std::string text = "group \"" + name_ + "\" #" + std::to_string(number) + ": timeout in ";
  for (const auto& deposit : slot.deposits) {
    if (!deposit) continue;
    text += describe(deposit->call);
    break;
  }
  text += ", waits for ";
  std::map<Rank, std::string> waits = late(slot);
  const bool data = waits.empty();
  if (data && slot.exchange) {
    for (const Place place : slot.exchange->waits_for()) {
      for (const Rank rank : group_.ranks_of(place)) waits.emplace(rank, "");
    }
  }
  if (data) text += waits.empty() ? "the group" : "data of ";
  constexpr std::size_t kNamed = 16;
  std::size_t named = 0;
  for (const auto& [rank, what] : waits) {
    if (named == kNamed) break;
    text += (named++ > 0 ? ", " : "") + rank_text(rank) + (what.empty() ? "" : " (" + what + ")");
  }
  if (waits.size() > kNamed) text += " and " + std::to_string(waits.size() - kNamed) + " more";
  end(core::Code::kDeadlineExceeded, text, std::nullopt);
}

void Participant::deadline_passed_point_to_point(std::uint64_t token) {
  if (ended_ || held()) return;
  const std::string waiting = point_to_point_.waiting(token);
  if (waiting.empty()) return;
  end(core::Code::kDeadlineExceeded, "group \"" + name_ + "\": timeout in " + waiting,
      std::nullopt);
}

void Participant::lost(Rank rank, const std::string& text) {
  if (ended_) return;
  end(core::Code::kUnavailable,
      "group \"" + name_ + "\": " + rank_text(rank) + " " + shortened(text, kMaxReason),
      std::nullopt);
}

// Everyone hears of it from a neighbour, whoever noticed.
void Participant::end(core::Code code, const std::string& text, std::optional<Place> teller) {
  const core::Status status(code, shortened(text, kMaxText));
  for (const Place neighbour : neighbours_) {
    if (neighbour == teller) continue;
    Message message;
    message.kind = Kind::kEnd;
    message.vote.code = code;
    message.vote.failure = status.message();
    out_.send(neighbour, std::move(message));
  }
  for (auto& [number, slot] : slots_) {
    if (slot.exchange) slot.exchange->release();
    drop_early(slot);
    if (!slot.complete) complete(number, slot, status);
  }
  slots_.clear();
  while (!coming_.empty()) discard(coming_.begin()->first);
  point_to_point_.end(status);
  ended_ = status;
  Action action;
  action.kind = Action::Kind::kEnded;
  action.status = status;
  out_.push(std::move(action));
}

}  // namespace teletensor::collective
