#include "engine/collective/collectives.h"

#include <algorithm>
#include <utility>

namespace teletensor::collective {

Collectives::Collectives(Context& context, const Cut& cut, Number number)
    : context_(context), cut_(cut), announced_(number), everywhere_(number), retired_(number) {}

Collective* Collectives::find(Number number) {
  const auto found = collectives_.find(number);
  return found == collectives_.end() ? nullptr : &found->second;
}

bool Collectives::has_open_deposits() const {
  return std::any_of(collectives_.upper_bound(context_.out.done), collectives_.end(),
                     [](const auto& each) { return each.second.has_deposits(); });
}

// ---------------------------------------------------------------- steps

core::Status Collectives::advance() {
  Number& done = context_.out.done;
  const auto may_announce = [&](Number number, const Collective& next) {
    if (!next.deposited() || !cut_.allows(number) || number > done + context_.limits.ahead) {
      return false;
    }
    return !next.is_barrier() || done + 1 == number;
  };
  for (bool more = true; more;) {
    more = false;
    Collective* const next = find(announced_ + 1);
    if (next != nullptr && may_announce(announced_ + 1, *next)) {
      ++announced_;
      next->announce();
      more = true;
    }
    for (auto at = collectives_.upper_bound(done);
         at != collectives_.end() && at->first <= announced_; ++at) {
      const auto went_on = at->second.progress();
      everywhere_ = std::max(everywhere_, at->second.finished_everywhere());
      if (!went_on.ok()) return went_on.status();
      more = *went_on || more;
    }
    for (const Collective* first = find(done + 1); first != nullptr && first->finished();
         first = find(done + 1)) {
      ++done;
      more = true;
    }
  }
  return {};
}

// Their `done` arrived with the votes of a later collective. A barrier is announced when all
// earlier collectives have finished, so it retires them.
void Collectives::retire() {
  if (context_.group.places() == 1) everywhere_ = context_.out.done;
  while (retired_ < std::min(everywhere_, context_.out.done)) {
    Action action;
    action.kind = Action::Kind::kRetire;
    action.number = ++retired_;
    collectives_.erase(retired_);
    context_.out.push(std::move(action));
  }
}

void Collectives::tell_progress() {
  Outbox& out = context_.out;
  const Number active = context_.limits.active;
  for (Number number = out.done + 1; number <= out.done + active; ++number) {
    Collective* const found = find(number);
    if (found == nullptr || found->exchange() == nullptr) continue;
    const Exchange& exchange = *found->exchange();
    if (!exchange.started()) continue;
    for (const Place giver : exchange.givers()) {
      if (out.told(giver) + active < number) out.send(giver, Message());
    }
  }
}

// ---------------------------------------------------------------- payloads

core::Result<Slice> Collectives::expect(Place from, const Message& message) {
  if (message.kind != Kind::kPartial && message.kind != Kind::kFinal) {
    return violation("a payload with a message that must not have one");
  }
  if (!acceptable(message.number)) return violation("data of a collective that has ended");
  Collective& collective = at(message.number);
  TT_RETURN_IF_ERROR(collective.check(from, message));
  if (message.kind == Kind::kFinal) return collective.exchange()->expect(from, message);
  const Buffer buffer{message.number, Buffer::Kind::kStaging, next_staging_++};
  context_.out.reserve(buffer, message.payload);
  coming_[from] = buffer;
  return Slice{buffer, 0, message.payload};
}

core::Status Collectives::receive(Place from, const Message& message, const Slice& at) {
  // expect() checked only messages with a payload.
  if (message.payload <= 0 || at.bytes != message.payload) return violation("data without payload");
  const auto coming = coming_.find(from);
  if (message.kind == Kind::kPartial && (coming == coming_.end() || coming->second != at.buffer)) {
    return violation("data that was not announced");
  }
  bool taken = false;
  if (Collective* const collective = find(message.number)) {
    const auto received = collective->receive(from, message, at);
    if (!received.ok()) return received.status();
    taken = *received;
  }
  if (!taken) discard(from);  // the collective has failed since expect()
  coming_.erase(from);
  return {};
}

void Collectives::discard(Place from) {
  const auto coming = coming_.find(from);
  if (coming == coming_.end()) return;
  context_.out.free(coming->second);
  coming_.erase(coming);
}

void Collectives::pump() {
  for (auto& [number, collective] : collectives_) {
    if (Exchange* exchange = collective.exchange()) exchange->pump();
  }
}

void Collectives::reduced(std::uint64_t job) {
  for (auto at = collectives_.upper_bound(context_.out.done); at != collectives_.end(); ++at) {
    Exchange* const exchange = at->second.exchange();
    if (exchange != nullptr && exchange->reduced(job)) return;
  }
}

// ---------------------------------------------------------------- ends and rest

void Collectives::end(Number last, const core::Status& status) {
  for (auto at = collectives_.upper_bound(last); at != collectives_.end();
       at = collectives_.erase(at)) {
    at->second.end(status);
  }
  for (auto at = coming_.begin(); at != coming_.end();) {
    const auto coming = at++;
    if (coming->second.number > last) discard(coming->first);
  }
}

void Collectives::clear() {
  collectives_.clear();
  while (!coming_.empty()) discard(coming_.begin()->first);
}

void Collectives::restarted(Place place) {
  for (auto& [number, collective] : collectives_) collective.restarted(place);
}

void Collectives::withdraw(Number number) {
  announced_ = std::min(announced_, number);
  for (auto at = collectives_.upper_bound(announced_); at != collectives_.end(); ++at) {
    at->second.withdraw();
  }
}

void Collectives::rest(Number number, bool interrupted) {
  everywhere_ = number;
  retire();
  for (auto& [each, collective] : collectives_) {
    if (interrupted) {
      collective.interrupt();
    } else {
      collective.forget_announcement();
    }
  }
  if (interrupted) collectives_.clear();
}

void Collectives::drop_lost(const std::vector<Rank>& before) {
  for (auto& [number, collective] : collectives_) collective.drop_lost(before);
}

}  // namespace teletensor::collective
