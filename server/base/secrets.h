// Random bits of the system, as text or as a number, and a comparison that tells nothing by its
// time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace teletensor::server {

// `bytes` of them (at most 64), in hexadecimal; "" where the system has none to give.
std::string random_hex(std::size_t bytes);
std::optional<std::uint64_t> random_number();

// In a time that does not tell how much was right; how long the texts are is no secret.
bool same_secret(std::string_view a, std::string_view b);

}  // namespace teletensor::server
