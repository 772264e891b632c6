// Sizes among an op's attributes.
#pragma once

#include <string>

#include "engine/ops/op.h"

namespace teletensor::ops {

// Attribute i as a shape; refuses negative sizes and what no tensor can have.
inline core::Status read_shape(InferContext& c, std::size_t i, core::Dims& shape) {
  const auto sizes = c.attributes.ints(i);
  if (sizes.size() > core::kMaxRank) {
    return c.fail("rank " + std::to_string(sizes.size()) + " is above the limit of " +
                  std::to_string(core::kMaxRank));
  }
  for (std::int64_t n : sizes) {
    if (n < 0) return c.fail("negative size " + std::to_string(n));
  }
  if (const auto count = core::checked_numel(sizes); !count.ok()) {
    return c.fail(count.status().message());
  }
  shape = core::Dims(sizes);
  return {};
}

}  // namespace teletensor::ops
