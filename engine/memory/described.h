// Described: the dtype and the shape for which a storage was allocated, for reports.
//
// It consists of two atomic words, so that the session task can set it for every result with
// two stores, and any thread can read it without a lock. If a storage is reused while it is read, a
// report may combine the beginning of one long shape with the end of another; therefore only
// reports may use it.
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
  // A shape whose sizes take more than 14 bytes in 7-bit encoding is not recorded.
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

  // Bytes from lowest to highest: the number of the dtype, the rank, then the sizes (7 bits in each
  // byte; the eighth bit is set in all bytes of a size but its last). 0: not known.
  std::atomic<std::uint64_t> words_[2] = {0, 0};
};

}  // namespace teletensor::memory
