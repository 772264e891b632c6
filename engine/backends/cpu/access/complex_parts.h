// Views of the real and imaginary parts of complex tensors.
#pragma once

#include "engine/backends/backend.h"

namespace teletensor::backends::cpu {

// The layout of either part, relative to the first element.
inline core::Geometry part_layout(const core::Geometry& complex) {
  core::Dims strides(complex.rank(), 0);
  for (int d = 0; d < complex.rank(); ++d) strides[d] = complex.strides[d] * 2;
  return core::Geometry(complex.shape, strides);
}

// A view of the real (0) or imaginary (1) part of x; `layout` is part_layout() of its geometry.
inline TensorArg part_of(const TensorArg& x, int part, const core::Geometry& layout) {
  TensorArg out = x;
  out.dtype = core::real_of(x.dtype);
  out.data = x.first<char>() + static_cast<std::size_t>(part) * core::size_of(out.dtype);
  out.geometry = &layout;
  return out;
}

}  // namespace teletensor::backends::cpu
