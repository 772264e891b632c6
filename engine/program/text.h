// Texts of clients: names, attributes and places in source code. They appear in errors, tables and
// the log.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace teletensor::program {

// Returns the length of the valid UTF-8 sequence at the beginning of `text`, and its code point.
// Returns 0 if there is none. Precondition: `text` is not empty.
std::size_t first_character(std::string_view text, std::uint32_t& point);

// Returns false for characters that change how a log or a terminal displays a text: control
// characters, line separators, direction marks and characters without a width.
bool is_shown(std::uint32_t point);

// Returns true if `text` is valid UTF-8 on one line and all of its characters are shown.
bool is_one_line(std::string_view text);

// Returns `text` with "?" in place of everything for which is_one_line() is false.
std::string one_line(std::string_view text);
// Like one_line(), but keeps the ends of lines.
std::string shown_lines(std::string_view text);

// Returns the first bytes of `text`, at most `bytes` of them and no part of a UTF-8 character.
std::string shortened(std::string text, std::size_t bytes);

}  // namespace teletensor::program
