// A disk that is full, fails or is slow, for a daemon of a test: preloaded, it stands in front of
// the calls that write files. The rule (control.h) is "KIND NUMBER PART" (support/faults.py):
//
//   enospc N PART   what is written to files with PART in their path fails after N more bytes
//   eio N PART      the same with another error
//   room N PART     the folder of such files has room for N bytes
//   slow N PART     each write there takes N milliseconds longer
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>

#include "control.h"

namespace {

using teletensor::faults::control;
using teletensor::faults::kText;

// Of the files in the folder of this one.
long size_of_folder(char* path) {
  *std::strrchr(path, '/') = 0;
  long size = 0;
  DIR* const folder = opendir(path);
  if (folder == nullptr) return 0;
  while (const dirent* const entry = readdir(folder)) {
    struct stat facts;
    if (fstatat(dirfd(folder), entry->d_name, &facts, 0) == 0 && S_ISREG(facts.st_mode)) {
      size += facts.st_size;
    }
  }
  closedir(folder);
  return size;
}

// How many of `bytes` bytes for this file may be written; -1 with errno: none.
ssize_t allowed(int fd, std::size_t bytes) {
  const char* const text = control();
  if (text == nullptr || text[0] == 0) return static_cast<ssize_t>(bytes);
  char rule[kText], kind[16], part[128], link[64], path[4096];
  std::memcpy(rule, text, kText);
  rule[kText - 1] = 0;
  long number = 0;
  if (std::sscanf(rule, "%15s %ld %127s", kind, &number, part) != 3) {
    return static_cast<ssize_t>(bytes);
  }
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length <= 0) return static_cast<ssize_t>(bytes);
  path[length] = 0;
  if (std::strstr(path, part) == nullptr) return static_cast<ssize_t>(bytes);
  if (std::strcmp(kind, "slow") == 0) {
    usleep(static_cast<useconds_t>(number * 1000));
    return static_cast<ssize_t>(bytes);
  }
  if (std::strcmp(kind, "room") == 0) {
    const long room = number - size_of_folder(path);
    if (room <= 0) errno = ENOSPC;
    return room <= 0 ? -1 : static_cast<ssize_t>(std::min<std::size_t>(bytes, room));
  }
  static std::atomic<long> written{0};
  static std::atomic<int> last{0};
  int version = 0;
  for (const char* c = rule; *c != 0; ++c) version = version * 31 + *c;
  if (last.exchange(version) != version) written = 0;
  const long room = number - written.load();
  if (room <= 0) {
    errno = std::strcmp(kind, "eio") == 0 ? EIO : ENOSPC;
    return -1;
  }
  const auto some = std::min<std::size_t>(bytes, static_cast<std::size_t>(room));
  written += static_cast<long>(some);
  return static_cast<ssize_t>(some);
}

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

ssize_t write(int fd, const void* data, size_t bytes) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t)>("write");
  const ssize_t some = allowed(fd, bytes);
  return some < 0 ? -1 : real(fd, data, static_cast<size_t>(some));
}

ssize_t writev(int fd, const iovec* parts, int count) {
  static const auto real = next<ssize_t (*)(int, const iovec*, int)>("writev");
  std::size_t bytes = 0;
  for (int i = 0; i < count; ++i) bytes += parts[i].iov_len;
  const ssize_t some = allowed(fd, bytes);
  if (some < 0) return -1;
  return static_cast<std::size_t>(some) == bytes
             ? real(fd, parts, count)
             : ::write(fd, parts[0].iov_base, std::min<std::size_t>(parts[0].iov_len, 1));
}

ssize_t pwrite(int fd, const void* data, size_t bytes, off_t at) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  const ssize_t some = allowed(fd, bytes);
  return some < 0 ? -1 : real(fd, data, static_cast<size_t>(some), at);
}

ssize_t pwrite64(int fd, const void* data, size_t bytes, off64_t at) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t, off64_t)>("pwrite64");
  const ssize_t some = allowed(fd, bytes);
  return some < 0 ? -1 : real(fd, data, static_cast<size_t>(some), at);
}

int fallocate64(int fd, int mode, off64_t at, off64_t bytes) {
  static const auto real = next<int (*)(int, int, off64_t, off64_t)>("fallocate64");
  return allowed(fd, 1) < 0 ? -1 : real(fd, mode, at, bytes);
}

int posix_fallocate64(int fd, off64_t at, off64_t bytes) {
  static const auto real = next<int (*)(int, off64_t, off64_t)>("posix_fallocate64");
  return allowed(fd, 1) < 0 ? errno : real(fd, at, bytes);
}

}  // extern "C"
