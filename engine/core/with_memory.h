// with_memory: converts exceptions of the standard library, which are thrown for lack of memory,
// into a Status at the boundary of a call, a frame or a snapshot.
#pragma once

#include <new>
#include <string>

#include "engine/core/status.h"

namespace teletensor::core {

// Returns the result of act(), which is a Status or a Result. If act() throws, returns the error
// that the daemon is out of memory for `what`.
template <class Act>
auto with_memory(const char* what, Act&& act) -> decltype(act()) {
  try {
    return act();
  } catch (const std::bad_alloc&) {
    return Status(Code::kResourceExhausted, std::string("the daemon is out of memory for ") + what);
  } catch (...) {
    return internal(std::string("the daemon threw an exception: ") + what);
  }
}

}  // namespace teletensor::core
