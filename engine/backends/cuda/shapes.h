// Launch geometry as pure functions.
#pragma once

#include <cstdint>

#include "engine/backends/cuda/kernel_source.h"

namespace teletensor::backends::cuda {

inline constexpr std::uint32_t kBlockThreads = 256;
inline constexpr std::int64_t kMaxBlocks = (std::int64_t{1} << 31) - 1;  // along x
// Counts and offsets below this are computed in 32 bits: a thread's first element may lie a block
// beyond the last one.
inline constexpr std::int64_t kNarrowLimit = (std::int64_t{1} << 31) - 4096;

// One thread for `width` of n > 0 elements. False: more than a grid has.
bool threads_for(std::int64_t n, int width, LaunchShape& shape);

// n / size for 0 <= n < 2^31 as (umulhi(n, magic) + n) >> shift (text/device.cuh, Div32).
struct Divisor {
  std::uint32_t size = 1, magic = 0, shift = 0, unused = 0;
};
// Precondition: 1 <= size < 2^31.
Divisor divisor_of(std::int64_t size);

// Elements of `size` bytes that a thread handles at once: loads of 16 bytes of the smallest type,
// at most 32 bytes of the largest.
int width_for(std::size_t smallest, std::size_t largest);

}  // namespace teletensor::backends::cuda
