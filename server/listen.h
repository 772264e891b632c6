// Addresses to listen on, checked before gRPC sees them.
#pragma once

#include <string>
#include <string_view>

#include "engine/core/status.h"

namespace teletensor::server {

// "HOST:PORT" with HOST a loopback address, [::1] or localhost; else INVALID_ARGUMENT that says
// why.
core::Status check_loopback(std::string_view address);

// $XDG_RUNTIME_DIR/teletensor.sock; without that variable, teletensor.sock in a directory of this
// user's own under /tmp, which is made here if it is missing.
core::Result<std::string> default_socket();

// Makes way for a socket at `path`: removes one that nobody serves. Refuses what is not a socket, a
// socket that is in use, a path that is too long or whose directory is missing.
core::Status prepare_socket(const std::string& path);

}  // namespace teletensor::server
