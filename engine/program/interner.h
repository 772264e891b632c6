// Interner: keeps one copy of each layout and each list of attributes, so that instructions can
// hold pointers to them. This keeps queue entries small, and equal pointers mean equal contents.
//
// Only one thread at a time may add items. Any thread that received an instruction through
// synchronisation may read its items.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "engine/core/attributes.h"
#include "engine/core/geometry.h"

namespace teletensor::program {

class Interner {
 public:
  // The returned objects live as long as the interner and never move.
  const core::Geometry* geometry(const core::Geometry& geometry);
  const core::Attributes* attributes(const core::Attributes& attributes);
  // The memory of the items, in bytes.
  std::uint64_t bytes() const {
    return geometries_.hashes.size() * (sizeof(core::Geometry) + kPerItem) +
           attributes_.hashes.size() * (sizeof(core::Attributes) + kPerItem);
  }
  std::size_t size() const { return geometries_.hashes.size() + attributes_.hashes.size(); }
  // Differs between all interners of the process, also from one that was destroyed.
  std::uint64_t number() const { return number_; }

 private:
  static constexpr std::uint64_t kPerItem = 16;  // an item's hash, and its places in the table
  template <class T>
  struct Table {
    std::deque<T> items;
    std::vector<std::uint64_t> hashes;  // hash of each item
    std::vector<std::uint32_t> places;  // open addressing: index of an item + 1; 0 is a free slot
    const T* last = nullptr;            // the item found or added last; often the next one is equal
    template <class Same>
    const T* find_or_add(std::uint64_t hash, const T& item, Same&& same);
  };

  static std::uint64_t next_number();

  const std::uint64_t number_ = next_number();
  Table<core::Geometry> geometries_;
  Table<core::Attributes> attributes_;
  core::Attributes none_;
};

}  // namespace teletensor::program
