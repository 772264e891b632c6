// Checks whether the process can create more threads. Some libraries abort the process if they
// cannot create one.
#pragma once

#include "engine/core/status.h"

namespace teletensor::server {

// Checks whether the process can have `count` more threads at the same time, by creating and ending
// them. UNAVAILABLE if not.
core::Status check_threads(int count);

}  // namespace teletensor::server
