// How a reduction walks memory: dimensions split into kept and reduced ones, ordered by stride and
// merged where they continue each other.
#pragma once

#include <cstdint>

#include "engine/core/geometry.h"

namespace teletensor::backends::cpu {

struct Axis {
  std::int64_t size = 1;
  std::int64_t in = 0;   // stride in the operand
  std::int64_t out = 0;  // kept: stride in the row-major result; reduced: in the row-major order of
                         // the reduced dimensions
};

struct ReducePlan {
  // With `logical_order` the reduced axes keep their order (the first of equal elements counts).
  ReducePlan(const core::Geometry& operand, std::uint32_t mask, bool logical_order = false);

  int kept_count = 0, reduced_count = 0;               // axes, all longer than 1
  Axis kept[core::kMaxRank], reduced[core::kMaxRank];  // the fastest last
  std::int64_t outputs = 1, count = 1;                 // results, and elements folded into each

  // Strides of the position `index` counts, in the order of the axes: {in, out}.
  static Axis at(const Axis* axes, int n, std::int64_t index);
};

}  // namespace teletensor::backends::cpu
