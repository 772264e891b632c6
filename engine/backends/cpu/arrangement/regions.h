// Regions: strided views on a base tensor, in its own row-major order, as the ops index_region,
// scatter_region and update_region describe them. The CUDA backend uses this as well.
#pragma once

#include <algorithm>
#include <optional>

#include "engine/backends/backend.h"

namespace teletensor::backends::cpu {

struct Region {
  explicit Region(const core::Attributes& a)
      : base(core::Dims(a.ints(0)), core::Dims(a.ints(1))),
        view(core::Dims(a.ints(2)), core::Dims(a.ints(3)), a.integer(4)) {}
  core::Geometry base, view;  // both relative to the base's first element
};

// Returns true if g has the strides of the base. The strides of dimensions of size 1 do not matter.
inline bool lies_as(const core::Geometry& g, const core::Geometry& base) {
  for (int d = 0; d < base.rank(); ++d) {
    if (base.shape[d] > 1 && g.strides[d] != base.strides[d]) return false;
  }
  return true;
}

// Returns a copy of the operand with another address and another geometry. `geometry` must outlive
// the result.
inline TensorArg seen_as(const TensorArg& arg, void* first, const core::Geometry& geometry) {
  TensorArg out = arg;
  out.data = first;
  out.geometry = &geometry;
  return out;
}

// constant_pad_nd: the part of x that remains, as a view on x and as a view on the result.
struct Kept {
  core::Geometry from, to;
};
inline std::optional<Kept> kept_of_pad(const KernelCall& call) {
  Kept kept{*call.in[0].geometry, *call.out[0].geometry};
  core::Geometry &from = kept.from, &to = kept.to;
  const auto pad = call.attributes.ints(0);
  for (std::size_t i = 0; i < pad.size() / 2; ++i) {
    const int d = from.rank() - 1 - static_cast<int>(i);
    const std::int64_t before = pad[2 * i];
    const std::int64_t begin = std::max<std::int64_t>(0, -before);
    const std::int64_t end = std::min(from.shape[d], to.shape[d] - before);
    if (end <= begin) return std::nullopt;
    from.offset += begin * from.strides[d];
    to.offset += (begin + before) * to.strides[d];
    from.shape[d] = to.shape[d] = end - begin;
  }
  if (from.numel() == 0) return std::nullopt;
  return kept;
}

}  // namespace teletensor::backends::cpu
