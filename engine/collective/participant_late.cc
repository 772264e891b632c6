// Participant's functions that determine late ranks and end the epoch.
#include <algorithm>

#include "engine/collective/participant.h"

namespace teletensor::collective {
namespace {

// The code of a timeout, which is the one that clients expect for a missing rank.
constexpr core::Code kRankLost = core::Code::kDeadlineExceeded;

}  // namespace

// The ranks that are certainly late: those of this place, and those reported by other places.
std::map<Rank, std::string> Participant::certainly_late(const Slot& slot) const {
  std::map<Rank, std::string> late = slot.late;
  const std::vector<Rank>& ranks = group_.ranks_of(place_);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (slot.deposits[i]) continue;
    const auto text = doing_.find(ranks[i]);
    late[ranks[i]] = text == doing_.end() ? "" : text->second;
  }
  return late;
}

// All ranks that may be late for a collective; those that are certain come first.
std::vector<std::pair<Rank, std::string>> Participant::late(const Slot& slot) const {
  const std::map<Rank, std::string> certain = certainly_late(slot);
  std::vector<std::pair<Rank, std::string>> late(certain.begin(), certain.end());
  if (!deposited(slot) || slot.announce.reached() > 0) return late;
  for (const Place place : slot.announce.missing(spread_)) {
    for (const Rank rank : group_.ranks_of(place)) {
      if (!certain.contains(rank)) late.emplace_back(rank, "");
    }
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

void Participant::answer(Number number, Slot& slot) {
  const std::map<Rank, std::string> known = certainly_late(slot);
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
  std::vector<std::pair<Rank, std::string>> waits = late(slot);
  const bool data = waits.empty();
  if (data && slot.exchange) {
    for (const Place place : slot.exchange->waits_for()) {
      for (const Rank rank : group_.ranks_of(place)) waits.emplace_back(rank, "");
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
  end(0, core::Code::kDeadlineExceeded, text);
}

void Participant::deadline_passed_point_to_point(std::uint64_t token) {
  if (ended_ || held()) return;
  const std::string waiting = point_to_point_.waiting(token);
  if (waiting.empty()) return;
  end(0, core::Code::kDeadlineExceeded, "group \"" + name_ + "\": timeout in " + waiting);
}

std::string Participant::text_about(Rank rank, const std::string& text) const {
  return "group \"" + name_ + "\": " + rank_text(rank) + " " + program::shortened(text, kMaxReason);
}

void Participant::lost(Rank rank, const std::string& text, Number last) {
  end(last, kRankLost, text_about(rank, text));
}

void Participant::lost_place(Place place, const std::string& text) {
  // With several levels, other places may not know that the place has left, and would wait for its
  // votes.
  if (!left_places_.contains(place) || group_.levels() > 1) {
    return lost(group_.ranks_of(place).front(), text);
  }
  if (ended_) return;
  for (const Rank rank : group_.ranks_of(place)) {
    point_to_point_.forsaken(rank, {kRankLost, text_about(rank, "has left the group")});
  }
  advance();
}

void Participant::leave(Rank rank, Number last, const std::string& text) {
  if (ended_ || has_left(rank)) return;
  if (point_to_point_.owes(rank)) return lost(rank, text, last);
  point_to_point_.leave(rank, {kRankLost, text_about(rank, text)});
  end(last, kRankLost, text_about(rank, text), rank);
  if (!ended_) advance();
}

// The reason why a collective can no longer complete, or null.
const core::Status* Participant::end_of(Number number) const {
  return ending_ && number > ending_->last ? &ending_->status : nullptr;
}

bool Participant::over(const Message& message) const {
  if (ended_) return true;
  if (!ending_) return false;
  switch (message.kind) {
    case Kind::kVote:
      return message.purpose <= Purpose::kExplain && message.number > ending_->last;
    case Kind::kPartial:
    case Kind::kFinal:
    case Kind::kCredit:
    case Kind::kQuery:
    case Kind::kState:
      return message.number > ending_->last;
    case Kind::kOffer:
    case Kind::kAccept:
    case Kind::kData:
    case Kind::kDone:
    case Kind::kAsk:
    case Kind::kLeft:
      return ending_->final();
    case Kind::kProgress:
    case Kind::kEnd:
      return false;
  }
  return false;
}

void Participant::end(Number last, core::Code code, const std::string& text, Rank left,
                      std::optional<Place> teller) {
  end(Ending{last, core::Status(code, program::shortened(text, kMaxText)), left}, teller);
}

// Ends collectives after `last`; at once if it is 0. Places inform the places with which they
// exchange votes. If there are several endings, the lowest number applies, and transfers end with
// the first ending that is final.
void Participant::end(Ending ending, std::optional<Place> teller) {
  if (ended_) return;
  if (ending_) {
    const bool earlier = ending.last < ending_->last;
    if (!earlier && (ending_->final() || !ending.final())) return;
    ending.last = std::min(ending.last, ending_->last);
    if (ending_->final()) ending.left = kNoRank;
  }
  ending_ = std::move(ending);
  const Number last = ending_->last;
  for (const Place neighbour : neighbours_) {
    if (neighbour != teller) tell_end(neighbour);
  }
  for (auto at = slots_.upper_bound(last); at != slots_.end(); at = slots_.erase(at)) {
    Slot& slot = at->second;
    if (slot.exchange) slot.exchange->release();
    drop_early(slot);
    if (!slot.complete) complete(at->first, slot, ending_->status);
  }
  for (auto at = coming_.begin(); at != coming_.end();) {
    const auto coming = at++;
    if (coming->second.number > last) discard(coming->first);
  }
  if (!ending_->final()) return point_to_point_.expect_leaving();
  point_to_point_.end(ending_->status);
  if (out_.done >= last) finish_end();
}

void Participant::tell_end(Place to) {
  Message message;
  message.kind = Kind::kEnd;
  message.number = ending_->last;
  if (!ended_) message.from = ending_->left;
  message.vote.code = ending_->status.code();
  message.vote.failure = ending_->status.message();
  out_.send(to, std::move(message));
}

// Ends the epoch when all ranks of all places have left.
void Participant::advance_leaving() {
  if (!ending_ || ended_) return;
  const std::vector<Rank>& ranks = group_.ranks_of(place_);
  if (!leaving_.started() && out_.done >= ending_->last &&
      std::all_of(ranks.begin(), ranks.end(), [&](Rank rank) { return has_left(rank); })) {
    leaving_.start({});
  }
  send_votes(Purpose::kLeave, 0, leaving_);
  if (leaving_.complete(spread_)) finish_end();
}

void Participant::finish_end() {
  slots_.clear();
  while (!coming_.empty()) discard(coming_.begin()->first);
  ended_ = true;
  Action action;
  action.kind = Action::Kind::kEnded;
  action.status = ending_->status;
  out_.push(std::move(action));
}

}  // namespace teletensor::collective
