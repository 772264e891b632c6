#include "clients/session/stream/socket_owner.h"

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <optional>
#include <string_view>

namespace teletensor::client {

using core::Code;
using core::Status;

namespace {

// The path of a target "unix:..." with the bytes that are escaped as in a URI. Empty for other
// targets.
std::string path_of(std::string_view target) {
  if (!target.starts_with("unix:")) return {};
  target.remove_prefix(5);
  std::string path;
  for (std::size_t i = 0; i < target.size(); ++i) {
    unsigned byte = 0;
    if (target[i] == '%' && i + 2 < target.size() &&
        std::from_chars(&target[i + 1], &target[i + 1] + 2, byte, 16).ptr == &target[i + 1] + 2) {
      path.push_back(static_cast<char>(byte));
      i += 2;
    } else {
      path.push_back(target[i]);
    }
  }
  return path;
}

std::string name_of(uid_t user) {
  passwd entry{}, *found = nullptr;
  char text[4096];
  const std::string number = "uid " + std::to_string(user);
  if (getpwuid_r(user, &entry, text, sizeof text, &found) != 0 || found == nullptr) return number;
  return std::string(found->pw_name) + " (" + number + ")";
}

std::optional<uid_t> user_of(const std::string& text) {
  uid_t user = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), user);
  if (error == std::errc() && end == text.data() + text.size()) return user;
  passwd entry{}, *found = nullptr;
  char buffer[4096];
  if (getpwnam_r(text.c_str(), &entry, buffer, sizeof buffer, &found) != 0 || found == nullptr) {
    return {};
  }
  return found->pw_uid;
}

// The owner of the first folder of the path that is not root's. None if other users can make
// folders above it.
std::optional<uid_t> owner_of_folder(const std::string& socket) {
  const std::size_t slash = socket.rfind('/');
  const std::string given = slash == std::string::npos ? "."
                            : slash == 0               ? "/"
                                                       : socket.substr(0, slash);
  char real[PATH_MAX];
  if (realpath(given.c_str(), real) == nullptr) return {};
  const std::string folder = real;
  for (std::size_t end = 0; end != std::string::npos;) {
    struct stat facts {};
    if (stat(end == 0 ? "/" : folder.substr(0, end).c_str(), &facts) != 0) return {};
    if (facts.st_uid != 0) return facts.st_uid;
    if ((facts.st_mode & (S_IWGRP | S_IWOTH)) != 0 || end == folder.size()) return {};
    end = std::min(folder.find('/', end + 1), folder.size());
  }
  return {};
}

}  // namespace

Status check_socket_owner(const std::string& target) {
  const std::string path = path_of(target);
  struct stat facts {};
  if (path.empty() || stat(path.c_str(), &facts) != 0) return {};
  const uid_t owner = facts.st_uid;
  if (owner == 0 || owner == geteuid()) return {};
  const char* const set = std::getenv("TELETENSOR_SOCKET_OWNER");
  if (set != nullptr && *set != 0) {
    if (user_of(set) == owner) return {};
    return Status(Code::kPermissionDenied, "the socket " + path + " belongs to " + name_of(owner) +
                                               ", and TELETENSOR_SOCKET_OWNER says " + set +
                                               ": nothing is sent to a program of another user");
  }
  if (owner_of_folder(path) == owner) return {};
  return Status(Code::kPermissionDenied,
                "the socket " + path + " belongs to " + name_of(owner) +
                    ", who is neither you, nor root, nor the owner of a folder that root has made "
                    "for it: nothing is sent to a program of another user; if its daemon is meant, "
                    "set TELETENSOR_SOCKET_OWNER=" +
                    std::to_string(owner));
}

}  // namespace teletensor::client
