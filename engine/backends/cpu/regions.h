// Regions: strided views on a base that is numbered by its own row-major order, as the ops
// index_region, scatter_region and update_region describe them. Shared with CUDA.
#pragma once

#include "engine/backends/backend.h"

namespace teletensor::backends::cpu {

struct Region {
  explicit Region(const core::Attributes& a)
      : base(core::Dims(a.ints(0)), core::Dims(a.ints(1))),
        view(core::Dims(a.ints(2)), core::Dims(a.ints(3)), a.integer(4)) {}
  core::Geometry base, view;  // both relative to the base's first element
};

// Has g the base's strides? Those of dimensions of size 1 do not matter.
inline bool lies_as(const core::Geometry& g, const core::Geometry& base) {
  for (int d = 0; d < base.rank(); ++d) {
    if (base.shape[d] > 1 && g.strides[d] != base.strides[d]) return false;
  }
  return true;
}

// The operand with other memory and another view; `geometry` must outlive it.
inline TensorArg seen_as(const TensorArg& arg, void* first, const core::Geometry& geometry) {
  TensorArg out = arg;
  out.data = first;
  out.geometry = &geometry;
  return out;
}

}  // namespace teletensor::backends::cpu
