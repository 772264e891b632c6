// Size classes of small blocks: 256 B * 2^k in four steps (1, 1.25, 1.5, 1.75), up to 1 MiB.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace teletensor::memory {

inline constexpr std::size_t kAlignment = 64;
inline constexpr std::size_t kSmallestBlock = 256;
inline constexpr std::size_t kLargestSmall = std::size_t{1} << 20;
inline constexpr std::size_t kPage = 4096;
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;
inline constexpr std::size_t kSlab = kHugePage;  // small blocks are cut from slabs of this size
inline constexpr int kSizeClasses = 4 * 12 + 1;

// Precondition: bytes <= kLargestSmall.
constexpr int size_class(std::size_t bytes) {
  if (bytes <= kSmallestBlock) return 0;
  const int power = std::bit_width(bytes - 1) - 1;  // 2^power < bytes <= 2^(power+1), power >= 8
  const std::size_t quarter = std::size_t{1} << (power - 2);
  const std::size_t steps = (bytes - (std::size_t{1} << power) + quarter - 1) / quarter;  // 1..4
  return (power - 8) * 4 + static_cast<int>(steps);
}

constexpr std::size_t class_bytes(int size_class) {
  const std::size_t base = kSmallestBlock << (size_class / 4);
  return base + (base >> 2) * static_cast<std::size_t>(size_class % 4);
}

constexpr std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) & ~(kPage - 1); }

// The number of bytes charged for a request of `bytes`, and the minimum that it occupies.
// Precondition: bytes < 2^62.
constexpr std::size_t charged_bytes(std::size_t bytes) {
  if (bytes <= kLargestSmall) return class_bytes(size_class(bytes));
  return whole_pages(bytes);
}

}  // namespace teletensor::memory
