// Decides into how many slices the sum of a convolution's weight gradient is split; depends only on
// the shape.
#pragma once

#include <cstdint>

namespace teletensor::backends::cuda {

// The number of slices of a sum over `depth` products, if the result has `tiles` tiles.
std::int64_t conv_slices(std::int64_t depth, std::int64_t tiles);

}  // namespace teletensor::backends::cuda
