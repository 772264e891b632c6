// The version of the protocol that the clients and the daemon of this checkout use.
#pragma once

#include <cstdint>

namespace teletensor::wire {

// Incremented by every change that an older peer would misread. Hello refuses a peer with another
// version and names both versions.
inline constexpr std::uint32_t kProtocol = 2;

}  // namespace teletensor::wire
