// The version of the protocol that clients and daemons of this checkout speak.
#pragma once

#include <cstdint>

namespace teletensor::wire {

// A change that a peer of before would misread makes it one more; Hello refuses the others by name.
inline constexpr std::uint32_t kProtocol = 2;

}  // namespace teletensor::wire
