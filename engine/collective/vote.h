// Vote: the merged statement of the ranks of a block of places. Fold: distributes votes level by
// level, so that every place learns the vote of all ranks (see Group).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/collective/group.h"
#include "engine/core/status.h"

namespace teletensor::collective {

// The maximum number of bytes of a text in a message. The texts of owners are shortened so that no
// message exceeds it; a message of a peer with a longer text is refused.
inline constexpr std::size_t kMaxText = 64 << 10;
inline constexpr std::size_t kMaxReason = 8
                                          << 10;  // maximum for an owner's text: why a rank failed
inline constexpr std::size_t kMaxNote = 512;  // maximum for an owner's text: a line, a rank's state

// A call, the lowest rank that makes it, and the number of ranks that make it.
struct Claim {
  Rank rank = kNoRank;
  std::uint64_t fingerprint = 0;
  std::uint32_t ranks = 1;
  std::string text;
};

struct Vote {
  // These members are used for the announcement of a collective.
  Rank lowest = kNoRank;
  std::uint64_t fingerprint = 0;  // fingerprint of the call of `lowest`
  bool equal = true;              // all fingerprints are equal
  std::uint64_t balance = 0;
  Rank failed = kNoRank;  // the lowest rank that cannot take part
  // All collectives up to this number have finished, on every place. For a lower cut: are
  // announced.
  Number done = ~Number{0};
  // These members are used for a cut.
  Number announced = 0;  // the highest number of an announced collective at any place
  bool interrupted = false;
  // Texts are sent in the second fold of a collective that fails; an announcement has none.
  std::vector<Claim> claims;  // ascending by rank, at most kClaims
  core::Code code = core::Code::kOk;
  std::string failure;  // text of `failed`

  static constexpr std::size_t kClaims = 4;
  bool good() const { return equal && balance == 0 && failed == kNoRank; }
};

// Merging is associative. All places merge the same votes in the order of places, so that all get
// the same result.
Vote merge(const Vote& a, const Vote& b);

// The places to which a place sends its votes and from which it receives votes, for one epoch.
struct Spread {
  struct Level {
    std::vector<Place> from;  // one place of each sibling, in their order
    std::size_t own = 0;      // the number of siblings before the own block
    std::vector<Place> to;
  };
  std::vector<Level> levels;
  Spread() = default;
  Spread(const Group& group, Place place);
};

// One vote of all places. Votes of other places may arrive before start().
class Fold {
 public:
  bool started() const { return !own_.empty(); }
  // Returns true if a vote of another place has arrived and is not merged yet.
  bool heard() const { return !heard_.empty(); }
  void start(Vote vote) { own_.push_back(std::move(vote)); }
  // Called after a restart if the fold was complete and its votes had no contents. With `told`,
  // advance() does not return them again.
  void assume(const Spread& spread, bool told) {
    own_.resize(spread.levels.size() + 1);
    sent_ = told ? spread.levels.size() : 0;
  }
  // The number of levels that advance() has returned.
  int told() const { return static_cast<int>(sent_); }
  // Returns false if the place does not send to this one at that level, or for a second vote.
  bool receive(const Spread& spread, int level, Place from, Vote vote);
  // Merges the votes that have arrived. Returns the levels whose vote is new and must be sent to
  // the level's `to`.
  std::vector<int> advance(const Spread& spread);
  const Vote& at(int level) const { return own_[static_cast<std::size_t>(level)]; }
  int reached() const { return static_cast<int>(own_.size()) - 1; }
  bool complete(const Spread& spread) const { return own_.size() == spread.levels.size() + 1; }
  const Vote& result() const { return own_.back(); }
  // The places whose votes are missing for the next level.
  std::vector<Place> missing(const Spread& spread) const;

 private:
  std::vector<Vote> own_;  // votes of the own block, for each level reached
  std::size_t sent_ = 0;   // number of levels that advance() has returned
  std::map<std::pair<int, Place>, Vote> heard_;
};

}  // namespace teletensor::collective
