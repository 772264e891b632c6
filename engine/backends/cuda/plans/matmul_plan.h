// The matmul skeleton: a kernel of tiles, for products that no vendor library accepts.
#pragma once

#include <string>
#include <string_view>

#include "engine/backends/cuda/device_table.h"

namespace teletensor::backends::cuda {

struct MatmulGraph {
  core::DType dtype = core::DType::kF32;
  bool turned_a = false, turned_b = false;  // elements that are adjacent in memory lie along k
  bool adds = false;                        // the result is alpha * product + beta * x
  std::uint8_t batch = 0;                   // number of dimensions

  std::string key() const;
  static MatmulGraph of_key(std::string_view key);
};

KernelSource print_matmul(const MatmulGraph& graph);

inline constexpr std::int64_t kTile = 64;
// The number of blocks for `batches` products of m x n. Returns false if a grid cannot have that
// many.
bool tiles_for(std::int64_t batches, std::int64_t m, std::int64_t n, LaunchShape& shape);

}  // namespace teletensor::backends::cuda
