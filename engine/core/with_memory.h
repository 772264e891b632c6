// with_memory: code of the standard library throws where it has no memory; at the edges of a call,
// a frame or a snapshot that becomes a Status.
#pragma once

#include <new>
#include <string>

#include "engine/core/status.h"

namespace teletensor::core {

// What act() returns, a Status or a Result; where it throws: the daemon is out of memory for
// `what`.
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
