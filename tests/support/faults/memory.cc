// Makes an allocation fail in a daemon of a test: operator new throws when a counter in the file
// that TT_MEMORY names reaches zero (support/faults.py). It counts only allocations by code of the
// daemon itself, also those made through the standard library, because gRPC and protobuf cannot
// handle a failed allocation.
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

struct Said {
  // the number of allocations until one fails; 0 if none shall fail
  std::atomic<std::int64_t> left;
  std::atomic<std::int64_t> failed;  // the number of allocations that have failed
};
static_assert(sizeof(Said) == 16);

Said* said() {
  static Said* const mapped = [] {
    const char* const path = std::getenv("TT_MEMORY");
    const int fd = path == nullptr ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return static_cast<Said*>(nullptr);
    void* const memory = mmap(nullptr, sizeof(Said), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return memory == MAP_FAILED ? nullptr : static_cast<Said*>(memory);
  }();
  return mapped;
}

struct Range {
  std::uintptr_t from = 0, to = 0;
  bool has(const void* address) const {
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    return from <= at && at < to;
  }
};
struct Code {
  Range daemon, standard;
};

const Code& code() {
  static const Code found = [] {
    Code out;
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* to) {
          Code& ranges = *static_cast<Code*>(to);
          const bool daemon = info->dlpi_name[0] == 0 && ranges.daemon.to == 0;
          if (!daemon && std::strstr(info->dlpi_name, "libstdc++") == nullptr) return 0;
          Range& range = daemon ? ranges.daemon : ranges.standard;
          for (int i = 0; i < info->dlpi_phnum; ++i) {
            const auto& part = info->dlpi_phdr[i];
            if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
            range = {info->dlpi_addr + part.p_vaddr, info->dlpi_addr + part.p_vaddr + part.p_memsz};
          }
          return 0;
        },
        &out);
    return out;
  }();
  return found;
}

// Also covers template instantiations of the standard library that were compiled into the daemon,
// and that gRPC and Abseil use.
bool is_standard(const void* address) {
  if (code().standard.has(address)) return true;
  Dl_info found{};
  if (!code().daemon.has(address) || dladdr(address, &found) == 0 || found.dli_sname == nullptr) {
    return false;
  }
  const char* const name = found.dli_sname;
  return std::strncmp(name, "_ZNSt", 5) == 0 || std::strncmp(name, "_ZNKSt", 6) == 0 ||
         std::strncmp(name, "_ZSt", 4) == 0;
}

// Returns whether the daemon itself allocates, directly or through the standard library.
bool on_behalf_of_the_daemon(const void* caller) {
  if (!is_standard(caller)) return code().daemon.has(caller);
  void* frames[32];
  const int count = backtrace(frames, 32);
  int at = 0;
  while (at < count && frames[at] != caller) ++at;
  while (at < count && is_standard(frames[at])) ++at;
  return at < count && code().daemon.has(frames[at]);
}

bool fails(const void* caller) {
  Said* const what = said();
  if (what == nullptr || what->left.load(std::memory_order_relaxed) <= 0) return false;
  static thread_local bool asking = false;
  if (asking) return false;
  asking = true;
  const bool behalf = on_behalf_of_the_daemon(caller);
  asking = false;
  if (!behalf) return false;
  if (what->left.fetch_sub(1) != 1) return false;
  ++what->failed;
  return true;
}

void* allocate(std::size_t bytes, std::size_t alignment, const void* caller) noexcept {
  if (fails(caller)) return nullptr;
  bytes = bytes == 0 ? 1 : bytes;
  void* out = nullptr;
  if (alignment <= alignof(std::max_align_t)) return std::malloc(bytes);
  return posix_memalign(&out, alignment, bytes) == 0 ? out : nullptr;
}

void* or_throw(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

#define CALLER __builtin_return_address(0)

void* operator new(std::size_t bytes) { return or_throw(allocate(bytes, 0, CALLER)); }
void* operator new[](std::size_t bytes) { return or_throw(allocate(bytes, 0, CALLER)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return or_throw(allocate(bytes, static_cast<std::size_t>(alignment), CALLER));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return or_throw(allocate(bytes, static_cast<std::size_t>(alignment), CALLER));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes, 0, CALLER);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes, 0, CALLER);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
