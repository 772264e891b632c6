// IdleLarge contains the large blocks of a device that no session uses, and finds the best one for
// a request. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "engine/memory/on_behalf.h"

namespace teletensor::memory {

class IdleLarge {
 public:
  struct Block {
    std::size_t capacity;
    void* data;
    OwnerId owner;  // The session whose bytes it contains.
    friend auto operator<=>(const Block&, const Block&) = default;
  };

  bool empty() const { return blocks_.empty(); }
  std::uint64_t bytes() const { return bytes_; }
  // All blocks, from the smallest to the largest.
  const std::set<Block>& all() const { return blocks_; }

  // Without memory for its records it throws std::bad_alloc and changes nothing.
  void add(const Block& block);
  // Removes and returns the smallest block of at least `bytes` bytes: one of `owner`, which need
  // not be zeroed, or else one of any session. `fits` decides whether a capacity is a good fit.
  std::optional<Block> take(std::size_t bytes, OwnerId owner,
                            const std::function<bool(std::size_t capacity)>& fits);
  Block take_largest();
  // Removes and returns blocks that were not needed since the last call: together at most the
  // smallest number of bytes that were idle meanwhile.
  std::vector<Block> take_unneeded();

 private:
  struct ByOwner {
    bool operator()(const Block& a, const Block& b) const {
      if (a.owner != b.owner) return a.owner < b.owner;
      return a < b;
    }
  };

  void remove(const Block& block);

  // Both sets contain all blocks: one finds the best fit among the blocks of all sessions, the
  // other the best fit among the blocks of one session.
  std::set<Block> blocks_;
  std::set<Block, ByOwner> by_owner_;
  std::uint64_t bytes_ = 0;
  std::uint64_t least_bytes_ = 0;  // Smallest value of bytes_ since the last take_unneeded().
};

}  // namespace teletensor::memory
