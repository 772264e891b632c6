// For death tests of threads that the system refuses.
#pragma once

#include <sys/resource.h>

namespace teletensor::core {

// A sanitizer needs address space of its own.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kRoomCanBeTaken = false;
#else
constexpr bool kRoomCanBeTaken = true;
#endif

// Leaves the process no address space for another stack.
inline void take_all_room() {
  const rlimit none{};
  setrlimit(RLIMIT_AS, &none);
}

}  // namespace teletensor::core
