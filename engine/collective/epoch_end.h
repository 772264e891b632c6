// EpochEnd: why and after which number the collectives of an epoch end. Departures: ranks that an
// elastic group loses, without an end.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

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

// Departures owns the ranks of one place that are lost, until their elastic group continues without
// them.
class Departures {
 public:
  // The rank takes part in the collectives up to `last`. Does nothing if it was added earlier.
  void add(Rank rank, Number last, std::string text) {
    ranks_.try_emplace(rank, Departure{last, std::move(text)});
  }
  bool has(Rank rank) const { return ranks_.contains(rank); }
  bool empty() const { return ranks_.empty(); }
  // Deposits after `number` were dropped.
  void dropped_after(Number number) {
    for (auto& [rank, departure] : ranks_) departure.last = std::min(departure.last, number);
  }
  // The ranks that take part in no collective after `done`, as many as fit into a vote.
  std::vector<Claim> due(Number done) const {
    std::vector<Claim> claims;
    for (const auto& [rank, departure] : ranks_) {
      if (claims.size() == Vote::kClaims) break;
      if (departure.last <= done) {
        claims.push_back({rank, std::uint64_t{rank} + 1, 1, departure.text});
      }
    }
    return claims;
  }
  void remove(const std::vector<Claim>& claims) {
    for (const Claim& claim : claims) ranks_.erase(claim.rank);
  }

 private:
  struct Departure {
    Number last = 0;
    std::string text;
  };
  std::map<Rank, Departure> ranks_;
};

}  // namespace teletensor::collective
