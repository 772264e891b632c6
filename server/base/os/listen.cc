#include "server/base/os/listen.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

#include "proto/wire/target.h"
#include "server/base/os/private_files.h"
#include "server/base/os/users.h"

namespace teletensor::server {

using core::Code;
using core::Status;

namespace {

bool digits(std::string_view text) {
  if (text.empty() || text.size() > 5) return false;
  for (char c : text) {
    if (c < '0' || c > '9') return false;
  }
  return true;
}

bool loopback(std::string_view host) {
  if (host == "localhost" || host == "[::1]") return true;
  if (!host.starts_with("127.")) return false;
  // Four numbers up to 255, so that names such as 127.example.org are not accepted.
  int parts = 0;
  for (std::size_t at = 0; at <= host.size(); ++parts) {
    const std::size_t dot = std::min(host.find('.', at), host.size());
    const std::string_view part = host.substr(at, dot - at);
    if (!digits(part) || part.size() > 3 || std::atoi(std::string(part).c_str()) > 255)
      return false;
    at = dot + 1;
  }
  return parts == 4;
}

// Returns true if a process accepts connections at this socket.
bool in_use(const sockaddr_un& address) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const bool connected =
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  close(fd);
  return connected;
}

struct PortHolder {
  std::string inode;  // Inode of the listening socket.
  uid_t user = 0;
};

// Reads the kernel's table, which has the owner of every listening socket.
std::optional<PortHolder> holder_of(int port) {
  constexpr int kListening = 0x0a;
  for (const char* path : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream table(path);
    std::string line;
    while (std::getline(table, line)) {
      char local[64] = {};
      unsigned here = 0, state = 0, user = 0;
      unsigned long inode = 0;
      if (std::sscanf(line.c_str(), " %*d: %63[0-9A-F]:%x %*s %x %*s %*s %*s %u %*d %lu", local,
                      &here, &state, &user, &inode) == 5 &&
          state == kListening && here == static_cast<unsigned>(port)) {
        return PortHolder{std::to_string(inode), user};
      }
    }
  }
  return std::nullopt;
}

// Returns a text like "process 123 (teletensord)". Empty if the descriptors of the process cannot
// be read.
std::string process_with(const std::string& inode) {
  namespace fs = std::filesystem;
  const std::string wanted = "socket:[" + inode + "]";
  std::error_code error;
  for (const auto& process : fs::directory_iterator("/proc", error)) {
    const std::string pid = process.path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    std::error_code hidden;
    for (const auto& entry : fs::directory_iterator(process.path() / "fd", hidden)) {
      if (fs::read_symlink(entry.path(), hidden) != wanted) continue;
      std::string name;
      std::getline(std::ifstream(process.path() / "comm"), name);
      return "process " + pid + " (" + name + ")";
    }
  }
  return "";
}

}  // namespace

std::string why_not_free(std::string_view address) {
  const int port = std::atoi(std::string(address.substr(address.rfind(':') + 1)).c_str());
  const auto holder = port == 0 ? std::nullopt : holder_of(port);
  if (!holder) return "is it an address of this machine?";
  const std::string process = process_with(holder->inode);
  return (process.empty() ? "a process of user " + user_name(holder->user) : process) +
         " listens there";
}

Status check_address(const std::string& what, std::string_view address) {
  const std::size_t colon = address.rfind(':');
  const std::string text(address);
  if (colon == std::string_view::npos || colon == 0 || !digits(address.substr(colon + 1)) ||
      std::atoi(text.c_str() + colon + 1) > 65535) {
    return core::invalid(what + ": \"" + text + "\" is not HOST:PORT");
  }
  return {};
}

bool is_loopback(std::string_view address) {
  return loopback(address.substr(0, address.rfind(':')));
}

core::Result<std::string> default_socket() {
  if (const char* directory = std::getenv("XDG_RUNTIME_DIR"); directory && *directory) {
    return std::string(directory) + "/teletensor.sock";
  }
  const std::string directory = "/tmp/teletensor-" + std::to_string(getuid());
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) return system_error(directory);
  struct stat info {};
  if (lstat(directory.c_str(), &info) != 0) return system_error(directory);
  if (!S_ISDIR(info.st_mode) || info.st_uid != getuid() || (info.st_mode & 077) != 0) {
    return Status(Code::kPermissionDenied,
                  directory + " is not a directory that only this user can open");
  }
  return directory + "/teletensor.sock";
}

std::string default_state_dir() {
  const auto given = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value != nullptr && value[0] == '/' ? value : "");
  };
  if (const std::string folder = given("STATE_DIRECTORY"); !folder.empty()) return folder;
  if (const std::string folder = given("XDG_STATE_HOME"); !folder.empty()) {
    return folder + "/teletensor";
  }
  const std::string home = given("HOME");
  return home.empty() ? "" : home + "/.local/state/teletensor";
}

Status check_socket_path(const std::string& path) {
  const sockaddr_un address{};
  if (!wire::is_socket_path(path)) {
    return core::invalid(
        "socket: gRPC cannot name a path with a comma or a NUL byte, so no client could connect: " +
        path);
  }
  if (path.size() >= sizeof address.sun_path) {
    return core::invalid("socket: the path is longer than " +
                         std::to_string(sizeof address.sun_path - 1) + " bytes: " + path);
  }
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!parent.empty() && !std::filesystem::is_directory(parent, error)) {
    return Status(Code::kNotFound, "socket: no directory " + parent.string());
  }
  return {};
}

Status prepare_socket(const std::string& path) {
  TT_RETURN_IF_ERROR(check_socket_path(path));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? Status() : system_error("socket " + path);
  }
  if (!S_ISSOCK(info.st_mode)) {
    return Status(Code::kAlreadyExists, "socket: " + path + " exists and is not a socket");
  }
  if (in_use(address)) {
    return Status(Code::kAlreadyExists, "socket: another daemon serves " + path);
  }
  if (unlink(path.c_str()) != 0) return system_error("socket " + path);
  return {};
}

}  // namespace teletensor::server
