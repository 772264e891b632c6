// Sums of 16-bit floats by index: they are computed in float32 and rounded once, like all sums of
// 16-bit floats.
#pragma once

#include <algorithm>
#include <span>
#include <type_traits>

#include "engine/backends/cpu/access/block_io.h"
#include "engine/backends/scratch_bytes.h"
#include "engine/core/half.h"

namespace teletensor::backends::cpu {

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, core::Half> || std::is_same_v<T, core::BFloat16>;

// The elements of a dense tensor of 16-bit floats as float32, with the same strides.
class WideSums {
 public:
  // Returns true if copying all of x is cheaper than sorting `additions` positions.
  static bool pays(const TensorArg& x, std::int64_t additions) {
    return x.geometry->dense() && x.geometry->numel() / 8 <= additions;
  }
  // `status` is set to an error if there is not enough scratch memory.
  WideSums(KernelCall& call, const TensorArg& x, core::Status& status)
      : x_(x), count_(x.geometry->numel()) {
    const std::size_t bytes = scratch_bytes(std::max<std::int64_t>(count_, 1), sizeof(float));
    memory_ = static_cast<float*>(call.scratch.allocate(bytes));
    if (memory_ == nullptr) {
      status = out_of_scratch(call.op.name, bytes);
      return;
    }
    load_block<float>(x.dtype)(x.first<char>(), 1, count_, memory_);
  }
  // The address of the element at the tensor's offset.
  float* first() const { return memory_; }
  void store() const { store_block<float>(x_.dtype)(memory_, count_, x_.first<char>(), 1); }

 private:
  const TensorArg& x_;
  const std::int64_t count_;
  float* memory_ = nullptr;
};

// Position `at` of the indices names the element at `place`.
struct Entry {
  std::int64_t place, at;
};

// Sorts place_of(0), ... place_of(count - 1) by place; entries with equal places stay in their
// order.
template <class F>
core::Result<std::span<Entry>> by_place(KernelCall& call, std::int64_t count, F&& place_of) {
  const std::size_t bytes = scratch_bytes(std::max<std::int64_t>(count, 1), sizeof(Entry));
  auto* const entries = static_cast<Entry*>(call.scratch.allocate(bytes));
  if (entries == nullptr) return out_of_scratch(call.op.name, bytes);
  for (std::int64_t i = 0; i < count; ++i) entries[i] = {place_of(i), i};
  std::sort(entries, entries + count, [](const Entry& a, const Entry& b) {
    return a.place != b.place ? a.place < b.place : a.at < b.at;
  });
  return std::span<Entry>(entries, static_cast<std::size_t>(count));
}

}  // namespace teletensor::backends::cpu
