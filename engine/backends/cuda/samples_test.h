// Sample tensors for unit tests of the device's kernels.
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "engine/backends/cpu/kernel_test.h"

namespace teletensor::backends::cuda {

inline std::vector<double> sample_numbers(std::int64_t n, std::mt19937& random, core::DType dtype,
                                          bool special = true) {
  std::vector<double> out(static_cast<std::size_t>(n));
  std::uniform_real_distribution<double> real(-4, 4);
  for (double& v : out) {
    v = real(random);
    if (core::is_unsigned(dtype)) v = std::abs(v);
    if (dtype == core::DType::kBool) v = v > 0;
    if (!special || !core::is_floating(dtype)) continue;
    if (random() % 29 == 0) v = std::nan("");
    if (random() % 29 == 0) v = random() % 2 ? INFINITY : -0.0;
  }
  return out;
}

inline cpu::TestTensor sample(core::DType dtype, const core::Geometry& geometry,
                              std::mt19937& random, bool special = true) {
  cpu::TestTensor t(dtype, geometry);
  t.fill(sample_numbers(geometry.numel(), random, dtype, special));
  return t;
}

// Integers in [least, most].
inline cpu::TestTensor sample_places(core::DType dtype, const core::Geometry& geometry,
                                     std::int64_t least, std::int64_t most, std::mt19937& random) {
  cpu::TestTensor t(dtype, geometry);
  std::vector<double> values(static_cast<std::size_t>(geometry.numel()));
  for (double& v : values) {
    v = static_cast<double>(least + static_cast<std::int64_t>(random() % (most - least + 1)));
  }
  t.fill(values);
  return t;
}

}  // namespace teletensor::backends::cuda
