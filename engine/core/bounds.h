// Bounds: what is known of all the numbers of a tensor of integers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string_view>

#include "engine/core/dtype.h"

namespace teletensor::core {

// Of a storage's bytes, read as this dtype: each lies in [least, most]; those of kU64 as the kI64
// of the same bits.
struct Bounds {
  DType dtype = DType::kBool;  // nothing is known
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

// Of a tensor's bytes, whole elements of an integral dtype; nothing is known of another one's.
Bounds bounds_of(DType dtype, std::string_view bytes);

}  // namespace teletensor::core
