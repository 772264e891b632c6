// The commands of the test: a rule in the file that TT_FAULTS names, which the test changes at any
// time.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>

namespace teletensor::faults {

constexpr std::size_t kText = 256;

// kText bytes, with zeros after the rule; null if there is no file.
inline const char* control() {
  static const char* const mapped = [] {
    const char* const path = std::getenv("TT_FAULTS");
    const int fd = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return static_cast<const char*>(nullptr);
    void* const memory = mmap(nullptr, kText, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    return memory == MAP_FAILED ? nullptr : static_cast<const char*>(memory);
  }();
  return mapped;
}

}  // namespace teletensor::faults
