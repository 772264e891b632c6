// Places: the elements of a tensor that an advanced index names, as tables of offsets; and copies,
// sums and fills over them. Used by index, index_put, index_select, index_add, embedding and
// others.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "engine/backends/backend.h"
#include "engine/core/complex.h"
#include "engine/core/half.h"

namespace teletensor::backends::cpu {

// The values of an index tensor as dense int64 in row-major order, each in [0, size). With `wrap`,
// negative values count from the end. The error for an index out of range is "op: index 7 is out of
// range for size 5 (dim 0)".
struct IndexList {
  const std::int64_t* values = nullptr;
  std::int64_t count = 0;
};
core::Result<IndexList> read_index(KernelCall& call, const TensorArg& index, std::int64_t size,
                                   int dim, bool wrap);

// x as a dense row-major copy of dtype `dtype` and shape `shape` (x broadcasts to it), or x itself
// if it already is that. `data` is null if there was no scratch memory; then `bytes` is the size
// that was requested.
struct DenseCopy {
  const void* data = nullptr;
  std::size_t bytes = 0;
};
DenseCopy dense_copy(KernelCall& call, const TensorArg& x, const core::Dims& shape,
                     core::DType dtype);

// The elements in the order of the indexed shape: [before][indices][after], where the last part is
// split into `runs` of `length` elements that are `stride` apart.
struct Places {
  std::span<const std::int64_t> before, indices, runs;
  std::int64_t length = 1, stride = 1;
  std::int64_t count() const {
    return static_cast<std::int64_t>(before.size() * indices.size() * runs.size()) * length;
  }
};

// The places that `indices` (operands, broadcast together) name in the dimensions `dims` of x.
// Refuses an index out of range. The tables are scratch memory of the call.
core::Result<Places> places_of(KernelCall& call, const core::Geometry& x,
                               std::span<const TensorArg> indices,
                               std::span<const std::int64_t> dims, bool wrap);

// to[0, count) = x[places]. `to` is dense.
void read_places(KernelCall& call, const Places& places, const TensorArg& x, void* to);
// x[places] = from[0, count), or with `fill` the one element `from` for all of them. If places are
// equal, the last write wins.
void write_places(KernelCall& call, const Places& places, const TensorArg& x, const void* from,
                  bool fill);
// x[places] += alpha * from[0, count) (or the one element), in order. Sums of 16-bit floats are
// computed in float32 and rounded once. If there is not enough scratch memory, it fails before the
// first store.
core::Status add_places(KernelCall& call, const Places& places, const TensorArg& x,
                        const void* from, bool fill, double alpha);

// to += alpha * from in the arithmetic of T: bools are or-ed, and integers wrap (alpha is
// truncated).
template <class T>
void accumulate(T& to, T from, double alpha);

// Calls f(T{}) with the element type of a dtype.
template <class F>
void with_type(core::DType dtype, F&& f) {
  switch (dtype) {
    case core::DType::kBool:
      f(bool{});
      break;
    case core::DType::kU8:
      f(std::uint8_t{});
      break;
    case core::DType::kI32:
      f(std::int32_t{});
      break;
    case core::DType::kI64:
      f(std::int64_t{});
      break;
    case core::DType::kF16:
      f(core::Half{});
      break;
    case core::DType::kBF16:
      f(core::BFloat16{});
      break;
    case core::DType::kF32:
      f(float{});
      break;
    case core::DType::kF64:
      f(double{});
      break;
    case core::DType::kI8:
      f(std::int8_t{});
      break;
    case core::DType::kI16:
      f(std::int16_t{});
      break;
    case core::DType::kU16:
      f(std::uint16_t{});
      break;
    case core::DType::kU32:
      f(std::uint32_t{});
      break;
    case core::DType::kU64:
      f(std::uint64_t{});
      break;
    case core::DType::kC64:
      f(core::Complex64{});
      break;
    case core::DType::kC128:
      f(core::Complex128{});
      break;
  }
}

}  // namespace teletensor::backends::cpu
