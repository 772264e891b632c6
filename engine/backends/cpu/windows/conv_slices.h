// Slices of the images of a convolution, which are computed independently of each other. A batch of
// few images is divided into slices, so that all lanes have work.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/backends/cpu/windows/conv.h"

namespace teletensor::backends::cpu {

// A part of each image: a range of channels, or rows of the output and the rows of the input that
// their windows read.
struct ConvSlice {
  Conv conv;
  std::int64_t x = 0, weight = 0, y = 0;  // offsets of the first element, in elements
  std::int64_t channel = 0;               // the first channel of the output, for the bias
};

// Returns at least one and at most `most` slices, which together are `conv`. The slices depend on
// the sizes of the convolution alone.
std::vector<ConvSlice> slices_of(const Conv& conv, ConvPass pass, std::int64_t most);

}  // namespace teletensor::backends::cpu
