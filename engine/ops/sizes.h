// Limits and checks of the sizes among an op's attributes.
#pragma once

#include <cstdint>
#include <string>

#include "engine/ops/op.h"

namespace teletensor::ops {

// The maximum number of elements that an instruction may process if they are not stored. Memory
// bounds the work on stored elements, but an expanded view needs no memory, so that
// tt.zeros(1).expand(2**60).sum() would compute for years.
inline constexpr std::int64_t kMaxRepeated = std::int64_t{1} << 33;

// Reads attribute i as a shape; refuses negative sizes and shapes that no tensor can have.
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
