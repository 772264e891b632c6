// How the sum of a convolution's weight gradient is split: a pure function of the shape.
#pragma once

#include <cstdint>

namespace teletensor::backends::cuda {

// Slices of a sum over `depth` products for `tiles` tiles of results.
std::int64_t conv_slices(std::int64_t depth, std::int64_t tiles);

}  // namespace teletensor::backends::cuda
