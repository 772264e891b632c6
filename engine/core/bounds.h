// Bounds: a range that contains all numbers of an integer tensor.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string_view>

#include "engine/core/dtype.h"

namespace teletensor::core {

// If a storage's bytes are read as this dtype, each number lies in [least, most]. Numbers of kU64
// are compared as the kI64 with the same bits.
struct Bounds {
  DType dtype = DType::kBool;  // with this dtype, nothing is known
  std::int64_t least = std::numeric_limits<std::int64_t>::min();
  std::int64_t most = std::numeric_limits<std::int64_t>::max();

  bool within(DType as, std::int64_t from, std::int64_t to) const {
    return as == dtype && least >= from && most <= to;
  }
  bool without_zero(DType as) const { return as == dtype && (least > 0 || most < 0); }
  void narrow(DType as, std::int64_t from, std::int64_t to) {
    if (as != dtype) *this = {.dtype = as};
    least = std::max(least, from);
    most = std::min(most, to);
  }
};

// The bounds of a tensor's bytes, which are whole elements of an integral dtype; for other dtypes
// nothing is known.
Bounds bounds_of(DType dtype, std::string_view bytes);

}  // namespace teletensor::core
