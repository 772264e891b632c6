#include "engine/collective/cut.h"

#include <utility>

namespace teletensor::collective {

Cut::Cut(const Spread& spread, Number generation, Number number)
    : generation_(generation == 0 ? 1 : generation) {
  Generation& first = generations_[generation_];
  if (generation == 0) return;
  first.hold.assume(spread, true);
  first.rest.assume(spread, false);
  holding_ = at_rest_ = leads_ = true;
  number_ = number;
  drains = true;
}

const Cut::Generation* Cut::previous() const {
  const auto found = generations_.find(generation_ - 1);
  return found == generations_.end() ? nullptr : &found->second;
}

Cut::Generation* Cut::find(Number generation) {
  if (generation < generation_) return nullptr;
  return &generations_[generation];
}

void Cut::hold(Number announced, bool heals) {
  holding_ = true;
  leads_ = keeps_at_rest() || interrupt_next || heals;
  Vote vote;
  vote.announced = announced;
  vote.interrupted = std::exchange(interrupt_next, false);
  interrupts = interrupts || vote.interrupted;
  current().hold.start(std::move(vote));
}

void Cut::rest() {
  const Generation& now = current();
  at_rest_ = true;
  repeats_ = now.rest.result().announced > *number_ && !now.hold.result().interrupted;
  heals_ = !now.rest.result().claims.empty();
  if (repeats_ || heals_) drains = false;
}

void Cut::go_on() {
  generations_.erase(generation_++ - 1);
  holding_ = at_rest_ = heals_ = false;
  number_.reset();
}

}  // namespace teletensor::collective
