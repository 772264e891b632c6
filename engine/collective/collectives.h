// Collectives: the collectives of one place in one epoch that have not finished everywhere.
#pragma once

#include <cstddef>
#include <map>

#include "engine/collective/collective.h"
#include "engine/collective/cut.h"

namespace teletensor::collective {

// Owns the collectives that are not retired, and the staging of payloads that are on their way to
// them. Collectives are announced and finish in the order of their numbers, so retired <= finished
// (Outbox::done) <= announced, and no number is announced while a cut forbids it.
class Collectives {
 public:
  // All collectives up to `number` have run. The references must outlive this object.
  Collectives(Context& context, const Cut& cut, Number number);

  // All collectives up to this number are announced.
  Number announced() const { return announced_; }
  // Makes the collective if it is not known.
  Collective& at(Number number) {
    return collectives_.try_emplace(number, context_, number).first->second;
  }
  // Null if it is not known.
  Collective* find(Number number);
  // Whether peers may send messages about this number.
  bool acceptable(Number number) const {
    return number > context_.out.done && number <= context_.out.done + 2 * context_.limits.ahead;
  }
  // Returns true if ranks of this place wait for a collective that is not finished.
  bool has_open_deposits() const;
  // The number of entries in its tables.
  std::size_t open() const { return collectives_.size() + coming_.size(); }

  // Takes all steps that are possible. An error means that a peer has violated the protocol; then
  // the epoch must end.
  core::Status advance();
  // Retires the collectives that have finished at all places.
  void retire();
  // Tells the places with partial sums for this one that the turn of a collective has come.
  void tell_progress();

  // ---- payloads of messages; see Participant
  core::Result<Slice> expect(Place from, const Message& message);
  core::Status receive(Place from, const Message& message, const Slice& at);
  // Frees the staging that expect() reserved for a payload from this place, if the payload did not
  // arrive.
  void discard(Place from);
  // Sends what a peer's progress allows.
  void pump();
  void reduced(std::uint64_t job);

  // Ends the collectives after `last`.
  void end(Number last, const core::Status& status);
  void clear();
  void restarted(Place place);

  // ---- rest between two collectives; see Cut
  // Forgets the announcements after `number`, which cannot have been decided.
  void withdraw(Number number);
  // All places rest after `number`; deposits after it are dropped if `interrupted`.
  void rest(Number number, bool interrupted);
  // See Collective::drop_lost(). rest() precedes it.
  void drop_lost(const std::vector<Rank>& before);

 private:
  Context& context_;
  const Cut& cut_;
  std::map<Number, Collective> collectives_;
  // Staging that expect() returned and receive() has not taken yet.
  std::map<Place, Buffer> coming_;
  // Index of the staging of the next partial sums received.
  std::uint64_t next_staging_ = Exchange::kOwnStaging;
  Number announced_, everywhere_, retired_;
};

}  // namespace teletensor::collective
