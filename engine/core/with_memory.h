// with_memory: converts exceptions of the standard library, which are thrown for lack of memory,
// into a Status at the boundary of a call, a frame or a snapshot.
#pragma once

#include <new>
#include <string>

#include "engine/core/memory/reserve.h"
#include "engine/core/status.h"

namespace teletensor::core {

// Returns the result of act(), which is a Status or a Result and may not use the reserve of memory.
// If act() throws, returns the error that the daemon is out of memory for `what`.
template <class Act>
auto with_memory(const char* what, Act&& act) -> decltype(act()) {
  try {
    const UsesReserve forbidden(false);
    return act();
  } catch (const std::bad_alloc&) {
    const UsesReserve for_the_error;
    return Status(Code::kResourceExhausted, std::string("the daemon is out of memory for ") + what);
  } catch (...) {
    const UsesReserve for_the_error;
    return internal(std::string("the daemon threw an exception: ") + what);
  }
}

}  // namespace teletensor::core
