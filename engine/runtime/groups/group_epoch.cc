#include "engine/runtime/groups/group_epoch.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/program/text.h"

namespace teletensor::runtime {

using collective::Action;
using collective::Buffer;
using collective::Call;
using collective::Job;
using collective::Number;
using collective::rank_text;
using collective::Slice;
using core::Code;
using core::Status;

namespace {

bool is_transfer(const Call& call) {
  return call.op == collective::Op::kSend || call.op == collective::Op::kRecv;
}

}  // namespace

GroupEpoch::GroupEpoch(const Groups::Join& join, Groups::Adder& adder, Fabric* fabric)
    : name_(join.name), adder_(adder), fabric_(fabric), ranks_(join.ranks) {
  if (fabric_ != nullptr) return;
  std::vector<PeerMessage::Place> here(1);
  for (collective::Rank rank = 0; rank < join.ranks; ++rank) here[0].members.push_back({rank, 0});
  form({}, std::move(here), 0);
  core::MutexLock lock(mu_);
  going_ = true;
}

bool GroupEpoch::ended_locked() const {
  return abandoned_ || (participant_ && participant_->ended());
}
bool GroupEpoch::ended() {
  core::MutexLock lock(mu_);
  return ended_locked();
}
bool GroupEpoch::closed_locked() const {
  return abandoned_ || (participant_ && participant_->ending());
}
bool GroupEpoch::closed() {
  core::MutexLock lock(mu_);
  return closed_locked();
}
bool GroupEpoch::has(collective::Rank rank) {
  core::MutexLock lock(mu_);
  return rank < ranks() && ranks_[rank].joined;
}
bool GroupEpoch::formed() {
  core::MutexLock lock(mu_);
  return participant_.has_value();
}
bool GroupEpoch::has_ranks() {
  core::MutexLock lock(mu_);
  return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank.joined; });
}
GroupFacts GroupEpoch::facts() {
  core::MutexLock lock(mu_);
  GroupFacts facts;
  facts.name = name_;
  facts.ranks = ranks();
  if (going_) facts.state = GroupFacts::State::kRunning;
  if (closed_locked()) {
    facts.state = GroupFacts::State::kEnded;
    facts.why = abandoned_ ? *abandoned_ : participant_->ending()->status.message();
  }
  for (const PeerMessage::Place& place : places_) {
    for (const PeerMessage::Member& member : place.members) {
      const RankState& rank = ranks_[member.rank];
      if (!rank.joined && (fabric_ == nullptr || place.daemon == fabric_->name())) continue;
      const bool here = rank.joined;
      facts.members.push_back(
          {member.rank, here ? "" : place.daemon, rank.who, here && rank.waits()});
      facts.collectives = std::max(facts.collectives, rank.number);
    }
  }
  if (places_.empty()) {
    for (collective::Rank rank = 0; rank < ranks(); ++rank) {
      const RankState& own = ranks_[rank];
      if (own.joined) facts.members.push_back({rank, "", own.who, own.waits()});
    }
  }
  for (const RankState& rank : ranks_) {
    if (!rank.joined) continue;
    for (const auto& [ticket, open] : rank.open) facts.open += open.ended ? 0 : 1;
  }
  std::sort(facts.members.begin(), facts.members.end(),
            [](const auto& a, const auto& b) { return a.rank < b.rank; });
  return facts;
}
std::vector<std::string> GroupEpoch::daemons() {
  core::MutexLock lock(mu_);
  std::vector<std::string> daemons;
  for (const PeerMessage::Place& place : places_) daemons.push_back(place.daemon);
  return daemons;
}

// ---------------------------------------------------------------- forming

bool GroupEpoch::join(const Groups::Join& join) {
  core::MutexLock lock(mu_);
  RankState& rank = ranks_[join.rank];
  if (closed_locked() || rank.joined || (fabric_ != nullptr && participant_)) return false;
  rank.joined = true;
  rank.who = join.who;
  rank.timeout = join.timeout;
  if (participant_) participant_->describe_rank(join.rank, join.who);
  return true;
}

void GroupEpoch::form(const EpochId& id, std::vector<PeerMessage::Place> places,
                      collective::Place own) {
  core::MutexLock lock(mu_);
  id_ = id;
  places_ = std::move(places);
  place_ranks(own, {});
}

void GroupEpoch::place_ranks(collective::Place own, collective::Participant::Image image) {
  lowest_ = places_[own].members.front().rank;
  std::vector<std::vector<collective::Rank>> ranks_of;
  for (const PeerMessage::Place& place : places_) {
    ranks_of.emplace_back();
    for (const PeerMessage::Member& member : place.members) ranks_of.back().push_back(member.rank);
  }
  group_.emplace(static_cast<collective::Rank>(ranks_.size()), std::move(ranks_of));
  participant_.emplace(*group_, own, name_, collective::Limits(), std::move(image));
  for (const PeerMessage::Member& member : places_[own].members) {
    const RankState& rank = ranks_[member.rank];
    participant_->describe_rank(member.rank, rank.joined ? rank.who : "has not joined");
  }
}

void GroupEpoch::go() {
  settle([&](Waiters& met) TT_REQUIRES(mu_) {
    going_ = true;
    for (collective::Rank rank = 0; rank < ranks(); ++rank) {
      for (const Declined& declined : std::exchange(ranks_[rank].declined, {})) {
        open_declined(rank, declined);
      }
      finish_all(ranks_[rank], Open::Kind::kBegin, {}, met);
    }
  });
}

void GroupEpoch::abandon(const std::string& why) {
  settle([&](Waiters& met) TT_REQUIRES(mu_) {
    if (!participant_) end_forming(why, met);
  });
}

void GroupEpoch::end_forming(const std::string& why, Waiters& met) {
  if (abandoned_) return;
  abandoned_ = program::shortened(why, collective::kMaxNote);
  end_all(abandonment(), met);
}

std::optional<std::string> GroupEpoch::abandoned() {
  core::MutexLock lock(mu_);
  return abandoned_;
}

Status GroupEpoch::abandonment() const {
  return Status(Code::kDeadlineExceeded, "group \"" + name_ + "\": " + *abandoned_);
}

// ---------------------------------------------------------------- ranks

bool GroupEpoch::RankState::waits() const {
  return std::any_of(open.begin(), open.end(), [](const auto& each) { return !each.second.ended; });
}

GroupEpoch::Ticket GroupEpoch::start(collective::Rank rank, Open::Kind kind) {
  Open& open = ranks_[rank].open[++tickets_];
  open.kind = kind;
  open.began = Groups::Clock::now();
  open.deadline = open.began + ranks_[rank].timeout;
  return tickets_;
}

std::optional<GroupEpoch::Ticket> GroupEpoch::begin(collective::Rank rank) {
  core::MutexLock lock(mu_);
  if (going_ || ended_locked()) return std::nullopt;
  return start(rank, Open::Kind::kBegin);
}

void GroupEpoch::open_part(collective::Rank rank, Open& open, Part part) {
  if (abandoned_) {
    open.ended = abandonment();
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
  open.number = ++ranks_[rank].number;
  std::shared_ptr<Parts>& parts = parts_[open.number];
  if (!parts) parts = std::make_shared<Parts>();
  parts->insert_or_assign(rank, std::move(part));
  const Status status = participant_->deposit(rank, open.number, call);
  if (status.ok()) return;
  // The other ranks must not wait for an invalid call.
  open.ended = status;
  participant_->lost(rank, status.message());
}

GroupEpoch::Ticket GroupEpoch::deposit(collective::Rank rank, Part part) {
  Ticket ticket = 0;
  settle([&](Waiters&) TT_REQUIRES(mu_) {
    ticket = start(rank, Open::Kind::kCollective);
    open_part(rank, ranks_[rank].open.at(ticket), std::move(part));
  });
  core::MutexLock lock(mu_);
  // The image is taken: the operation stays open, and is a part of the session's image.
  if (ticket == 0) ticket = start(rank, Open::Kind::kCollective);
  Open& open = ranks_[rank].open.at(ticket);
  if (open.kind == Open::Kind::kSend && !open.ended) {
    open.ended = Status();
  }
  return ticket;
}

// The declining rank does not wait, although its part of a transfer may stay open for the other
// rank.
void GroupEpoch::open_declined(collective::Rank rank, const Declined& declined) {
  if (is_transfer(declined.call)) {
    (void)transfer(rank, declined.call, nullptr, declined.failed);
  } else if (!participant_->deposit(rank, ++ranks_[rank].number, declined.call, declined.failed)
                  .ok()) {
    participant_->lost(rank, declined.failed.text);
  }
}

void GroupEpoch::decline(collective::Rank rank, const Call& call, const Status& why) {
  settle([&](Waiters&) TT_REQUIRES(mu_) {
    if (abandoned_) return;
    Declined declined{call, {why.code(), why.message()}};
    if (going_) return open_declined(rank, declined);
    ranks_[rank].declined.push_back(std::move(declined));
  });
}

GroupEpoch::Ticket GroupEpoch::await_sends(collective::Rank rank) {
  core::MutexLock lock(mu_);
  const Ticket ticket = start(rank, Open::Kind::kAwaitSends);
  RankState& own = ranks_[rank];
  if (own.sends.empty()) {
    own.open.at(ticket).ended = std::exchange(own.lost_send, std::nullopt).value_or(Status());
  }
  return ticket;
}

bool GroupEpoch::wait(collective::Rank rank, Ticket ticket, Waiter* waiter) {
  core::MutexLock lock(mu_);
  Open& open = ranks_[rank].open.at(ticket);
  if (open.ended) return false;
  open.waiter = waiter;
  return true;
}

bool GroupEpoch::ended(collective::Rank rank, Ticket ticket) {
  core::MutexLock lock(mu_);
  return ranks_[rank].open.at(ticket).ended.has_value();
}

Groups::Outcome GroupEpoch::take(collective::Rank rank, Ticket ticket) {
  core::MutexLock lock(mu_);
  const auto found = ranks_[rank].open.find(ticket);
  Groups::Outcome outcome{*found->second.ended, found->second.sender};
  ranks_[rank].open.erase(found);
  return outcome;
}

void GroupEpoch::set_timeout(collective::Rank rank, std::chrono::milliseconds timeout) {
  core::MutexLock lock(mu_);
  ranks_[rank].timeout = timeout;
}

void GroupEpoch::give_up(collective::Rank rank, const std::string& why) {
  {
    core::MutexLock lock(mu_);
    if (!ranks_[rank].waits()) return;
  }
  leave(rank, why);
}

void GroupEpoch::leave(collective::Rank rank, const std::string& why) {
  settle([&](Waiters& met) TT_REQUIRES(mu_) { part(rank, why, true, met); });
}

void GroupEpoch::replace(collective::Rank rank, const std::string& why) {
  settle([&](Waiters& met) TT_REQUIRES(mu_) { part(rank, why, false, met); });
}

void GroupEpoch::part(collective::Rank rank, const std::string& why, bool may_go_on, Waiters& met) {
  if (!participant_) return end_forming(rank_text(rank) + " " + why, met);
  const RankState& own = ranks_[rank];
  if (own.waits() || !own.declined.empty()) {
    participant_->lost(rank, why);
  } else if (may_go_on) {
    participant_->leave(rank, own.number, why);
  } else {
    participant_->lost(rank, why, own.number);
  }
}

void GroupEpoch::forget(collective::Rank rank) {
  core::MutexLock lock(mu_);
  ranks_[rank].joined = false;
}

// ---------------------------------------------------------------- messages and deadlines

std::optional<collective::Place> GroupEpoch::place_of(const std::string& daemon) const {
  for (collective::Place place = 0; place < places_.size(); ++place) {
    if (places_[place].daemon == daemon) return place;
  }
  return std::nullopt;
}

Status GroupEpoch::received(const std::string& daemon, const collective::Message& message,
                            Pieces payload) {
  Status status;
  settle([&](Waiters& met) TT_REQUIRES(mu_) {
    const auto from = place_of(daemon);
    if (!from || !participant_) {
      status = core::invalid("a message of a group that has no rank in " + daemon);
      return;
    }
    Slice at;
    if (message.payload > 0 && !participant_->over(message)) {
      auto expected = participant_->expect(*from, message);
      if (!expected.ok()) {
        status = expected.status();
        return;
      }
      at = *expected;
      Work no_work;
      // Allocate the staging that expect() has requested.
      for (Action& action : participant_->take()) carry_out(action, no_work, met);
      if (no_memory_) return;
      Held held;
      hold(at, held);
      char* to = held.at(at);
      for (const std::span<const char> piece : payload) {
        std::memcpy(to, piece.data(), piece.size());
        to += piece.size();
      }
    }
    status = participant_->receive(*from, message, at);
  });
  return status;
}

void GroupEpoch::lose(const std::string& daemon, const std::string& why) {
  settle([&](Waiters&) TT_REQUIRES(mu_) {
    const auto place = place_of(daemon);
    if (place && participant_) participant_->lost_place(*place, why);
  });
}

void GroupEpoch::look(Groups::Clock::time_point now, const std::string& missing) {
  settle([&](Waiters& met) TT_REQUIRES(mu_) {
    const auto passed = now - std::exchange(looked_, now);
    if (participant_ && participant_->held()) {  // deadlines do not pass while the group is held
      for (RankState& rank : ranks_) {
        for (auto& [ticket, open] : rank.open) open.deadline += passed;
      }
    }
    for (const RankState& rank : ranks_) {
      for (const auto& [ticket, open] : rank.open) {
        if (!open.ended && rank.joined && !look(rank, open, now, missing, met)) return;
      }
    }
  });
}

bool GroupEpoch::look(const RankState& rank, const Open& open, Groups::Clock::time_point now,
                      const std::string& missing, Waiters& met) {
  using OpenKind = Open::Kind;
  if (open.deadline > now) {
    if (open.kind == OpenKind::kCollective && participant_ && now - open.began > rank.timeout / 2) {
      participant_->patience_passed(open.number);
    }
    return true;
  }
  switch (open.kind) {
    case OpenKind::kBegin:
      if (participant_) {
        participant_->lost(lowest_, "has waited too long for the group to begin");
      } else {
        end_forming("timeout in joining, waits for " + (missing.empty() ? "the group" : missing),
                    met);
      }
      return false;
    case OpenKind::kCollective:
      participant_->deadline_passed(open.number);
      return false;
    case OpenKind::kSend:
    case OpenKind::kReceive:
      participant_->deadline_passed_point_to_point(open.token);
      return false;
    case OpenKind::kAwaitSends:
      participant_->deadline_passed_point_to_point(*rank.sends.begin());
      return false;
  }
  return true;
}

// ---------------------------------------------------------------- the participant's actions

Status GroupEpoch::run(const Work& work) {
  try {
    return adder_.add(work.jobs, [&](const Slice& slice) { return work.held.at(slice); });
  } catch (const std::exception& error) {
    return Status(Code::kResourceExhausted, error.what());
  }
}

void GroupEpoch::finish(Open& open, const Status& status, Waiters& met) {
  if (open.ended) return;
  open.ended = status;
  if (open.waiter != nullptr) met.push_back(std::exchange(open.waiter, nullptr));
}

void GroupEpoch::finish_all(RankState& rank, Open::Kind kind, const Status& status, Waiters& met) {
  for (auto& [ticket, open] : rank.open) {
    if (open.kind == kind) finish(open, status, met);
  }
}

void GroupEpoch::end_all(const Status& status, Waiters& met) {
  for (RankState& rank : ranks_) {
    for (auto& [ticket, open] : rank.open) finish(open, status, met);
    rank.sends.clear();
  }
  parts_.clear();
  transfers_.clear();
  staging_.clear();
}

core::Result<std::uint64_t> GroupEpoch::transfer(collective::Rank rank, const Call& call,
                                                 std::shared_ptr<Part> part,
                                                 const collective::Failed& failed) {
  RankState& own = ranks_[rank];
  const std::uint64_t token = ++tokens_;
  if (call.op == collective::Op::kSend) own.sends.insert(token);
  transfers_[token] = {rank, std::move(part)};
  const Status status = participant_->deposit_point_to_point(rank, token, call, failed);
  if (status.ok()) return token;
  transfers_.erase(token);
  own.sends.erase(token);
  return status;
}

void GroupEpoch::transferred(const Action& action, Waiters& met) {
  const auto found = transfers_.find(action.token);
  if (found == transfers_.end()) return;
  RankState& own = ranks_[found->second.rank];
  transfers_.erase(found);
  // A tensor that does not fit its receiver could be reported to the sender only if the receive was
  // deposited first, so a send fails only if its receiver is lost or has left.
  bool told = false;
  for (auto& [ticket, open] : own.open) {
    if (open.token != action.token || open.ended) continue;
    open.sender = action.rank;
    if (open.kind != Open::Kind::kReceive && !action.lost) continue;
    finish(open, action.status, met);
    told = true;
  }
  const bool sent = own.sends.erase(action.token) > 0;
  if (sent && action.lost && !told) own.lost_send = action.status;
  const bool awaited = std::any_of(own.open.begin(), own.open.end(), [](const auto& each) {
    return each.second.kind == Open::Kind::kAwaitSends && !each.second.ended;
  });
  if (!awaited || (!own.lost_send && !own.sends.empty())) return;
  finish_all(own, Open::Kind::kAwaitSends,
             std::exchange(own.lost_send, std::nullopt).value_or(Status()), met);
}

void GroupEpoch::carry_out(Action& action, Work& work, Waiters& met) {
  switch (action.kind) {
    case Action::Kind::kSend:
      return send(action);
    case Action::Kind::kReserve: {
      auto storage = adder_.allocate(static_cast<std::size_t>(action.bytes));
      no_memory_ |= !storage;
      if (storage) staging_.insert_or_assign(action.buffer, std::move(storage));
      return;
    }
    case Action::Kind::kFree:
      staging_.erase(action.buffer);
      return;
    case Action::Kind::kReduce:
      if (no_memory_) return;  // the group ends
      hold(action.job, work.held);
      work.jobs.push_back(std::move(action.job));
      return;
    case Action::Kind::kComplete:
      if (action.token != 0) return transferred(action, met);
      for (auto& [ticket, open] : ranks_[action.rank].open) {
        if (open.number == action.number) finish(open, action.status, met);
      }
      if (participant_->ending() && action.number > participant_->ending()->last) {
        parts_.erase(action.number);  // the number will never count as finished
      }
      return;
    case Action::Kind::kEnded:
      return end_all(action.status, met);
    case Action::Kind::kRunTo:
      run_to_ = action.number;
      return;
    case Action::Kind::kGoOn:
      run_to_ = 0;
      return;
    case Action::Kind::kAtRest:  // rest() asks for it
    case Action::Kind::kRetire:  // finished() already reported it
      return;
  }
}

void GroupEpoch::send(Action& action) {
  PeerMessage message;
  message.epoch = id_;
  message.message = std::move(action.message);
  Fabric::Payload payload;
  if (!action.slices.empty()) {
    auto held = std::make_shared<Held>();
    for (const Slice& slice : action.slices) {
      hold(slice, *held);
      payload.parts.emplace_back(held->at(slice), static_cast<std::size_t>(slice.bytes));
    }
    payload.held = std::move(held);
  }
  fabric_->send(places_[action.to].daemon, std::move(message), std::move(payload));
}

void GroupEpoch::hold(const Slice& slice, Held& held) {
  const Buffer& buffer = slice.buffer;
  char*& address = held.addresses[buffer];
  if (address != nullptr) return;
  if (buffer.kind == Buffer::Kind::kStaging) {
    held.staging.push_back(staging_.at(buffer));
    address = static_cast<char*>(held.staging.back()->data());
    return;
  }
  if (buffer.kind == Buffer::Kind::kSent || buffer.kind == Buffer::Kind::kReceived) {
    const std::shared_ptr<Part>& part = transfers_.at(buffer.index).part;
    held.parts.push_back(part);
    address = (buffer.kind == Buffer::Kind::kSent ? part->operand : part->result).data();
    return;
  }
  const std::shared_ptr<Parts>& parts = parts_.at(buffer.number);
  held.parts.push_back(parts);
  const Part& part = parts->at(static_cast<collective::Rank>(buffer.index));
  address = (buffer.kind == Buffer::Kind::kOperand ? part.operand : part.result).data();
}

void GroupEpoch::hold(const Job& job, Held& held) {
  for (const Job::Source& source : job.sources) hold(source.at, held);
  for (const Job::Output& output : job.outputs) {
    for (const Slice& to : output.to) hold(to, held);
  }
}

}  // namespace teletensor::runtime
