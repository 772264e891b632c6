// Participant's functions that process messages of peers and refuse invalid ones.
#include <algorithm>

#include "engine/collective/participant.h"

namespace teletensor::collective {

bool Participant::acceptable(Number number) const {
  return number > out_.done && number <= out_.done + 2 * limits_.ahead;
}

// Returns true for partial sums that may arrive before it is known that all calls are equal, or
// after it is known that they are not.
bool Participant::early(const Message& message, const Slot& slot) const {
  return message.kind == Kind::kPartial && message.payload <= limits_.eager &&
         (!slot.decided || !slot.announce.result().good());
}

core::Result<Slice> Participant::expect(Place from, const Message& message) {
  if (over(message)) return violation("data after the end of the epoch");
  discard(from);
  if (message.kind == Kind::kData) return point_to_point_.expect(from, message);
  if (message.kind != Kind::kPartial && message.kind != Kind::kFinal) {
    return violation("a payload with a message that must not have one");
  }
  if (!acceptable(message.number)) return violation("data of a collective that has ended");
  Slot& slot = this->slot(message.number);
  if (slot.finished) return violation("data of a collective that has ended");
  const bool early = this->early(message, slot);
  if (!early && !slot.exchange) return violation("data for which no rank waits");
  if (message.kind == Kind::kFinal) return slot.exchange->expect(from, message);
  const core::Status status =
      early ? check_early(from, message, slot) : slot.exchange->check(from, message);
  if (!status.ok()) return status;
  const Buffer buffer{message.number, Buffer::Kind::kStaging, next_staging_++};
  out_.reserve(buffer, message.payload);
  coming_[from] = buffer;
  return Slice{buffer, 0, message.payload};
}

// Before a collective is decided, a place may send only the number of segments that it is granted
// initially.
core::Status Participant::check_early(Place from, const Message& message, const Slot& slot) const {
  const auto same = [&](const Early& early) {
    return early.from == from && early.message.level == message.level;
  };
  if (message.payload <= 0 || message.level >= spread_.levels.size() ||
      std::count_if(slot.early.begin(), slot.early.end(), same) >= Exchange::kGranted) {
    return violation("more segments than are allowed before their announcement");
  }
  return {};
}

core::Status Participant::receive_data(Place from, const Message& message, const Slice& at) {
  // expect() checked only messages with a payload.
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
    discard(from);  // the collective has failed since expect()
  }
  coming_.erase(from);
  return {};
}

core::Status Participant::receive_vote(Place from, const Message& message) {
  if (message.purpose == Purpose::kAnnounce || message.purpose == Purpose::kExplain) {
    if (!acceptable(message.number)) return violation("a vote on a collective that has ended");
    Slot& slot = this->slot(message.number);
    Fold& fold = message.purpose == Purpose::kAnnounce ? slot.announce : slot.explain;
    if (!fold.receive(spread_, message.level, from, message.vote)) return violation("a vote twice");
    return {};
  }
  if (message.purpose == Purpose::kLeave) {
    // A restarted place sends its vote again, and this place may have received it earlier.
    if (message.level == 0) left_places_.insert(from);
    (void)leaving_.receive(spread_, message.level, from, message.vote);
    return {};
  }
  if (message.purpose < Purpose::kHold || message.purpose > Purpose::kLower) {
    return violation("a vote of an unknown purpose");
  }
  if (message.number > cut_.generation() + 1) return violation("a cut that is not the next one");
  if (message.vote.announced > announced_ + limits_.ahead) {
    return violation("a cut at a number that cannot be announced yet");
  }
  Cut::Generation* generation = cut_.find(message.number);
  // A restarted place sends its votes again, and this place may have received them earlier.
  if (generation == nullptr) return {};
  if (message.purpose == Purpose::kLower && message.vote.done < out_.done) {
    return violation("a cut before a collective that has finished");
  }
  Fold& fold = message.purpose == Purpose::kHold    ? generation->hold
               : message.purpose == Purpose::kLower ? generation->lower
               : message.purpose == Purpose::kRest  ? generation->rest
                                                    : generation->release;
  (void)fold.receive(spread_, message.level, from, message.vote);
  return {};
}

// Frees the staging that expect() reserved for a payload from this place, if the payload did not
// arrive.
void Participant::discard(Place from) {
  const auto coming = coming_.find(from);
  if (coming == coming_.end()) return;
  out_.free(coming->second);
  coming_.erase(coming);
}

// Checks conditions for messages of all kinds.
core::Status Participant::check(const Message& message) const {
  if (message.done > announced_) {
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
  if (ended_) return {};
  if (core::Status status = check(message); !status.ok()) return status;
  if (out_.hear(from, message.done)) {
    for (auto& [number, slot] : slots_) {
      if (slot.exchange) slot.exchange->pump();
    }
  }
  if (over(message)) {
    advance();
    return {};
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
      if (found == slots_.end() || !found->second.exchange) {
        return violation("a credit for a transfer that does not exist");
      }
      status = found->second.exchange->receive(from, message, {});
      break;
    }
    case Kind::kProgress:
      break;
    case Kind::kEnd:
      if (message.vote.code == core::Code::kOk) return violation("an end without an error");
      if (message.number > announced_ + limits_.ahead) {
        return violation("an end at a number that cannot be announced yet");
      }
      if (message.from != kNoRank && !group_.has(message.from)) return violation("an unknown rank");
      end(message.number, message.vote.code, message.vote.failure, message.from, from);
      break;
    case Kind::kQuery:
      status = receive_query(from, message.number);
      break;
    case Kind::kState:
      status = receive_state(message);
      break;
    default:
      status = point_to_point_.receive(from, message);
  }
  if (status.ok() && !ended_) advance();
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

}  // namespace teletensor::collective
