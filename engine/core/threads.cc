#include "engine/core/threads.h"

#include <cstdio>
#include <cstdlib>

namespace teletensor::core {

std::string refused_thread(const std::system_error& error) {
  return "the system refuses another thread: " + error.code().message() +
         " (see ulimit -u, ulimit -v and the container's limit on pids)";
}

void end_without_thread(const std::system_error& error) {
  std::fprintf(stderr, "teletensord: %s\n", refused_thread(error).c_str());
  std::_Exit(1);
}

}  // namespace teletensor::core
