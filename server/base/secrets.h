// Generates random secrets and numbers from the system's random source, and compares secrets in
// constant time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace teletensor::server {

// Returns `bytes` random bytes (at most 64) as hexadecimal digits. Empty if the system's random
// source fails.
std::string random_hex(std::size_t bytes);
std::optional<std::uint64_t> random_number();

// Compares two secrets in a time that does not depend on their contents. The time may depend on
// their lengths.
bool same_secret(std::string_view a, std::string_view b);

}  // namespace teletensor::server
