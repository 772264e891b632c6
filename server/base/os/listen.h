// Checks of the addresses and sockets on which the daemon listens, before they are passed to gRPC.
#pragma once

#include <string>
#include <string_view>

#include "engine/core/status.h"

namespace teletensor::server {

// Returns INVALID_ARGUMENT unless the address has the form "HOST:PORT". `what` is the name of the
// setting for the message.
core::Status check_address(const std::string& what, std::string_view address);
// Returns true if HOST is a loopback address, [::1] or localhost. Returns false for names such as
// 127.example.org.
bool is_loopback(std::string_view address);

// Explains why binding HOST:PORT failed: names the process that listens on the port, or its user;
// otherwise says that HOST is not an address of this machine.
std::string why_not_free(std::string_view address);

// The default socket path: $XDG_RUNTIME_DIR/teletensor.sock, or, without that variable,
// teletensor.sock in a private directory of the user under /tmp. That directory is created if it is
// missing.
core::Result<std::string> default_socket();

// The default state directory: $STATE_DIRECTORY (set by systemd), $XDG_STATE_HOME/teletensor or
// ~/.local/state/teletensor. Empty if none of these can be determined. The directory is not
// created.
std::string default_state_dir();

// Refuses a path that is too long for a socket, that gRPC cannot represent, or whose directory is
// missing.
core::Status check_socket_path(const std::string& path);
// Prepares `path` for a new socket: removes an old socket on which no process listens. Refuses a
// file that is not a socket, a socket in use, and what check_socket_path() refuses.
core::Status prepare_socket(const std::string& path);

}  // namespace teletensor::server
