// ReducePlan: how a reduction iterates over memory. Dimensions are split into kept and reduced
// ones, ordered by stride, and merged where they are uniformly strided.
#pragma once

#include <cstdint>

#include "engine/core/geometry.h"

namespace teletensor::backends::cpu {

struct Axis {
  std::int64_t size = 1;
  std::int64_t in = 0;  // stride in the operand
  // kept: stride in the row-major result; reduced: in the row-major order of the reduced dimensions
  std::int64_t out = 0;
};

struct ReducePlan {
  static constexpr std::int64_t kChunk = 512;                   // results computed at once
  static constexpr std::int64_t kPart = std::int64_t{1} << 20;  // elements in one parallel part

  // With `logical_order` the reduced axes keep their order, because the first of equal elements
  // matters.
  ReducePlan(const core::Geometry& operand, std::uint32_t mask, bool logical_order = false);

  int kept_count = 0, reduced_count = 0;               // number of axes; all are longer than 1
  Axis kept[core::kMaxRank], reduced[core::kMaxRank];  // the fastest axis is the last
  // Number of results, and of elements that are reduced into each.
  std::int64_t outputs = 1, count = 1;

  // The strides {in, out} to position `index`, counted in the order of the axes.
  static Axis at(const Axis* axes, int n, std::int64_t index);
};

}  // namespace teletensor::backends::cpu
