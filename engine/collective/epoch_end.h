// EpochEnd: why and after which number the collectives of an epoch end.
#pragma once

#include <optional>
#include <set>

#include "engine/collective/message.h"
#include "engine/collective/vote.h"

namespace teletensor::collective {

// The reason and the number at which collectives end. Collectives after `last` fail with the
// status.
struct Ending {
  Number last = 0;
  core::Status status;
  Rank left = kNoRank;  // the rank that has left; kNoRank: transfers have ended as well
  bool final() const { return left == kNoRank; }
};

// Owns the ending of an epoch at one place. The ending is set at most once, and after that only
// becomes earlier or final. The epoch itself is over when finish() was called; then the ending does
// not change any more.
class EpochEnd {
 public:
  explicit EpochEnd(std::optional<Ending> ending) : ending_(std::move(ending)) {}

  // None if no rank has left or is lost.
  const std::optional<Ending>& ending() const { return ending_; }
  // Returns true if sends and receives have ended as well.
  bool final() const { return ending_ && ending_->final(); }
  bool ended() const { return ended_; }
  // The reason why a collective can no longer complete, or null.
  const core::Status* reason(Number number) const {
    return ending_ && number > ending_->last ? &ending_->status : nullptr;
  }
  // Returns true if the epoch has ended for the subject of the message. The owner then drops the
  // message's payload and calls Participant::receive() without one, because the message still
  // reports its sender's progress.
  bool over(const Message& message) const;
  // The message that tells another place of the ending. Precondition: there is one.
  Message message() const;

  // If there are several endings, the lowest number applies, and transfers end with the first one
  // that is final. Returns false if the ending changes nothing.
  bool add(Ending ending);
  void finish() { ended_ = true; }

  // ---- ranks that leave
  // The vote of the places whose ranks have all left.
  Fold& leaving() { return leaving_; }
  // A place has reported to this one that its ranks have left.
  void add_left(Place place) { left_places_.insert(place); }
  bool has_left(Place place) const { return left_places_.contains(place); }

 private:
  std::optional<Ending> ending_;
  Fold leaving_;
  std::set<Place> left_places_;
  bool ended_ = false;
};

}  // namespace teletensor::collective
