#include "server/base/os/restart.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <string>

namespace teletensor::server {
namespace {

// "COUNT:UNIX TIME" of the consecutive restarts, passed to the next execution of the program.
constexpr const char* kVariable = "TELETENSORD_RESTARTED";
// Seconds without a restart after which the count of restarts begins anew.
constexpr long kCalm = 600;

int restarts_in_a_row() {
  const char* text = std::getenv(kVariable);
  if (text == nullptr) return 0;
  char* end = nullptr;
  const long count = std::strtol(text, &end, 10);
  const long at = *end == ':' ? std::strtol(end + 1, nullptr, 10) : 0;
  const bool recent = std::time(nullptr) - at < kCalm;
  return recent && count > 0 ? static_cast<int>(count) : 0;
}

}  // namespace

bool may_restart() { return restarts_in_a_row() < kMaxRestarts; }

core::Status restart(char* const* argv) {
  const std::string value =
      std::to_string(restarts_in_a_row() + 1) + ":" + std::to_string(std::time(nullptr));
  setenv(kVariable, value.c_str(), 1);
  std::error_code error;
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const int descriptor = std::atoi(each.path().filename().c_str());
    if (descriptor > 2) fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  }
  execv("/proc/self/exe", argv);
  return core::Status(core::Code::kUnavailable,
                      std::string("cannot start again: ") + std::strerror(errno));
}

}  // namespace teletensor::server
