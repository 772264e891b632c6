#include "engine/memory/blocks/idle_large.h"

#include <algorithm>

namespace teletensor::memory {

void IdleLarge::add(const Block& block) {
  const auto at = blocks_.insert(block).first;
  try {
    by_owner_.insert(block);
  } catch (...) {
    blocks_.erase(at);
    throw;
  }
  bytes_ += block.capacity;
}

void IdleLarge::remove(const Block& block) {
  by_owner_.erase(block);
  bytes_ -= block.capacity;
  least_bytes_ = std::min(least_bytes_, bytes_);
  blocks_.erase(block);
}

std::optional<IdleLarge::Block> IdleLarge::take(
    std::size_t bytes, OwnerId owner, const std::function<bool(std::size_t capacity)>& fits) {
  std::optional<Block> found;
  if (const auto own = by_owner_.lower_bound({bytes, nullptr, owner});
      own != by_owner_.end() && own->owner == owner && fits(own->capacity)) {
    found = *own;
  } else if (const auto any = blocks_.lower_bound({bytes, nullptr, 0});
             any != blocks_.end() && fits(any->capacity)) {
    found = *any;
  }
  if (found) remove(*found);
  return found;
}

IdleLarge::Block IdleLarge::take_largest() {
  const Block largest = *blocks_.rbegin();
  remove(largest);
  return largest;
}

// It does not matter which individual blocks were idle all the time, because any other blocks would
// have served as well.
std::vector<IdleLarge::Block> IdleLarge::take_unneeded() {
  std::vector<Block> unneeded;
  std::uint64_t idle = least_bytes_;
  for (auto next = blocks_.end(); next != blocks_.begin() && idle > 0;) {
    const Block block = *--next;
    if (block.capacity > idle) continue;
    idle -= block.capacity;
    unneeded.push_back(block);
  }
  for (const Block& block : unneeded) remove(block);
  least_bytes_ = bytes_;
  return unneeded;
}

}  // namespace teletensor::memory
