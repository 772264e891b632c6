// The matmul skeleton: tiles, for products that no vendor library takes.
#pragma once

#include <string>
#include <string_view>

#include "engine/backends/cuda/device_table.h"

namespace teletensor::backends::cuda {

struct MatmulGraph {
  core::DType dtype = core::DType::kF32;
  bool turned_a = false, turned_b = false;  // neighbours in memory lie along rows of k
  bool adds = false;                        // alpha * product + beta * x
  std::uint8_t batch = 0;                   // dimensions

  std::string key() const;
  static MatmulGraph of_key(std::string_view key);
};

KernelSource print_matmul(const MatmulGraph& graph);

inline constexpr std::int64_t kTile = 64;
// Blocks for `batches` products of m x n; false: more than a grid has.
bool tiles_for(std::int64_t batches, std::int64_t m, std::int64_t n, LaunchShape& shape);

}  // namespace teletensor::backends::cuda
