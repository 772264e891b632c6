// One line of a tensor along a dimension, read and written in a compute type.
#pragma once

#include "engine/backends/cpu/block_io.h"
#include "engine/backends/cpu/lines.h"

namespace teletensor::backends::cpu {

// Element by element or in blocks.
template <class A>
class Line {
 public:
  Line(const TensorArg& arg, const Lines& lines, std::int64_t i)
      : size_(static_cast<std::int64_t>(core::size_of(arg.dtype))),
        stride_(lines.stride(*arg.geometry)),
        first_(arg.first<char>() + lines.offset(*arg.geometry, i) * size_),
        load_(load_block<A>(arg.dtype)),
        store_(store_block<A>(arg.dtype)) {}
  explicit Line(A* memory)
      : size_(sizeof(A)),
        stride_(1),
        first_(reinterpret_cast<char*>(memory)),
        load_(load_block<A>(kDTypeOf<A>)),
        store_(store_block<A>(kDTypeOf<A>)) {}
  void load(std::int64_t start, std::int64_t n, A* to) const {
    load_(first_ + start * stride_ * size_, stride_, n, to);
  }
  void store(std::int64_t start, std::int64_t n, const A* from) const {
    store_(from, n, first_ + start * stride_ * size_, stride_);
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
};

}  // namespace teletensor::backends::cpu
