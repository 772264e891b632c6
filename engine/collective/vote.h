// Vote: what the ranks of a block of places say together; Fold: how every place learns the vote of
// all ranks, level by level (see Group).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/collective/group.h"
#include "engine/core/status.h"

namespace teletensor::collective {

// Bytes of a text in a message. The texts of owners are shortened so that a message has no longer
// one; a longer one of a peer is refused.
inline constexpr std::size_t kMaxText = 64 << 10;
inline constexpr std::size_t kMaxReason = 8 << 10;  // of an owner: why a rank has failed or is lost
inline constexpr std::size_t kMaxNote = 512;        // of an owner: a line, what a rank does
// The text, or its first characters in UTF-8 that fit into so many bytes.
std::string shortened(std::string text, std::size_t bytes);

// Ranks that make one call, by the lowest of them.
struct Claim {
  Rank rank = kNoRank;
  std::uint64_t fingerprint = 0;
  std::uint32_t ranks = 1;
  std::string text;
};

struct Vote {
  // Of the announcement of a number.
  Rank lowest = kNoRank;
  std::uint64_t fingerprint = 0;  // of `lowest`
  bool equal = true;              // all fingerprints
  std::uint64_t balance = 0;
  Rank failed = kNoRank;     // the lowest rank that cannot take part
  Number done = ~Number{0};  // all up to this one have finished, on every place
  // Of a cut.
  Number announced = 0;  // the highest one of any place
  bool interrupted = false;
  // Texts, of which an announcement has none: the second fold of a number that fails brings them.
  std::vector<Claim> claims;  // ascending by rank, at most kClaims
  core::Code code = core::Code::kOk;
  std::string failure;  // of `failed`

  static constexpr std::size_t kClaims = 4;
  bool good() const { return equal && balance == 0 && failed == kNoRank; }
};

// Associative; equal on all places because all merge the same votes in the order of their places.
Vote merge(const Vote& a, const Vote& b);

// Whom a place sends its votes to and from whom it hears, computed once for an epoch.
struct Spread {
  struct Level {
    std::vector<Place> from;  // one of each sibling, in their order
    std::size_t own = 0;      // the siblings before the own block
    std::vector<Place> to;
  };
  std::vector<Level> levels;
  Spread() = default;
  Spread(const Group& group, Place place);
};

// One vote of all places. Votes may come before the own one.
class Fold {
 public:
  bool started() const { return !own_.empty(); }
  // A vote of another place is here.
  bool heard() const { return !heard_.empty(); }
  void start(Vote vote) { own_.push_back(std::move(vote)); }
  // After a restart: it was complete, all votes alike. `told`: advance() does not tell them again.
  void assume(const Spread& spread, bool told) {
    own_.resize(spread.levels.size() + 1);
    sent_ = told ? spread.levels.size() : 0;
  }
  // The levels that advance() has told.
  int told() const { return static_cast<int>(sent_); }
  // False: not from a place that sends to this one at that level, or a second time.
  bool receive(const Spread& spread, int level, Place from, Vote vote);
  // Goes on as far as votes have come. The levels whose vote is new: to be sent to their `to`.
  std::vector<int> advance(const Spread& spread);
  const Vote& at(int level) const { return own_[static_cast<std::size_t>(level)]; }
  int reached() const { return static_cast<int>(own_.size()) - 1; }
  bool complete(const Spread& spread) const { return own_.size() == spread.levels.size() + 1; }
  const Vote& result() const { return own_.back(); }
  // Places whose votes are missing for the next step.
  std::vector<Place> missing(const Spread& spread) const;

 private:
  std::vector<Vote> own_;  // of the own block of each level reached
  std::size_t sent_ = 0;   // levels that advance() has told
  std::map<std::pair<int, Place>, Vote> heard_;
};

}  // namespace teletensor::collective
