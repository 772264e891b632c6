// Whether the process may have more threads, for libraries that abort it where a thread is refused.
#pragma once

#include "engine/core/status.h"

namespace teletensor::server {

// Can the process have `count` more threads at the same time? Starts and ends them to find out.
// UNAVAILABLE if not.
core::Status check_threads(int count);

}  // namespace teletensor::server
