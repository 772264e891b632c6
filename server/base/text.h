// Makes texts of clients safe to display in logs, tables and messages.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace teletensor::server {

// Returns `text` as valid UTF-8 on one line, cut to at most `most` bytes. Characters that could
// change how a log or a terminal displays it (control characters, quotes, backslashes, direction
// marks) become "?".
std::string readable(std::string_view text, std::size_t most);

}  // namespace teletensor::server
