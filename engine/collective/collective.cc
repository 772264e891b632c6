#include "engine/collective/collective.h"

#include <algorithm>
#include <utility>

#include "engine/program/text.h"

namespace teletensor::collective {

std::string Context::about(Rank rank, const std::string& text) const {
  return "group \"" + name + "\": " + rank_text(rank) + " " + program::shortened(text, kMaxReason);
}

void Context::lose(const std::vector<Claim>& lost, Number last) {
  std::vector<Rank> ranks;
  for (const Claim& claim : lost) ranks.push_back(claim.rank);
  group = group.without(ranks);
  departures.remove(lost);
  Action action;
  action.kind = Action::Kind::kLost;
  action.number = last;
  action.message.vote.claims = lost;
  out.push(std::move(action));
}

void Context::send_votes(Purpose purpose, Number number, Fold& fold) {
  for (const int level : fold.advance(spread)) {
    for (const Place to : spread.levels[static_cast<std::size_t>(level)].to) {
      send_vote(to, purpose, number, level, fold);
    }
  }
}

void Context::repeat_votes(Place again, Purpose purpose, Number number, const Fold& fold) {
  for (int level = 0; level < fold.told(); ++level) {
    for (const Place to : spread.levels[static_cast<std::size_t>(level)].to) {
      if (to == again) send_vote(to, purpose, number, level, fold);
    }
  }
}

void Context::send_vote(Place to, Purpose purpose, Number number, int level, const Fold& fold) {
  Message message;
  message.kind = Kind::kVote;
  message.purpose = purpose;
  message.level = static_cast<std::uint8_t>(level);
  message.number = number;
  message.vote = fold.at(level);
  out.send(to, std::move(message));
}

Collective::Collective(Context& context, Number number)
    : context_(context), number_(number), deposits_(context.ranks().size()) {}

// ---------------------------------------------------------------- deposits

bool Collective::has_deposits() const {
  return std::any_of(deposits_.begin(), deposits_.end(),
                     [](const auto& d) { return d.has_value(); });
}

bool Collective::deposited() const {
  return std::all_of(deposits_.begin(), deposits_.end(),
                     [](const auto& d) { return d.has_value(); });
}

void Collective::deposit(std::size_t at, Call call, Failed failed) {
  deposits_[at] = {std::move(call), std::move(failed)};
}

// ---------------------------------------------------------------- steps

// The calls of the place's ranks. A broadcast from the lowest rank gets this rank as its root.
std::vector<Call> Collective::calls() const {
  std::vector<Call> calls;
  for (const auto& deposit : deposits_) {
    calls.push_back(deposit->call);
    if (calls.back().op == Op::kBroadcast && calls.back().root == kNoRank) {
      calls.back().root = context_.group.present().front();
    }
  }
  return calls;
}

void Collective::announce() {
  Vote sum;
  const std::vector<Rank>& ranks = context_.ranks();
  for (std::optional<Deposit>& deposit : deposits_) {
    const Call& call = deposit->call;
    if (call.op != Op::kBroadcast || call.root == kNoRank || context_.group.has(call.root))
      continue;
    deposit->failed = {core::Code::kDeadlineExceeded, rank_text(call.root) + " is lost"};
  }
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    Vote vote;
    vote.lowest = ranks[i];
    vote.fingerprint = fingerprint(deposits_[i]->call);
    vote.balance = balance(deposits_[i]->call, ranks[i]);
    if (deposits_[i]->failed.code != core::Code::kOk) vote.failed = ranks[i];
    vote.done = context_.out.done;
    sum = i == 0 ? vote : merge(sum, vote);
  }
  const bool good = sum.equal && sum.failed == kNoRank;
  announce_.start(std::move(sum));
  context_.send_votes(Purpose::kAnnounce, number_, announce_);
  if (!good || is_barrier()) return;
  exchange_.emplace(context_.group, context_.place, number_, calls(), context_.limits,
                    context_.out);
  exchange_->announce();
}

core::Result<bool> Collective::progress() {
  if (finished_) return false;
  if (!decided_) {
    context_.send_votes(Purpose::kAnnounce, number_, announce_);
    if (!announce_.complete(context_.spread)) return false;
    TT_RETURN_IF_ERROR(decide());
  }
  const Vote& vote = announce_.result();
  if (!vote.good()) {
    if (!explain_.started()) start_explaining();
    context_.send_votes(Purpose::kExplain, number_, explain_);
    if (!explain_.complete(context_.spread)) return false;
    const Vote& why = explain_.result();
    const bool desync = !vote.equal || vote.balance != 0;
    drop_early();
    complete_with({desync ? core::Code::kInvalidArgument
                   : why.code == core::Code::kOk
                       ? core::Code::kInternal  // a vote for a failure without a code
                       : why.code,
                   explanation(why)});
    return finished_ = true;
  }
  if (!exchange_) {  // a barrier: all earlier collectives have finished everywhere
    finished_everywhere_ = std::max(finished_everywhere_, number_);
    complete_with({});
    return finished_ = true;
  }
  Exchange& exchange = *exchange_;
  if (!exchange.started() &&
      (exchange.small() || number_ <= context_.out.done + context_.limits.active)) {
    exchange.start();
  }
  if (!complete_ && exchange.complete()) complete_with({});
  if (!exchange.finished()) return false;
  withdraw();
  return finished_ = true;
}

// Returns an error if early data does not fit the call.
core::Status Collective::decide() {
  decided_ = true;
  finished_everywhere_ = announce_.result().done;
  if (!announce_.result().good()) {
    withdraw();  // a place sends no data after its texts
    return {};
  }
  while (!early_.empty()) {  // a barrier has no exchange, so no data fits it
    const Early early = early_.back();
    if (exchange_ && exchange_->receive(early.from, early.message, early.at).ok()) {
      early_.pop_back();
      continue;
    }
    return {core::Code::kInternal, context_.title(number_) + "the daemon of " +
                                       rank_text(context_.group.ranks_of(early.from).front()) +
                                       " sent data that does not match its call"};
  }
  return {};
}

void Collective::start_explaining() {
  const bool desync = !announce_.result().equal || announce_.result().balance != 0;
  const std::vector<Rank>& ranks = context_.ranks();
  Vote sum;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Deposit& deposit = *deposits_[i];
    Vote vote;
    vote.lowest = ranks[i];
    if (desync) {
      // If only the sizes between pairs of ranks disagree, each rank's call is listed separately.
      const std::uint64_t print = announce_.result().equal ? ranks[i] : fingerprint(deposit.call);
      vote.claims = {{ranks[i], print, 1, describe(deposit.call)}};
    } else if (ranks[i] == announce_.result().failed) {
      vote.failed = ranks[i];
      vote.code = deposit.failed.code;
      vote.failure = deposit.failed.text;
      vote.claims = {{ranks[i], 0, 1, describe(deposit.call)}};
    }
    sum = i == 0 ? vote : merge(sum, vote);
  }
  sum.equal = true;
  explain_.start(std::move(sum));
}

// Returns the error message, for example `group "default" #1843: rank 0 is in all_reduce(sum,
// float32[1024]) at train.py:41, rank 1 in ...`.
std::string Collective::explanation(const Vote& vote) const {
  std::string text = context_.title(number_);
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

void Collective::complete_with(const core::Status& status) {
  complete_ = true;
  const std::vector<Rank>& ranks = context_.ranks();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (!deposits_[i]) continue;
    Action action;
    action.kind = Action::Kind::kComplete;
    action.number = number_;
    action.rank = ranks[i];
    action.status = status;
    context_.out.push(std::move(action));
  }
}

void Collective::drop_early() {
  for (const Early& early : early_) context_.out.free(early.at.buffer);
  early_.clear();
}

// ---------------------------------------------------------------- ends

void Collective::end(const core::Status& status) {
  withdraw();
  drop_early();
  if (!complete_) complete_with(status);
}

void Collective::withdraw() {
  if (exchange_) exchange_->release();
  exchange_.reset();
}

void Collective::interrupt() {
  drop_early();
  complete_with({core::Code::kCancelled, "interrupted"});
}

void Collective::forget_announcement() {
  drop_early();
  announce_ = Fold();
}

void Collective::drop_lost(const std::vector<Rank>& before) {
  std::vector<std::optional<Deposit>> left;
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (context_.group.has(before[i])) left.push_back(std::move(deposits_[i]));
  }
  deposits_ = std::move(left);
  std::erase_if(late_, [&](const auto& entry) { return !context_.group.has(entry.first); });
}

// ---------------------------------------------------------------- messages of peers

// Returns true for partial sums that may arrive before it is known that all calls are equal, or
// after it is known that they are not.
bool Collective::early(const Message& message) const {
  return message.kind == Kind::kPartial && message.payload <= context_.limits.eager &&
         (!decided_ || !announce_.result().good());
}

core::Status Collective::receive_vote(Place from, const Message& message) {
  Fold& fold = message.purpose == Purpose::kAnnounce ? announce_ : explain_;
  if (fold.receive(context_.spread, message.level, from, message.vote)) return {};
  return violation("a vote twice");
}

core::Status Collective::check(Place from, const Message& message) {
  if (finished_) return violation("data of a collective that has ended");
  if (!early(message)) {
    if (!exchange_) return violation("data for which no rank waits");
    return message.kind == Kind::kFinal ? core::Status() : exchange_->check(from, message);
  }
  // Before a collective is decided, a place may send only the number of segments that it is granted
  // initially.
  const auto same = [&](const Early& each) {
    return each.from == from && each.message.level == message.level;
  };
  if (message.payload <= 0 || message.level >= context_.spread.levels.size() ||
      std::count_if(early_.begin(), early_.end(), same) >= Exchange::kGranted) {
    return violation("more segments than are allowed before their announcement");
  }
  return {};
}

core::Result<bool> Collective::receive(Place from, const Message& message, const Slice& at) {
  if (finished_) return false;
  if (early(message)) {
    early_.push_back({from, message, at});
    return true;
  }
  if (!exchange_) return false;
  TT_RETURN_IF_ERROR(exchange_->receive(from, message, at));
  return true;
}

core::Status Collective::receive_query(Place from) {
  if (!queried_.insert(from).second) return violation("a query twice");
  askers_.insert(from);
  ask();
  answer();
  return {};
}

void Collective::receive_state(const Message& message) {
  for (const Claim& claim : message.vote.claims) late_[claim.rank] = claim.text;
  answer();
}

// ---------------------------------------------------------------- lateness

// The ranks that are certainly late: those of this place, and those reported by other places.
std::map<Rank, std::string> Collective::certainly_late() const {
  std::map<Rank, std::string> late = late_;
  const std::vector<Rank>& ranks = context_.ranks();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (deposits_[i]) continue;
    const auto text = context_.doing.find(ranks[i]);
    late[ranks[i]] = text == context_.doing.end() ? "" : text->second;
  }
  return late;
}

// All ranks that may be late; those that are certain come first.
std::vector<std::pair<Rank, std::string>> Collective::late() const {
  const std::map<Rank, std::string> certain = certainly_late();
  std::vector<std::pair<Rank, std::string>> late(certain.begin(), certain.end());
  if (!deposited() || announce_.reached() > 0) return late;
  for (const Place place : announce_.missing(context_.spread)) {
    for (const Rank rank : context_.group.ranks_of(place)) {
      if (!certain.contains(rank)) late.emplace_back(rank, "");
    }
  }
  return late;
}

void Collective::ask() {
  if (asked_) return;
  asked_ = true;
  for (const Place place : announce_.missing(context_.spread)) {
    Message message;
    message.kind = Kind::kQuery;
    message.number = number_;
    context_.out.send(place, std::move(message));
  }
}

void Collective::answer() {
  const std::map<Rank, std::string> known = certainly_late();
  if (known.empty()) return;
  for (const Place asker : askers_) {
    Message message;
    message.kind = Kind::kState;
    message.number = number_;
    for (const auto& [rank, text] : known) {
      if (message.vote.claims.size() < kStateClaims) {
        message.vote.claims.push_back({rank, 0, 1, text});
      }
    }
    context_.out.send(asker, std::move(message));
  }
  askers_.clear();
}

std::string Collective::timeout() const {
  std::string text = context_.title(number_) + "timeout in ";
  for (const auto& deposit : deposits_) {
    if (!deposit) continue;
    text += describe(deposit->call);
    break;
  }
  text += ", waits for ";
  std::vector<std::pair<Rank, std::string>> waits = late();
  const bool data = waits.empty();
  if (data && exchange_) {
    for (const Place place : exchange_->waits_for()) {
      for (const Rank rank : context_.group.ranks_of(place)) waits.emplace_back(rank, "");
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
  return text;
}

}  // namespace teletensor::collective
