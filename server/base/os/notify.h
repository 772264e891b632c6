// Notifies the service supervisor by systemd's protocol (sd_notify(3)): a datagram to the socket in
// the environment variable NOTIFY_SOCKET. Has no effect without that variable.
#pragma once

#include <string_view>

namespace teletensor::server {

// Sends a state such as "READY=1", "STOPPING=1" or "WATCHDOG=1". Callable from any thread.
void notify_supervisor(std::string_view state);

}  // namespace teletensor::server
