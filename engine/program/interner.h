// Interner: one copy of each layout and each list of attributes, so that instructions hold pointers
// to them: a queue entry stays small, and equal pointers say that two instructions look alike.
//
// One thread at a time adds; any thread that got an instruction by synchronisation reads.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "engine/core/attributes.h"
#include "engine/core/geometry.h"

namespace teletensor::program {

class Interner {
 public:
  // They live as long as the interner, at the same address.
  const core::Geometry* geometry(const core::Geometry& geometry);
  const core::Attributes* attributes(const core::Attributes& attributes);
  std::size_t size() const { return geometries_.items.size() + attributes_.items.size(); }

 private:
  template <class T>
  struct Table {
    std::deque<T> items;
    std::vector<std::uint64_t> hashes;  // of items
    std::vector<std::uint32_t> places;  // open addressing: number of an item + 1, 0: free
    const T* last = nullptr;            // found or added: often what comes next as well
    template <class Same>
    const T* find_or_add(std::uint64_t hash, const T& item, Same&& same);
  };

  Table<core::Geometry> geometries_;
  Table<core::Attributes> attributes_;
  core::Attributes none_;
};

}  // namespace teletensor::program
