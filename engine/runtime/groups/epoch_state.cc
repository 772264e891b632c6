#include "engine/runtime/groups/epoch_state.h"

#include <algorithm>

#include "engine/program/text.h"

namespace teletensor::runtime {

using collective::Action;
using collective::Slice;
using core::Code;
using core::Status;

namespace {

bool has_come(const GroupRank& rank) { return rank.joined || rank.lost; }

}  // namespace

std::string joined_text(collective::Rank rank, collective::Rank ranks, const std::string& who) {
  return collective::rank_text(rank) + " of " + std::to_string(ranks) + " (" + who + ")";
}

bool EpochState::busy() const {
  return memory.has_transfers() ||
         std::any_of(ranks.begin(), ranks.end(),
                     [](const GroupRank& rank) { return rank.joined && rank.busy(); });
}

bool EpochState::waits_for_ranks() const {
  if (fabric != nullptr) return !participant;
  return !std::all_of(ranks.begin(), ranks.end(), has_come);
}

bool EpochState::heals() const {
  if (!elastic || !going || !participant || closed()) return false;
  return !waits_for_ranks() && participant->context().group.levels() <= 1;
}

std::optional<collective::Place> EpochState::place_of(const std::string& daemon) const {
  for (collective::Place place = 0; place < places.size(); ++place) {
    if (places[place].daemon == daemon) return place;
  }
  return std::nullopt;
}

Status EpochState::abandonment() const {
  return Status(Code::kDeadlineExceeded, "group \"" + name + "\": " + *abandoned);
}

void EpochState::place_ranks(collective::Place here, collective::Participant::Image image) {
  own = here;
  std::vector<std::vector<collective::Rank>> ranks_of;
  for (const PeerMessage::Place& place : places) {
    ranks_of.emplace_back();
    for (const PeerMessage::Member& member : place.members) ranks_of.back().push_back(member.rank);
  }
  collective::Group group(static_cast<collective::Rank>(ranks.size()), std::move(ranks_of));
  std::vector<collective::Rank> gone;
  for (const Groups::Lost& each : lost) gone.push_back(each.rank);
  if (!gone.empty()) group = group.without(gone);
  lowest = group.ranks_of(own).front();
  collective::Limits limits;
  limits.elastic = elastic;
  participant.emplace(group, own, name, limits, std::move(image));
  for (const PeerMessage::Member& member : places[own].members) {
    const GroupRank& rank = ranks[member.rank];
    participant->describe_rank(member.rank, rank.joined ? rank.who : "has not joined");
  }
}

void EpochState::end_forming(const std::string& why, Waiters& met) {
  if (abandoned) return;
  abandoned = program::shortened(why, collective::kMaxNote);
  end_all(abandonment(), met);
}

void EpochState::part(collective::Rank rank, const std::string& why, bool may_go_on, Waiters& met) {
  if (!participant) return end_forming(collective::rank_text(rank) + " " + why, met);
  const GroupRank& leaver = ranks[rank];
  if (leaver.lost) return;
  if (leaver.busy()) {
    participant->lost(rank, why);
  } else if (may_go_on) {
    participant->leave(rank, leaver.number, why);
  } else {
    participant->lost(rank, why, leaver.number);
  }
}

void EpochState::depart(collective::Rank rank, const std::string& why, Waiters& met) {
  GroupRank& own_rank = ranks[rank];
  if (own_rank.lost) return;
  own_rank.lost = Status(Code::kDeadlineExceeded,
                         "group \"" + name + "\": " + collective::rank_text(rank) + " " + why);
  own_rank.operations.finish_all(*own_rank.lost, met);
  participant->depart(rank, own_rank.number, why);
}

void EpochState::lose(const Action& action) {
  for (const collective::Claim& claim : action.message.vote.claims) {
    lost.push_back({claim.rank, claim.text, action.number});
  }
  const std::vector<collective::Rank>& left = participant->context().group.ranks_of(own);
  if (!left.empty()) lowest = left.front();
}

void EpochState::end_all(const Status& status, Waiters& met) {
  for (GroupRank& rank : ranks) {
    rank.operations.finish_all(status, met);
    rank.operations.forget_sends();
  }
  memory.clear();
}

Status EpochState::run(const Work& work) {
  try {
    return adder.add(work.jobs, [&](const Slice& slice) { return work.held.at(slice); });
  } catch (const std::exception& error) {
    return Status(Code::kResourceExhausted, error.what());
  }
}

void EpochState::carry_out(Action& action, Work& work, Waiters& met) {
  switch (action.kind) {
    case Action::Kind::kSend:
      return send(action);
    case Action::Kind::kReserve:
      return memory.reserve(action.buffer, static_cast<std::size_t>(action.bytes));
    case Action::Kind::kFree:
      return memory.free(action.buffer);
    case Action::Kind::kReduce:
      if (memory.lacks()) return;  // the group ends
      memory.hold(action.job, work.held);
      work.jobs.push_back(std::move(action.job));
      return;
    case Action::Kind::kComplete:
      if (action.token != 0) {
        const auto rank = memory.end_transfer(action.token);
        if (rank) ranks[*rank].operations.transferred(action, met);
        return;
      }
      ranks[action.rank].operations.finish_collective(action.number, action.status, met);
      if (participant->epoch_end().ending() &&
          action.number > participant->epoch_end().ending()->last) {
        memory.drop(action.number);  // the number will never count as finished
      }
      return;
    case Action::Kind::kLost:
      return lose(action);
    case Action::Kind::kEnded:
      return end_all(action.status, met);
    case Action::Kind::kRunTo:
      run_to = action.number;
      return;
    case Action::Kind::kGoOn:
      run_to = 0;
      return;
    case Action::Kind::kAtRest:  // GroupRest::rest() asks for it
    case Action::Kind::kRetire:  // finished() already reported it
      return;
  }
}

void EpochState::send(Action& action) {
  PeerMessage message;
  message.epoch = id;
  message.message = std::move(action.message);
  Fabric::Payload payload;
  if (!action.slices.empty()) {
    auto held = std::make_shared<GroupMemory::Held>();
    for (const Slice& slice : action.slices) {
      memory.hold(slice, *held);
      payload.parts.emplace_back(held->at(slice), static_cast<std::size_t>(slice.bytes));
    }
    payload.held = std::move(held);
  }
  fabric->send(places[action.to].daemon, std::move(message), std::move(payload));
}

}  // namespace teletensor::runtime
