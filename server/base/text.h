// Texts of clients in logs, tables and messages to people.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace teletensor::server {

// `text` cut to at most `most` bytes, valid UTF-8 and on one line. What could change how a log or
// a terminal shows it (control characters, quotes, backslashes, changes of direction) is "?".
std::string readable(std::string_view text, std::size_t most);

}  // namespace teletensor::server
