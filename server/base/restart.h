// Starting again in place, after the loss of a device: the same process, a new image of the
// program.
#pragma once

#include "engine/core/status.h"

namespace teletensor::server {

// So often in a row, each less than ten minutes after the one before; then somebody has to look.
inline constexpr int kMaxRestarts = 3;
bool may_restart();

// Replaces the running program by itself, with the arguments it was started with. Returns only
// where that fails. Precondition: sessions are written down, nobody needs the process's memory any
// more.
core::Status restart(char* const* argv);

}  // namespace teletensor::server
