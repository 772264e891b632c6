// The random skeleton: one thread per Philox block, with the same bits as on the CPU.
#pragma once

#include <string>
#include <string_view>

#include "engine/backends/cuda/device_table.h"

namespace teletensor::backends::cuda {

enum class RandomRecipe : char { kUniform, kNormal, kIntegers, kBernoulli, kDropout };

struct RandomGraph {
  RandomRecipe recipe = RandomRecipe::kUniform;
  core::DType dtype = core::DType::kF32;

  std::string key() const;
  static RandomGraph of_key(std::string_view key);
};

KernelSource print_random(const RandomGraph& graph);

}  // namespace teletensor::backends::cuda
