// Restarts the daemon in place after the loss of a device: the process executes its program again.
#pragma once

#include "engine/core/status.h"

namespace teletensor::server {

// Maximum number of consecutive restarts with less than ten minutes between each two. Afterwards an
// operator must restart the daemon.
inline constexpr int kMaxRestarts = 3;
bool may_restart();

// Replaces the running program by a new execution of it, with the original arguments. Returns only
// on failure. Precondition: all sessions are written to files, and nothing needs the memory of the
// process any more.
core::Status restart(char* const* argv);

}  // namespace teletensor::server
