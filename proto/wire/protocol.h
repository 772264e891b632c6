// The numbers of the protocol that the clients and the daemon of this checkout speak.
#pragma once

#include <algorithm>
#include <cstdint>

namespace teletensor::wire {

// Incremented by every change that a peer of the earlier number would misread; docs/wire.md has the
// rules and the history.
inline constexpr std::uint32_t kProtocol = 2;
// The lowest number that the daemon serves and the clients accept: the one before.
inline constexpr std::uint32_t kProtocolMin = kProtocol - 1;
// From this number on a SetFlag has a kind of its own that creates the node of a view again.
inline constexpr std::uint32_t kViewNodeKind = 2;

// Returns the highest number that is in [low, high] and spoken here, or 0 if there is none.
constexpr std::uint32_t common_protocol(std::uint32_t low, std::uint32_t high) {
  const std::uint32_t highest = std::min(high, kProtocol);
  return highest >= std::max(low, kProtocolMin) ? highest : 0;
}

}  // namespace teletensor::wire
