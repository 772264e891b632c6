// Rows of a tensor, as the kernels of softmax, layer_norm and losses read and write them: in place
// if they are dense and have the compute type, and otherwise through a block buffer.
#pragma once

#include <algorithm>
#include <cstring>

#include "engine/backends/backend.h"
#include "engine/backends/cpu/access/block_io.h"
#include "engine/backends/cpu/access/lines.h"
#include "engine/backends/cpu/reduction/reduce_simd.h"
#include "engine/backends/scratch_bytes.h"

namespace teletensor::backends::cpu {

// Elements of a block buffer: one leaf, and a gap so that adjacent buffers do not have the same low
// 12 address bits (loads would wait for stores to the other buffer).
inline constexpr std::int64_t kRoom = kLeaf + 240;

template <class A>
class Row {
 public:
  Row() = default;  // an absent row
  explicit Row(A* memory)
      : size_(sizeof(A)), stride_(1), first_(reinterpret_cast<char*>(memory)), direct_(true) {}
  Row(const TensorArg& arg, std::int64_t offset, std::int64_t stride)
      : size_(static_cast<std::int64_t>(core::size_of(arg.dtype))),
        stride_(stride),
        first_(arg.first<char>() + offset * size_),
        load_(load_block<A>(arg.dtype)),
        store_(store_block<A>(arg.dtype)),
        direct_(stride == 1 && arg.dtype == kDTypeOf<A>) {}

  bool direct() const { return direct_; }
  bool absent() const { return first_ == nullptr; }
  // Elements [start, start + n): in place, or converted into `buffer`. Null for an absent row.
  const A* read(std::int64_t start, std::int64_t n, A* buffer) const {
    if (direct_) return reinterpret_cast<const A*>(first_) + start;
    if (!first_) return nullptr;
    load_(first_ + start * stride_ * size_, stride_, n, buffer);
    return buffer;
  }
  // The place at which to compute the elements from `start` on; write() then stores them.
  A* room(std::int64_t start, A* buffer) const {
    return direct_ ? reinterpret_cast<A*>(first_) + start : buffer;
  }
  void write(std::int64_t start, std::int64_t n, const A* from) const {
    if (!direct_) store_(from, n, first_ + start * stride_ * size_, stride_);
  }

 private:
  std::int64_t size_ = 0, stride_ = 0;
  char* first_ = nullptr;
  LoadBlock<A> load_ = nullptr;
  StoreBlock<A> store_ = nullptr;
  bool direct_ = false;
};

// Calls f(start, n) for a row in blocks of kLeaf elements.
template <class F>
void each_block(std::int64_t length, F&& f) {
  for (std::int64_t start = 0; start < length; start += kLeaf) {
    f(start, std::min(kLeaf, length - start));
  }
}

// The sum over blocks, in order, of `block(start, n)`.
template <class A, class F>
A block_sum(std::int64_t length, F&& block) {
  A total = 0;
  each_block(length, [&](std::int64_t start, std::int64_t n) { total += block(start, n); });
  return total;
}

// An operand in row-major order: the operand itself, or a copy in scratch memory. Valid during the
// call.
class RowMajor {
 public:
  // `status` is set to an error if there is not enough scratch memory. Absent operands stay absent.
  RowMajor(KernelCall& call, const TensorArg& arg, core::Status& status) : arg_(arg) {
    if (arg.kind != TensorArg::Kind::kTensor || arg.geometry->contiguous()) return;
    const core::Geometry& g = *arg.geometry;
    if (g.numel() == 0) return;
    geometry_ = core::Geometry(g.shape);
    const std::size_t size = core::size_of(arg.dtype);
    const std::size_t bytes = scratch_bytes(g.numel(), size);
    arg_.geometry = &geometry_;
    arg_.data = call.scratch.allocate(bytes);
    if (!arg_.data) {
      status = out_of_scratch(call.op.name, bytes);
      return;
    }
    const Lines lines(g.shape, -1);
    const std::int64_t step = lines.stride(g) * static_cast<std::int64_t>(size);
    char* to = static_cast<char*>(arg_.data);
    for (std::int64_t i = 0; i < lines.count(); ++i) {
      const char* from =
          arg.first<const char>() + lines.offset(g, i) * static_cast<std::int64_t>(size);
      for (std::int64_t j = 0; j < lines.length(); ++j, to += size) {
        std::memcpy(to, from + j * step, size);
      }
    }
  }
  RowMajor(const RowMajor&) = delete;
  RowMajor& operator=(const RowMajor&) = delete;

  const TensorArg& arg() const { return arg_; }
  bool absent() const { return arg_.kind != TensorArg::Kind::kTensor; }

 private:
  TensorArg arg_;
  core::Geometry geometry_;
};

}  // namespace teletensor::backends::cpu
