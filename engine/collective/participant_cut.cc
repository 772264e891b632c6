// Participant's functions that bring the group to rest.
#include <algorithm>

#include "engine/collective/participant.h"

namespace teletensor::collective {

void Participant::drain() {
  if (end_.ended()) return;
  cut_.drains = true;
  if (cut_.rests()) context_.out.tell(Action::Kind::kAtRest, last_before_cut());
  advance();
}

bool Participant::come_to_rest(bool still, bool open) {
  if (end_.ended()) return false;
  cut_.until_still = true;
  if (open) {
    cut_.lowers = true;
    if (!cut_.rests()) drain();
    return cut_.rests();
  }
  if (!cut_.drains) {
    // Where other places drain, the vote of this one says whether it is still.
    if (still || (cut_.holding() && !cut_.at_rest())) drain();
    return false;
  }
  if (cut_.rests() && still) return true;
  if (cut_.rests()) end_drain();
  return false;
}

void Participant::end_drain() {
  cut_.drains = cut_.lowers = false;
  if (!end_.ended()) advance();
}

// A generation that has begun cannot become an interrupt, because other places may already be at
// rest in it without having dropped their deposits.
void Participant::interrupt() {
  if (end_.ended()) return;
  cut_.interrupt_next = true;
  advance();
}

void Participant::end_interrupt() {
  if (cut_.interrupts) {
    cut_.interrupts = false;
  } else {
    cut_.interrupt_next = false;
  }
  if (!end_.ended()) advance();
}

void Participant::advance_cut() {
  Cut::Generation& now = cut_.current();
  // A place that has released this generation may begin another one when this one is over.
  const bool heals = !context_.departures.due(context_.out.done).empty();
  if (!cut_.holding() &&
      (cut_.keeps_at_rest() || cut_.interrupt_next || heals || now.hold.heard())) {
    cut_.hold(collectives_.announced(), heals);
  }
  if (!cut_.holding()) return;
  context_.send_votes(Purpose::kHold, cut_.generation(), now.hold);
  if (!now.hold.complete(context_.spread)) return;
  if (!cut_.number()) {
    cut_.know(now.hold.result().announced);
    context_.out.tell(Action::Kind::kRunTo, *cut_.number());
    return advance();
  }
  if (!lower_cut()) return;
  // Transfers run until this point, because a rank may need them to reach the cut.
  if (!now.rest.started() && context_.out.done >= last_before_cut()) point_to_point_.hold(true);
  if (!now.rest.started() && context_.out.done >= last_before_cut() && point_to_point_.at_rest()) {
    Vote vote;
    const bool waits = cut_.until_still && !cut_.lowers && !now.lower.started();
    if (cut_.drains && waits && has_open_deposits()) vote.announced = *cut_.number() + 1;
    vote.claims = context_.departures.due(context_.out.done);
    collectives_.withdraw(*cut_.number());
    now.rest.start(std::move(vote));
  }
  context_.send_votes(Purpose::kRest, cut_.generation(), now.rest);
  if (!now.rest.complete(context_.spread)) return;
  if (!cut_.at_rest()) {
    cut_.rest();
    const bool interrupted = now.hold.result().interrupted;
    collectives_.rest(*cut_.number(), interrupted);
    if (interrupted) context_.departures.dropped_after(*cut_.number());
    const std::vector<Rank> before = context_.ranks();
    if (const std::vector<Claim>& lost = now.rest.result().claims; !lost.empty()) {
      context_.lose(lost, last_before_cut());
      collectives_.drop_lost(before);
    }
    if (context_.ranks().empty()) return end_without_ranks();
    context_.out.tell(Action::Kind::kAtRest, last_before_cut(), interrupted);
  }
  if (cut_.may_release(context_.spread) && !now.release.started()) now.release.start({});
  context_.send_votes(Purpose::kRelease, cut_.generation(), now.release);
  if (!now.release.complete(context_.spread)) return;
  cut_.go_on();
  point_to_point_.hold(false);
  context_.leave_out_lost();
  context_.out.tell(Action::Kind::kGoOn);
  advance();
}

// Ends the epoch for a place that has lost all its ranks. The others continue when it has voted for
// the release, so that it knows all votes that it needs.
void Participant::end_without_ranks() {
  cut_.current().release.start({});
  context_.send_votes(Purpose::kRelease, cut_.generation(), cut_.current().release);
  const core::Status status(core::Code::kDeadlineExceeded,
                            "group \"" + context_.name + "\": all ranks of this daemon are lost");
  (void)end_.add({context_.out.done, status});
  finish_end();
}

// Votes on a lower cut if a place asks for it. Returns false if the place cannot rest before it
// knows the votes of all places.
bool Participant::lower_cut() {
  Cut::Generation& now = cut_.current();
  if (now.rest.complete(context_.spread)) return true;
  // The ranks of a place do not reach the cut either if one of them is lost.
  const bool lowers = (cut_.drains && cut_.lowers) ||
                      (!now.rest.started() && !context_.departures.due(context_.out.done).empty());
  if (!now.lower.started() && (lowers || now.lower.heard())) {
    Vote vote;
    vote.done = collectives_.announced();
    now.lower.start(std::move(vote));
    cut_.know(collectives_.announced());  // it announces nothing more before the release
  }
  if (!now.lower.started()) return true;
  const bool known = now.lower.complete(context_.spread);
  context_.send_votes(Purpose::kLower, cut_.generation(), now.lower);
  if (!now.lower.complete(context_.spread)) return now.rest.started();
  if (known || now.rest.started()) return true;
  cut_.know(std::max(now.lower.result().done, context_.out.done));
  context_.out.tell(Action::Kind::kRunTo, *cut_.number());
  return true;
}

bool Participant::has_open_deposits() const {
  const std::vector<Rank>& ranks = context_.ranks();
  return collectives_.has_open_deposits() ||
         std::any_of(ranks.begin(), ranks.end(),
                     [&](Rank rank) { return point_to_point_.owes(rank); });
}

// The last collective that runs before the group comes to rest. An announced collective may fail
// because a rank has left before it.
Number Participant::last_before_cut() const {
  return end_.ending() ? std::min(*cut_.number(), end_.ending()->last) : *cut_.number();
}

void Participant::held_too_long() {
  if (end_.ended() || !cut_.holding()) return;
  const Cut::Generation& now = cut_.current();
  const Fold& fold = !now.hold.complete(context_.spread)   ? now.hold
                     : !now.rest.complete(context_.spread) ? now.rest
                                                           : now.release;
  std::string text = "group \"" + context_.name + "\": held for too long, waits for";
  for (const Place place : fold.missing(context_.spread)) {
    const std::vector<Rank>& ranks = context_.group.ranks_of(place);
    text += ranks.empty() ? " a daemon whose ranks are lost" : " " + rank_text(ranks.front());
  }
  end(0, core::Code::kDeadlineExceeded, text);
}

void Participant::restarted(Place place) {
  if (end_.ended() && context_.ranks().empty()) return;  // the others have continued
  if (end_.ending()) context_.out.send(place, end_.message());
  if (end_.ended()) return;
  point_to_point_.restarted(place);
  collectives_.restarted(place);
  const auto again = [&](Purpose purpose, Number generation, const Fold& fold) {
    context_.repeat_votes(place, purpose, generation, fold);
  };
  if (const Cut::Generation* previous = cut_.previous()) {
    again(Purpose::kRelease, cut_.generation() - 1, previous->release);
  }
  again(Purpose::kLeave, 0, end_.leaving());
  again(Purpose::kHold, cut_.generation(), cut_.current().hold);
  again(Purpose::kRest, cut_.generation(), cut_.current().rest);
  again(Purpose::kRelease, cut_.generation(), cut_.current().release);
  advance();
}

Participant::Image Participant::image() const {
  if (!cut_.at_rest()) return {context_.out.done, 0, point_to_point_.image(), end_.ending()};
  return {last_before_cut(), cut_.generation(), point_to_point_.image(), end_.ending()};
}

}  // namespace teletensor::collective
