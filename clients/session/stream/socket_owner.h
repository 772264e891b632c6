// Checks whose UNIX socket a client is about to use. Another user of the machine could listen where
// a daemon is expected, and would receive the token and the data of the client.
#pragma once

#include <string>

#include "engine/core/status.h"

namespace teletensor::client {

// `target` is in gRPC's notation. Returns OK for an address that is no UNIX socket, for a socket
// that does not exist, and for one that belongs to this process's user, to root, or to the user in
// whose folder it is: the first folder of its path that does not belong to root, if only root could
// have made that folder (/run/teletensor of a daemon with a user of its own; a home directory).
// TELETENSOR_SOCKET_OWNER, a user's name or number, replaces that folder's owner. Otherwise returns
// PERMISSION_DENIED with the owner and what to do.
core::Status check_socket_owner(const std::string& target);

}  // namespace teletensor::client
