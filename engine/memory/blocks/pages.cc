#include <sys/mman.h>

#include <cstdint>

#include "engine/memory/blocks/shared_pages.h"
#include "engine/memory/blocks/size_class.h"
#include "engine/memory/blocks/source.h"

namespace teletensor::memory {
namespace {

void* map(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace

void* map_pages(std::size_t bytes) {
  if (bytes > SIZE_MAX / 4) return nullptr;
  const std::size_t length = whole_pages(bytes);
  if (length < (std::size_t{1} << 20)) return map(length);
  // Map more than needed and cut off both ends, so that the rest starts on a huge page.
  char* start = static_cast<char*>(map(length + kHugePage));
  if (start == nullptr) return nullptr;
  const auto address = reinterpret_cast<std::uintptr_t>(start);
  const std::size_t head = (kHugePage - address % kHugePage) % kHugePage;
  if (head > 0) munmap(start, head);
  char* aligned = start + head;
  if (kHugePage - head > 0) munmap(aligned + length, kHugePage - head);
  madvise(aligned, length, MADV_HUGEPAGE);  // advice only: kernels without huge pages refuse it
  return aligned;
}

void unmap_pages(void* memory, std::size_t bytes) { munmap(memory, whole_pages(bytes)); }

int Source::open(std::size_t bytes, void** memory) { return open_pages(bytes, memory); }

void Source::withdraw(int descriptor, void* memory, std::size_t bytes) {
  withdraw_pages(descriptor, memory, bytes);
}

}  // namespace teletensor::memory
