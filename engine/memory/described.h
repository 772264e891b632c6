// Described: the dtype and the shape that a storage was made for, for reports.
//
// Two words, so that the strand sets it for every result at the cost of two stores, and any thread
// reads it without a lock. A report that meets the storage while it is made anew may take the end
// of one long shape for that of the other; nothing but reports may use it.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>

#include "engine/core/dtype.h"
#include "engine/core/geometry.h"

namespace teletensor::memory {

struct Description {
  core::DType dtype = core::DType::kF32;
  core::Dims shape;
};

class Described {
 public:
  // A shape whose sizes need more than 14 bytes of 7 bits each stays unknown.
  void set(core::DType dtype, const core::Dims& shape);
  void set(const Described& other) {
    store(other.words_[0].load(std::memory_order_relaxed),
          other.words_[1].load(std::memory_order_relaxed));
  }
  void clear() { words_[0].store(0, std::memory_order_relaxed); }
  bool known() const { return words_[0].load(std::memory_order_relaxed) != 0; }
  std::optional<Description> get() const;

 private:
  void store(std::uint64_t first, std::uint64_t second) {
    words_[1].store(second, std::memory_order_relaxed);
    words_[0].store(first, std::memory_order_release);
  }

  // Bytes, the lowest first: the dtype's number, the rank, the sizes (7 bits a byte, the last byte
  // of a size without the eighth). 0: unknown.
  std::atomic<std::uint64_t> words_[2] = {0, 0};
};

}  // namespace teletensor::memory
