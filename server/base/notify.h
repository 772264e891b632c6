// What the supervisor is told: systemd's notification protocol (sd_notify(3)), a datagram to the
// socket that NOTIFY_SOCKET names. Nothing happens without that variable.
#pragma once

#include <string_view>

namespace teletensor::server {

// Such as "READY=1", "STOPPING=1", "WATCHDOG=1". Any thread.
void notify_supervisor(std::string_view state);

}  // namespace teletensor::server
