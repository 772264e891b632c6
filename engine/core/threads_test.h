// Helpers for death tests in which the system refuses a thread.
#pragma once

#include <sys/resource.h>

namespace teletensor::core {

// Sanitizers need to allocate address space themselves.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kRoomCanBeTaken = false;
#else
constexpr bool kRoomCanBeTaken = true;
#endif

// Leaves no address space in the process for another stack.
inline void take_all_room() {
  const rlimit none{};
  setrlimit(RLIMIT_AS, &none);
}

}  // namespace teletensor::core
