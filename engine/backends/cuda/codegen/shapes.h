// Launch geometry, as pure functions.
#pragma once

#include <cstdint>

#include "engine/backends/cuda/codegen/kernel_source.h"

namespace teletensor::backends::cuda {

inline constexpr std::uint32_t kBlockThreads = 256;
// Maximum number of blocks along x.
inline constexpr std::int64_t kMaxBlocks = (std::int64_t{1} << 31) - 1;
// Counts and offsets below this are computed in 32 bits. The margin is needed because the first
// element of a thread may be a block beyond the last element.
inline constexpr std::int64_t kNarrowLimit = (std::int64_t{1} << 31) - 4096;

// A launch with one thread per `width` of n > 0 elements. Returns false if a grid cannot have that
// many blocks.
bool threads_for(std::int64_t n, int width, LaunchShape& shape);

// Computes n / size for 0 <= n < 2^31 as (umulhi(n, magic) + n) >> shift (Div32 in
// text/device.cuh).
struct Divisor {
  std::uint32_t size = 1, magic = 0, shift = 0, unused = 0;
};
// Precondition: 1 <= size < 2^31.
Divisor divisor_of(std::int64_t size);

// The number of elements per thread: loads of up to 16 bytes for the smallest element size, and at
// most 32 bytes for the largest.
int width_for(std::size_t smallest, std::size_t largest);

}  // namespace teletensor::backends::cuda
