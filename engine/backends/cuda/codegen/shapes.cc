#include "engine/backends/cuda/codegen/shapes.h"

#include <algorithm>

namespace teletensor::backends::cuda {

bool threads_for(std::int64_t n, int width, LaunchShape& shape) {
  const std::int64_t per_block = std::int64_t{kBlockThreads} * width;
  const std::int64_t blocks = n / per_block + (n % per_block != 0);
  if (blocks > kMaxBlocks) return false;
  shape = {};
  shape.grid[0] = static_cast<std::uint32_t>(blocks);
  shape.block[0] = kBlockThreads;
  return true;
}

Divisor divisor_of(std::int64_t size) {
  Divisor d;
  d.size = static_cast<std::uint32_t>(size);
  while ((std::int64_t{1} << d.shift) < size) ++d.shift;
  const std::uint64_t one = 1;
  d.magic = static_cast<std::uint32_t>(((one << 32) * ((one << d.shift) - d.size)) / d.size + 1);
  return d;
}

int width_for(std::size_t smallest, std::size_t largest) {
  int width = 1;
  while (width < 8 && smallest * static_cast<std::size_t>(width) < 16 &&
         largest * static_cast<std::size_t>(width) < 32) {
    width *= 2;
  }
  return width;
}

}  // namespace teletensor::backends::cuda
