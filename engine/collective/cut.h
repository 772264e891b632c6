// Cut: how all ranks of a group come to rest between the same two numbers, and go on.
//
// A daemon that drains, or whose rank was interrupted, starts a generation of three folds over all
// places. Hold: nobody announces a number any more that nobody has announced; the highest announced
// one is the cut. Rest: everything up to the cut has finished here. Release: this place has no wish
// to stay at rest. After rest a daemon may write its image and restart: what it had sent and heard
// of this generation is said again.
#pragma once

#include <map>
#include <optional>

#include "engine/collective/vote.h"

namespace teletensor::collective {

class Cut {
 public:
  struct Generation {
    Fold hold, rest, release;
  };

  Cut(const Spread& spread, Number generation, Number number);

  Number generation() const { return generation_; }
  Generation& current() { return generations_[generation_]; }
  // The one before, nullptr in the first one: a place that restarted in it may not have heard all.
  const Generation* previous() const;
  // nullptr: over. The next one may be heard of before the current one is over here.
  Generation* find(Number generation);

  bool holding() const { return holding_; }
  bool allows(Number number) const { return !holding_ || (number_ && number <= *number_); }
  std::optional<Number> number() const { return number_; }
  bool at_rest() const { return at_rest_; }

  // Steps, in this order.
  void hold(Number announced);
  void know(Number number) { number_ = number; }
  void rest() { at_rest_ = true; }
  void go_on();

  // This place keeps the group at rest: because it drains, because it was interrupted, or both.
  bool drains = false, interrupts = false;
  // It was interrupted: the next generation that it starts says so, and `interrupts` holds from
  // then.
  bool interrupt_next = false;
  bool keeps_at_rest() const { return drains || interrupts; }

 private:
  Number generation_;
  std::map<Number, Generation> generations_;
  bool holding_ = false, at_rest_ = false;
  std::optional<Number> number_;
};

}  // namespace teletensor::collective
