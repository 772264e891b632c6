// The row skeleton: softmax and similar ops, with a group of threads for each row.
#pragma once

#include <string>
#include <string_view>

#include "engine/backends/cuda/device_table.h"

namespace teletensor::backends::cuda {

enum class RowRecipe : char { kSoftmax, kLogSoftmax, kSoftmaxBackward, kLogSoftmaxBackward };

struct RowGraph {
  RowRecipe recipe = RowRecipe::kSoftmax;
  core::DType in[2] = {core::DType::kF32, core::DType::kF32}, out = core::DType::kF32;
  bool short_rows = false;  // 32 threads per row instead of 256
  std::uint8_t held = 0;  // elements of a row that a thread keeps; 0 means that it reads them again
  bool whole = false;     // every thread keeps exactly `held` elements of each row
  bool dense = false;     // the elements of a row are adjacent in all tensors
  std::uint8_t axes = 0;  // number of the other axes, after merging

  std::string key() const;
  static RowGraph of_key(std::string_view key);
};

KernelSource print_rows(const RowGraph& graph);

}  // namespace teletensor::backends::cuda
