// Converts the path of a UNIX socket to a gRPC target, which is a URI.
#pragma once

#include <string>
#include <string_view>

namespace teletensor::wire {

// Returns true if gRPC can name this path. A comma separates the addresses of a target, even if it
// is escaped, and a NUL would end the path early.
inline bool is_socket_path(std::string_view path) {
  return !path.empty() && path.find(',') == std::string_view::npos &&
         path.find('\0') == std::string_view::npos;
}

// Returns "unix:" followed by `path`, with all bytes escaped that have a meaning in a URI.
// Precondition: is_socket_path(path).
inline std::string socket_target(std::string_view path) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/-._~";
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string target = "unix:";
  for (const char c : path) {
    if (kPlain.find(c) != std::string_view::npos) {
      target += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      target += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return target;
}

}  // namespace teletensor::wire
