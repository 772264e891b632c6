#include "engine/memory/blocks/shared_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "engine/memory/blocks/size_class.h"

namespace teletensor::memory {
namespace {

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

int new_file(std::size_t length) {
  const int file = memfd_create("teletensor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return -1;
  if (ftruncate(file, static_cast<off_t>(length)) == 0) return file;
  close(file);
  return -1;
}

// Uses write(), which returns an error if there is no memory left; a store into a mapping would
// kill the process.
bool fill(int file, const char* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes;) {
    const ssize_t n = pwrite(file, from + at, bytes - at, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += static_cast<std::size_t>(n);
  }
  return true;
}

}  // namespace

int share_pages(void* pages, std::size_t length, std::size_t used) {
  length = whole_pages(length);
  const int file = new_file(length);
  if (file < 0) return -1;
  if (fill(file, static_cast<const char*>(pages), std::min(used, length)) &&
      mmap(pages, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED) {
    madvise(pages, length, MADV_HUGEPAGE);  // advice only
    if (fcntl(file, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | kSizeSeals) == 0) return file;
    // The kernel is too old for the seals: the pages stay, but are not shared.
  }
  close(file);
  return -1;
}

int open_pages(std::size_t length, void** pages) {
  length = whole_pages(length);
  const int file = new_file(length);
  if (file < 0) return -1;
  *pages = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (*pages != MAP_FAILED) {
    madvise(*pages, length, MADV_HUGEPAGE);
    if (fcntl(file, F_ADD_SEALS, kSizeSeals) == 0) return file;
    munmap(*pages, length);
  }
  close(file);
  return -1;
}

void withdraw_pages(int descriptor, void* pages, std::size_t length) {
  length = whole_pages(length);
  fallocate(descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(length));
  munmap(pages, length);
  close(descriptor);
}

}  // namespace teletensor::memory
