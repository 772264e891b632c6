// Addresses to listen on, checked before gRPC sees them.
#pragma once

#include <string>
#include <string_view>

#include "engine/core/status.h"

namespace teletensor::server {

// INVALID_ARGUMENT unless it is "HOST:PORT". `what` names the setting in the text.
core::Status check_address(const std::string& what, std::string_view address);
// Is HOST a loopback address, [::1] or localhost? Names such as 127.example.org are not.
bool is_loopback(std::string_view address);

// Why HOST:PORT, to which binding failed, is not free: the process that listens on the port, or the
// user whose process that is; else that it is not an address of this machine.
std::string why_not_free(std::string_view address);

// $XDG_RUNTIME_DIR/teletensor.sock; without that variable, teletensor.sock in a directory of this
// user's own under /tmp, which is made here if it is missing.
core::Result<std::string> default_socket();

// Of what the daemon keeps: $STATE_DIRECTORY (systemd), $XDG_STATE_HOME/teletensor or
// ~/.local/state/teletensor; "" without any of them. Not made here.
std::string default_state_dir();

// Refuses a path that is too long for a socket, that gRPC cannot name, or whose directory is
// missing.
core::Status check_socket_path(const std::string& path);
// Makes way for a socket at `path`: removes one that nobody serves. Refuses what is not a socket, a
// socket that is in use, and what check_socket_path() refuses.
core::Status prepare_socket(const std::string& path);

}  // namespace teletensor::server
