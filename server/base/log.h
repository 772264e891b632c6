// The daemon's log.
#pragma once

#include <string>

namespace teletensor::server {

// spdlog's default logger from here on: lines on standard error, from that level on. Lines that
// nobody takes (a pipe that is full) are left out, and counted in the next one that is taken: the
// daemon never waits for its log.
void start_log(const std::string& level);

}  // namespace teletensor::server
