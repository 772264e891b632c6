// Operands and results as row-major arrays of the type in which a kernel computes.
#pragma once

#include <algorithm>

#include "engine/backends/cpu/access/block_io.h"
#include "engine/backends/cpu/access/strided.h"
#include "engine/backends/scratch_bytes.h"

namespace teletensor::backends::cpu {

// Uses the tensor's own memory if it is row-major with type T, and scratch memory otherwise.
template <class T>
class Dense {
 public:
  // `arg` is a tensor and must outlive this object. Its elements are copied if `read` is set.
  // `status` is set to an error if there is not enough scratch memory.
  Dense(KernelCall& call, const TensorArg& arg, bool read, core::Status& status)
      : call_(call), arg_(arg), dense_(arg.geometry->shape) {
    if (arg.dtype == kDTypeOf<T> && arg.geometry->contiguous()) {
      memory_ = arg.first<T>();
      return;
    }
    const std::int64_t count = std::max<std::int64_t>(dense_.numel(), 1);
    const std::size_t bytes = scratch_bytes(count, sizeof(T));
    memory_ = static_cast<T*>(call.scratch.allocate(bytes));
    if (!memory_) {
      status = out_of_scratch(call.op.name, bytes);
      return;
    }
    copied_ = true;
    if (read) strided_copy(arg, view(), call.parallel);
  }
  T* memory() const { return memory_; }
  // Copies a result to its destination.
  void store() const {
    if (copied_) strided_copy(view(), arg_, call_.parallel);
  }

 private:
  TensorArg view() const {
    TensorArg v = arg_;
    v.data = memory_;
    v.dtype = kDTypeOf<T>;
    v.geometry = &dense_;
    return v;
  }
  KernelCall& call_;
  const TensorArg& arg_;
  const core::Geometry dense_;
  T* memory_ = nullptr;
  bool copied_ = false;
};

// Like with_compute_type(), for kernels that only add and multiply integers modulo 2^64: all
// integers are int64.
template <class F>
auto with_modular_type(core::DType dtype, F&& f) {
  if (dtype == core::DType::kF64) return f(double{});
  if (core::is_floating(dtype)) return f(float{});
  return f(std::int64_t{});
}

// Calls task(i) for every i < tasks in `parts` parts, until the call is cancelled. The caller
// derives the number of parts from the work alone.
template <class F>
void share(Parallel& parallel, std::int64_t tasks, std::int64_t parts, F&& task) {
  const auto part = [&](std::int64_t p) {
    for (std::int64_t t = tasks * p / parts; t < tasks * (p + 1) / parts; ++t) {
      if (parallel.cancelled()) return;
      task(t, p);
    }
  };
  if (parts == 1) {
    part(0);
  } else {
    parallel.run(parts, part);
  }
}

// The number of parts for work of `ns` nanoseconds, at about half a millisecond each.
inline std::int64_t parts_of(double ns, std::int64_t most) {
  return std::max<std::int64_t>(
      1, std::min<std::int64_t>(most, static_cast<std::int64_t>(std::min(ns / 500e3, 64.0))));
}

}  // namespace teletensor::backends::cpu
