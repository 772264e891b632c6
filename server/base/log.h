// Sets up the daemon's log.
#pragma once

#include <string>

namespace teletensor::server {

// Installs spdlog's default logger, which writes lines of `level` and above to standard error. The
// daemon never waits for its log: if standard error is a full pipe, lines are dropped, and the next
// line that can be written reports their number.
void start_log(const std::string& level);

}  // namespace teletensor::server
