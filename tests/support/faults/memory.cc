// Makes allocations fail in a daemon of a test: operator new finds no memory when a counter in the
// file that TT_MEMORY names reaches zero (support/faults.py), and then does what the standard says:
// it calls the new-handler, which throws or provides memory. It counts only allocations by code of
// the daemon itself, also those made through the standard library, because gRPC cannot handle a
// failed allocation. Generated code of protobuf counts, but not gRPC's templates that the daemon
// contains.
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
#include <initializer_list>
#include <new>
#include <string_view>

namespace {

struct Said {
  // the number of allocations until one fails
  std::atomic<std::int64_t> left;
  std::atomic<std::int64_t> many;    // how many fail from then on, one after the other
  std::atomic<std::int64_t> failed;  // the number of allocations that have failed
};
static_assert(sizeof(Said) == 24);

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

// Returns whether the address is in a function of the daemon's file with one of these prefixes.
bool is_named(const void* address, std::initializer_list<std::string_view> prefixes) {
  Dl_info found{};
  if (!code().daemon.has(address) || dladdr(address, &found) == 0 || found.dli_sname == nullptr) {
    return false;
  }
  const std::string_view name = found.dli_sname;
  for (const std::string_view prefix : prefixes) {
    if (name.substr(0, prefix.size()) == prefix) return true;
  }
  return false;
}

// Also covers template instantiations of the standard library that were compiled into the daemon,
// and that gRPC and Abseil use.
bool is_standard(const void* address) {
  return code().standard.has(address) || is_named(address, {"_ZNSt", "_ZNKSt", "_ZSt"});
}

// gRPC calls some of its functions in the daemon's file, because that file has a copy of them.
bool is_own(const void* address) {
  return code().daemon.has(address) && !is_named(address, {"_ZN4grpc", "_ZNK4grpc"});
}

// Returns whether the daemon itself allocates, directly or through the standard library.
bool on_behalf_of_the_daemon(const void* caller) {
  if (!is_standard(caller)) return is_own(caller);
  void* frames[32];
  const int count = backtrace(frames, 32);
  int at = 0;
  while (at < count && frames[at] != caller) ++at;
  while (at < count && is_standard(frames[at])) ++at;
  return at < count && is_own(frames[at]);
}

// Writes the stack of the allocation that fails to the daemon's log.
void tell_where() {
  void* frames[48];
  const int count = backtrace(frames, 48);
  backtrace_symbols_fd(frames, count, STDERR_FILENO);
}

bool fails(const void* caller) {
  Said* const what = said();
  if (what == nullptr || what->many.load(std::memory_order_relaxed) == 0) return false;
  static thread_local bool asking = false;
  if (asking) return false;
  asking = true;
  const bool behalf = on_behalf_of_the_daemon(caller);
  asking = false;
  if (!behalf) return false;
  const std::int64_t left = what->left.fetch_sub(1);
  if (left > 1 || left <= 1 - what->many) return false;
  ++what->failed;
  asking = true;
  tell_where();
  asking = false;
  return true;
}

void* find(std::size_t bytes, std::size_t alignment) {
  void* out = nullptr;
  if (alignment <= alignof(std::max_align_t)) return std::malloc(bytes == 0 ? 1 : bytes);
  return posix_memalign(&out, alignment, bytes == 0 ? 1 : bytes) == 0 ? out : nullptr;
}

void* allocate(std::size_t bytes, std::size_t alignment, const void* caller) {
  bool failed = fails(caller);
  while (true) {
    void* const memory = failed ? nullptr : find(bytes, alignment);
    if (memory != nullptr) return memory;
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
    handler();
    failed = false;
  }
}

void* allocate_or_null(std::size_t bytes, const void* caller) noexcept try {
  return allocate(bytes, 0, caller);
} catch (const std::bad_alloc&) {
  return nullptr;
}

}  // namespace

#define CALLER __builtin_return_address(0)

void* operator new(std::size_t bytes) { return allocate(bytes, 0, CALLER); }
void* operator new[](std::size_t bytes) { return allocate(bytes, 0, CALLER); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment), CALLER);
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment), CALLER);
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate_or_null(bytes, CALLER);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate_or_null(bytes, CALLER);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
