// Derives the limits of clients from the daemon's settings.
#pragma once

#include <chrono>

#include "server/base/limits.h"
#include "server/config.h"

namespace teletensor::server {

// A setting in seconds as a duration. Parts of a millisecond are cut off.
std::chrono::milliseconds milliseconds(double seconds);

// The limits of all users, and of each user with settings of its own. A value that the user's
// section of the file does not set is that of all users.
Limits client_limits(const Config& config);

}  // namespace teletensor::server
