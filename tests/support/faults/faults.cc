// Simulates a disk that is full, fails or is slow, or kills the daemon at chosen points, for a
// daemon of a test: this preloaded library wraps the calls that change files. The rule (control.h)
// is "KIND NUMBER PART" (support/faults.py):
//
//   enospc N PART   writes to files with PART in their path fail after N more bytes
//   eio N PART      the same with the error EIO
//   room N PART     the folder of such files is limited to N bytes
//   slow N PART     each write to such files takes N milliseconds longer
//   kill N PART     kill -9 before the N-th call that writes, syncs, renames or removes one
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <optional>

#include "control.h"

namespace {

using teletensor::faults::control;
using teletensor::faults::kText;

// The total size of the files in the folder of this file.
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

struct Rule {
  char kind[16], part[128];
  long number = 0;
  int version = 0;  // differs for each rule that the test sets

  bool is(const char* name) const { return std::strcmp(kind, name) == 0; }
  // The sum since the test has set this rule, including `more`.
  long count(long more) const {
    static std::atomic<long> sum{0};
    static std::atomic<int> last{0};
    if (last.exchange(version) != version) sum = 0;
    return sum += more;
  }
};

// The rule, if it applies to the file at this path.
std::optional<Rule> rule_for(const char* path) {
  const char* const text = control();
  if (text == nullptr || text[0] == 0) return std::nullopt;
  char words[kText];
  std::memcpy(words, text, kText);
  words[kText - 1] = 0;
  Rule rule;
  if (std::sscanf(words, "%15s %ld %127s", rule.kind, &rule.number, rule.part) != 3 ||
      std::strstr(path, rule.part) == nullptr) {
    return std::nullopt;
  }
  for (const char* c = words; *c != 0; ++c) rule.version = rule.version * 31 + *c;
  return rule;
}

// The path of the descriptor; "" if it has none.
void path_of(int fd, char (&path)[4096]) {
  char link[64];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  path[std::max<ssize_t>(readlink(link, path, sizeof path - 1), 0)] = 0;
}

void kill_if_due(const Rule& rule) {
  if (rule.is("kill") && rule.count(1) == rule.number) kill(getpid(), SIGKILL);
}

void before_change(const char* path) {
  if (const std::optional<Rule> rule = rule_for(path)) kill_if_due(*rule);
}

// How many of `bytes` bytes may be written to this file; -1, with errno set, if none may.
ssize_t allowed(int fd, std::size_t bytes) {
  char path[4096] = "";
  if (control() != nullptr && control()[0] != 0) path_of(fd, path);
  const std::optional<Rule> rule = rule_for(path);
  if (!rule) return static_cast<ssize_t>(bytes);
  kill_if_due(*rule);
  if (rule->is("slow")) usleep(static_cast<useconds_t>(rule->number * 1000));
  if (rule->is("room")) {
    const long room = rule->number - size_of_folder(path);
    if (room <= 0) errno = ENOSPC;
    return room <= 0 ? -1 : static_cast<ssize_t>(std::min<std::size_t>(bytes, room));
  }
  if (!rule->is("enospc") && !rule->is("eio")) return static_cast<ssize_t>(bytes);
  const long room = rule->number - rule->count(0);
  if (room <= 0) {
    errno = rule->is("eio") ? EIO : ENOSPC;
    return -1;
  }
  const auto some = std::min<std::size_t>(bytes, static_cast<std::size_t>(room));
  rule->count(static_cast<long>(some));
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

int fsync(int fd) {
  static const auto real = next<int (*)(int)>("fsync");
  char path[4096];
  path_of(fd, path);
  before_change(path);
  return real(fd);
}

int rename(const char* from, const char* to) {
  static const auto real = next<int (*)(const char*, const char*)>("rename");
  before_change(to);
  return real(from, to);
}

int unlink(const char* path) {
  static const auto real = next<int (*)(const char*)>("unlink");
  before_change(path);
  return real(path);
}

int remove(const char* path) {
  static const auto real = next<int (*)(const char*)>("remove");
  before_change(path);
  return real(path);
}

}  // extern "C"
