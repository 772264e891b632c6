// Participant's functions that bring the group to rest.
#include <algorithm>

#include "engine/collective/participant.h"

namespace teletensor::collective {

void Participant::drain() {
  if (ended_) return;
  cut_.drains = true;
  if (cut_.rests()) tell_rest(false);
  advance();
}

bool Participant::come_to_rest(bool still, bool open) {
  if (ended_) return false;
  cut_.until_still = true;
  if (open) {
    cut_.lowers = true;
    if (!cut_.rests()) drain();
    return cut_.rests();
  }
  if (!cut_.drains) {
    // Where other places drain, the vote of this one says whether it is still.
    if (still || (held() && !cut_.at_rest())) drain();
    return false;
  }
  if (cut_.rests() && still) return true;
  if (cut_.rests()) end_drain();
  return false;
}

void Participant::end_drain() {
  cut_.drains = cut_.lowers = false;
  if (!ended_) advance();
}

// A generation that has begun cannot become an interrupt, because other places may already be at
// rest in it without having dropped their deposits.
void Participant::interrupt() {
  if (ended_) return;
  cut_.interrupt_next = true;
  advance();
}

void Participant::end_interrupt() {
  if (cut_.interrupts) {
    cut_.interrupts = false;
  } else {
    cut_.interrupt_next = false;
  }
  if (!ended_) advance();
}

void Participant::advance_cut() {
  Cut::Generation& now = cut_.current();
  // A place that has released this generation may begin another one when this one is over.
  if (!cut_.holding() && (cut_.keeps_at_rest() || cut_.interrupt_next || now.hold.heard())) {
    cut_.hold(announced_);
  }
  if (!cut_.holding()) return;
  send_votes(Purpose::kHold, cut_.generation(), now.hold);
  if (!now.hold.complete(spread_)) return;
  if (!cut_.number()) {
    cut_.know(now.hold.result().announced);
    Action action;
    action.kind = Action::Kind::kRunTo;
    action.number = *cut_.number();
    out_.push(std::move(action));
    return advance();
  }
  if (!lower_cut()) return;
  // Transfers run until this point, because a rank may need them to reach the cut.
  if (!now.rest.started() && out_.done >= last_before_cut()) point_to_point_.hold(true);
  if (!now.rest.started() && out_.done >= last_before_cut() && point_to_point_.at_rest()) {
    Vote vote;
    const bool waits = cut_.until_still && !cut_.lowers && !now.lower.started();
    if (cut_.drains && waits && has_open_deposits()) vote.announced = *cut_.number() + 1;
    announced_ = std::min(announced_, *cut_.number());
    for (auto at = slots_.upper_bound(announced_); at != slots_.end(); ++at) at->second.withdraw();
    now.rest.start(std::move(vote));
  }
  send_votes(Purpose::kRest, cut_.generation(), now.rest);
  if (!now.rest.complete(spread_)) return;
  if (!cut_.at_rest()) reach_rest();
  if (may_release() && !now.release.started()) now.release.start({});
  send_votes(Purpose::kRelease, cut_.generation(), now.release);
  if (!now.release.complete(spread_)) return;
  cut_.go_on();
  point_to_point_.hold(false);
  Action action;
  action.kind = Action::Kind::kGoOn;
  out_.push(std::move(action));
  advance();
}

// Votes on a lower cut if a place asks for it. Returns false if the place cannot rest before it
// knows the votes of all places.
bool Participant::lower_cut() {
  Cut::Generation& now = cut_.current();
  if (now.rest.complete(spread_)) return true;
  if (!now.lower.started() && ((cut_.drains && cut_.lowers) || now.lower.heard())) {
    Vote vote;
    vote.done = announced_;
    now.lower.start(std::move(vote));
    cut_.know(announced_);  // it announces nothing more before the release
  }
  if (!now.lower.started()) return true;
  const bool known = now.lower.complete(spread_);
  send_votes(Purpose::kLower, cut_.generation(), now.lower);
  if (!now.lower.complete(spread_)) return now.rest.started();
  if (known || now.rest.started()) return true;
  cut_.know(std::max(now.lower.result().done, out_.done));
  Action action;
  action.kind = Action::Kind::kRunTo;
  action.number = *cut_.number();
  out_.push(std::move(action));
  return true;
}

void Participant::Slot::withdraw() {
  if (exchange) exchange->release();
  exchange.reset();
}

// If a place that drains still has open deposits, all places end their drains, so that its ranks
// get what they wait for.
void Participant::reach_rest() {
  const Cut::Generation& now = cut_.current();
  const bool useless = now.rest.result().announced > *cut_.number();
  cut_.rest(useless && !now.hold.result().interrupted);
  everywhere_ = *cut_.number();
  retire();
  // All announcements of collectives after the cut are forgotten; after an interrupt, their
  // deposits are dropped as well.
  const bool interrupted = cut_.current().hold.result().interrupted;
  if (interrupted) {
    for (auto& [number, slot] : slots_) {
      drop_early(slot);
      complete(number, slot, {core::Code::kCancelled, "interrupted"});
    }
    slots_.clear();
  }
  for (auto& [number, slot] : slots_) {
    drop_early(slot);
    slot.announce = Fold();
  }
  tell_rest(interrupted);
}

// A place that only follows another place stays at rest with it, so that it may stop as well while
// the leading place is away.
bool Participant::may_release() {
  if (cut_.keeps_at_rest()) return false;
  return spread_.levels.size() != 1 || cut_.leads() || cut_.current().release.heard();
}

bool Participant::has_open_deposits() const {
  for (auto at = slots_.upper_bound(out_.done); at != slots_.end(); ++at) {
    const auto& deposits = at->second.deposits;
    if (std::any_of(deposits.begin(), deposits.end(),
                    [](const auto& d) { return d.has_value(); })) {
      return true;
    }
  }
  const std::vector<Rank>& ranks = group_.ranks_of(place_);
  return std::any_of(ranks.begin(), ranks.end(),
                     [&](Rank rank) { return point_to_point_.owes(rank); });
}

// The last collective that runs before the group comes to rest. An announced collective may fail
// because a rank has left before it.
Number Participant::last_before_cut() const {
  return ending_ ? std::min(*cut_.number(), ending_->last) : *cut_.number();
}

void Participant::tell_rest(bool interrupted) {
  Action action;
  action.kind = Action::Kind::kAtRest;
  action.number = last_before_cut();
  action.interrupted = interrupted;
  out_.push(std::move(action));
}

void Participant::held_too_long() {
  if (ended_ || !held()) return;
  const Cut::Generation& now = cut_.current();
  const Fold& fold = !now.hold.complete(spread_)   ? now.hold
                     : !now.rest.complete(spread_) ? now.rest
                                                   : now.release;
  std::string text = "group \"" + name_ + "\": held for too long, waits for";
  for (const Place place : fold.missing(spread_)) {
    text += " rank " + std::to_string(group_.ranks_of(place).front());
  }
  end(0, core::Code::kDeadlineExceeded, text);
}

void Participant::restarted(Place place) {
  if (ending_) tell_end(place);
  if (ended_) return;
  point_to_point_.restarted(place);
  for (auto& [number, slot] : slots_) slot.queried.erase(place);
  const auto again = [&](Purpose purpose, Number generation, const Fold& fold) {
    for (int level = 0; level < fold.told(); ++level) {
      for (const Place to : spread_.levels[static_cast<std::size_t>(level)].to) {
        if (to == place) send_vote(to, purpose, generation, level, fold);
      }
    }
  };
  if (const Cut::Generation* previous = cut_.previous()) {
    again(Purpose::kRelease, cut_.generation() - 1, previous->release);
  }
  again(Purpose::kLeave, 0, leaving_);
  again(Purpose::kHold, cut_.generation(), cut_.current().hold);
  again(Purpose::kRest, cut_.generation(), cut_.current().rest);
  again(Purpose::kRelease, cut_.generation(), cut_.current().release);
  advance();
}

Participant::Image Participant::image() const {
  if (!cut_.at_rest()) return {out_.done, 0, point_to_point_.image(), ending_};
  return {last_before_cut(), cut_.generation(), point_to_point_.image(), ending_};
}

}  // namespace teletensor::collective
