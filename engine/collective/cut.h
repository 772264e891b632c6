// Cut: brings all ranks of a group to rest between the same two collectives, and lets them continue
// later.
//
// A daemon that drains, or whose rank was interrupted, starts a generation of three votes over all
// places. After its vote in the first one, hold, a place announces no further collective; the
// highest number of an announced collective at any place is the cut. A place votes in the second
// one, rest, when it has finished all collectives up to the cut; if it drains and has deposits
// after the cut, its vote says so, and the cut is of no use. It votes in the third one, release,
// when it no longer keeps the group at rest. A daemon at rest may write its image and restart: its
// votes of this generation, and those of its peers, are then sent again.
//
// The ranks of some place may not reach the cut, because their programs send nothing. A place that
// drains and does not wait for them starts one more vote between hold and rest: lower. With its
// vote a place announces no further collective, and the lowest number up to which all places have
// announced becomes the cut. No collective after it can have been decided, so at rest all places
// forget what they know about later announcements, and announce again after the release. The vote
// is not repeated after a restart: a place is at rest only when all others have heard its vote, or
// have reached the higher cut, which is then the same number.
//
// An elastic group loses ranks in the same way: a place whose rank is lost starts a generation with
// a lower cut and names the rank in its rest vote, so all places continue without it after the same
// collective, or none does.
#pragma once

#include <map>
#include <optional>

#include "engine/collective/vote.h"

namespace teletensor::collective {

// Owns the generation that is not over, with its votes and the number at which it cuts. The steps
// hold, know, rest and go_on follow one another in each generation.
class Cut {
 public:
  struct Generation {
    Fold hold, lower, rest, release;
  };

  Cut(const Spread& spread, Number generation, Number number);

  // The number of cuts so far. Two places that rest in the same cut have the same generation.
  Number generation() const { return generation_; }
  Generation& current() { return generations_[generation_]; }
  // The generation before the current one; nullptr in the first one. A place that restarted in it
  // may not have received all of its votes.
  const Generation* previous() const;
  // Returns nullptr if the generation is over. Votes of the next generation may arrive before the
  // current one is over at this place.
  Generation* find(Number generation);

  bool holding() const { return holding_; }
  bool allows(Number number) const { return !holding_ || (number_ && number <= *number_); }
  std::optional<Number> number() const { return number_; }
  bool at_rest() const { return at_rest_; }
  // The place drains, and the group stays at rest until it ends that.
  bool rests() const {
    return at_rest_ && drains && !heals_ && !generations_.at(generation_).release.started();
  }
  // The place has started the generation itself, and not after a vote of another place.
  bool leads() const { return leads_; }
  // Returns true if the last cut was of no use, because ranks of a place that is about to stop need
  // further deposits of other places' ranks before their own deposits are finished.
  bool repeats() const { return repeats_; }
  // Whether this place may vote for the release. A place that only follows another place stays at
  // rest with it, so that it may stop as well while the leading place is away.
  bool may_release(const Spread& spread) {
    if (interrupts || (drains && !heals_)) return false;
    return spread.levels.size() != 1 || leads() || heals_ || current().release.heard();
  }

  // The steps of a generation, in this order. `heals`: this place starts it because of lost ranks.
  void hold(Number announced, bool heals);
  void know(Number number) { number_ = number; }
  // If a place that drains still has open deposits, all places end their drains, so that its ranks
  // get what they wait for. They also do so if the group loses ranks, because the votes of this
  // generation have contents that an image does not contain.
  void rest();
  void go_on();

  // The reasons why this place keeps the group at rest: it drains, it was interrupted, or both.
  bool drains = false, interrupts = false;
  // This place was interrupted: the next generation that it starts will say so and set
  // `interrupts`.
  bool interrupt_next = false;
  // Its drain is of no use while its ranks have something open.
  bool until_still = false;
  // Its drain does not wait for ranks that do not reach the cut.
  bool lowers = false;
  bool keeps_at_rest() const { return drains || interrupts; }

 private:
  Number generation_;
  std::map<Number, Generation> generations_;
  bool holding_ = false, at_rest_ = false, leads_ = false, repeats_ = false;
  bool heals_ = false;  // the group loses ranks in this generation
  std::optional<Number> number_;
};

}  // namespace teletensor::collective
