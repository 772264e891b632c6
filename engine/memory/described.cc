#include "engine/memory/described.h"

namespace teletensor::memory {

namespace {
constexpr unsigned kBytes = 16;
}

void Described::set(core::DType dtype, const core::Dims& shape) {
  std::uint64_t words[2] = {
      static_cast<std::uint64_t>(dtype) | static_cast<std::uint64_t>(shape.size()) << 8, 0};
  unsigned at = 2;
  for (const std::int64_t size : shape) {
    std::uint64_t rest = static_cast<std::uint64_t>(size);
    do {
      if (at == kBytes) return clear();
      const std::uint64_t byte = (rest & 0x7f) | (rest > 0x7f ? 0x80 : 0);
      words[at / 8] |= byte << (at % 8 * 8);
      rest >>= 7;
      ++at;
    } while (rest > 0);
  }
  store(words[0], words[1]);
}

std::optional<Description> Described::get() const {
  const std::uint64_t words[2] = {words_[0].load(std::memory_order_acquire),
                                  words_[1].load(std::memory_order_acquire)};
  if (words[0] == 0 || words_[0].load(std::memory_order_relaxed) != words[0]) return {};
  Description found{static_cast<core::DType>(words[0] & 0xff), {}};
  const int rank = static_cast<int>(words[0] >> 8 & 0xff);
  unsigned at = 2;
  while (found.shape.size() < rank) {
    std::uint64_t size = 0, byte = 0x80;
    for (unsigned shift = 0; (byte & 0x80) != 0; shift += 7, ++at) {
      if (at == kBytes || shift > 56) return {};
      byte = words[at / 8] >> (at % 8 * 8) & 0xff;
      size |= (byte & 0x7f) << shift;
    }
    found.shape.push_back(static_cast<std::int64_t>(size));
  }
  return found;
}

}  // namespace teletensor::memory
