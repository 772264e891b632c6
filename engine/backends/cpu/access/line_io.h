// Reads and writes one line of a tensor, along a dimension, in a compute type.
#pragma once

#include "engine/backends/cpu/access/block_io.h"
#include "engine/backends/cpu/access/lines.h"

namespace teletensor::backends::cpu {

// One line, accessed element by element or in blocks.
template <class A>
class Line {
 public:
  Line(const TensorArg& arg, const Lines& lines, std::int64_t i)
      : size_(static_cast<std::int64_t>(core::size_of(arg.dtype))),
        stride_(lines.stride(*arg.geometry)),
        first_(arg.first<char>() + lines.offset(*arg.geometry, i) * size_),
        load_(load_block<A>(arg.dtype)),
        store_(store_block<A>(arg.dtype)),
        direct_(stride_ == 1 && arg.dtype == kDTypeOf<A>) {}
  explicit Line(A* memory)
      : size_(sizeof(A)),
        stride_(1),
        first_(reinterpret_cast<char*>(memory)),
        load_(load_block<A>(kDTypeOf<A>)),
        store_(store_block<A>(kDTypeOf<A>)),
        direct_(true) {}
  void load(std::int64_t start, std::int64_t n, A* to) const {
    load_(first_ + start * stride_ * size_, stride_, n, to);
  }
  void store(std::int64_t start, std::int64_t n, const A* from) const {
    store_(from, n, first_ + start * stride_ * size_, stride_);
  }
  // Returns the place at which to compute elements from `start` on. If that is not `buffer`,
  // store() is not needed.
  A* room(std::int64_t start, A* buffer) const {
    return direct_ ? reinterpret_cast<A*>(first_) + start : buffer;
  }
  A at(std::int64_t i) const {
    A value;
    load(i, 1, &value);
    return value;
  }
  void set(std::int64_t i, A value) const { store(i, 1, &value); }

 private:
  const std::int64_t size_, stride_;
  char* const first_;
  const LoadBlock<A> load_;
  const StoreBlock<A> store_;
  const bool direct_;  // the elements are adjacent and have the compute type
};

}  // namespace teletensor::backends::cpu
