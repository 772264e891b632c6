// Memory of the driver that other processes can map: physical memory is a file, which is mapped at
// an address of the device. The functions of the driver that a client's process calls are here,
// too.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "engine/backends/cuda/driver/driver.h"
#include "fake.h"

using namespace fake;
using teletensor::backends::cuda::MemoryAccess;
using teletensor::backends::cuda::MemoryKind;
using Lock = std::unique_lock<std::mutex>;

#define EXPORT extern "C" __attribute__((visibility("default"))) int

#define ENTER                           \
  Lock lock;                            \
  int error = kSuccess;                 \
  Device* device = enter(lock, &error); \
  if (device == nullptr) return error

namespace {

Device* device_at(int ordinal) {
  return ordinal < 0 || ordinal >= config().devices
             ? nullptr
             : &state().devices[static_cast<std::size_t>(ordinal)];
}

Device* device_of(const MemoryKind* kind) {
  return kind->type == 1 && kind->handles == 1 && kind->place.type == 1 ? device_at(kind->place.id)
                                                                        : nullptr;
}

Physical* physical_of(std::uint64_t handle) {
  const auto found = state().physical.find(handle);
  return found == state().physical.end() || found->second.released ? nullptr : &found->second;
}

void let_go(std::uint64_t handle) {
  Physical& physical = state().physical.at(handle);
  if (--physical.holders > 0) return;
  close(physical.file);
  if (physical.device != nullptr) physical.device->used -= physical.bytes;
  state().physical.erase(handle);
}

// Returns the block of the range of addresses that was reserved with exactly this beginning and
// size, or null if there is none. `whose` receives the device of the range.
Block* range_of(std::uintptr_t address, std::size_t bytes, Device** whose) {
  for (Device& device : state().devices) {
    const auto found = device.blocks.find(address);
    if (found == device.blocks.end()) continue;
    *whose = &device;
    return found->second.reserved && found->second.pages == bytes ? &found->second : nullptr;
  }
  return nullptr;
}

// Returns true if a task that has not run yet accesses the range.
bool awaited(std::uintptr_t address, std::size_t bytes) {
  for (const auto& [stream, owned] : state().streams) {
    for (const Task& task : stream->tasks) {
      for (const std::uintptr_t touched : task.touched) {
        if (touched >= address && touched < address + bytes) return true;
      }
    }
  }
  return false;
}

void* closed(std::uintptr_t address, std::size_t bytes) {
  return mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

// Copies between the host and mapped memory, synchronously.
int copy(unsigned long long address, void* to, const void* from, std::size_t bytes) {
  ENTER;
  std::uintptr_t start = 0;
  const Block* block = block_of(*device, address, bytes, &start);
  if (block == nullptr) return device->error = kIllegalAddress;
  protect(start, block->pages, true);
  std::memcpy(to, from, bytes);
  protect(start, block->pages, false);
  return kSuccess;
}

}  // namespace

EXPORT cuDeviceGetUuid_v2(char* uuid, int device) {
  if (device_at(device) == nullptr) return kInvalidDevice;
  std::memcpy(uuid, "a fake GPU, no. ", 16);
  uuid[15] = static_cast<char>(device);
  return kSuccess;
}
EXPORT cuDeviceGetDefaultMemPool(void** pool, int device) {
  *pool = device_at(device);
  return *pool == nullptr ? kInvalidDevice : kSuccess;
}
EXPORT cuMemPoolTrimTo(void*, std::size_t) { return kSuccess; }

EXPORT cuMemGetAllocationGranularity(std::size_t* unit, const MemoryKind* kind, int) {
  *unit = kUnit;
  return device_of(kind) == nullptr ? kInvalidDevice : kSuccess;
}
EXPORT cuMemCreate(unsigned long long* handle, std::size_t bytes, const MemoryKind* kind,
                   unsigned long long flags) {
  ENTER;
  Device* place = device_of(kind);
  if (place == nullptr || flags != 0 || bytes == 0 || bytes % kUnit != 0) return kInvalidValue;
  if (place->full || place->used + bytes > config().memory) return kOutOfMemory;
  const int file = memfd_create("fake GPU", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) std::abort();
  const std::string rubbish(kUnit, '\xCB');
  for (std::size_t at = 0; at < bytes; at += kUnit) {
    if (pwrite(file, rubbish.data(), kUnit, static_cast<off_t>(at)) < 0) std::abort();
  }
  place->used += bytes;
  *handle = ++state().last_physical;
  state().physical[*handle] = {place, file, bytes};
  return kSuccess;
}
EXPORT cuMemRelease(unsigned long long handle) {
  ENTER;
  Physical* physical = physical_of(handle);
  if (physical == nullptr) return kInvalidValue;
  physical->released = true;
  let_go(handle);
  return kSuccess;
}
EXPORT cuMemExportToShareableHandle(void* shared, unsigned long long handle, int kind,
                                    unsigned long long flags) {
  ENTER;
  const Physical* physical = physical_of(handle);
  if (physical == nullptr || kind != 1 || flags != 0) return kInvalidValue;
  const int copied = dup(physical->file);
  std::memcpy(shared, &copied, sizeof copied);
  return copied < 0 ? kUnknown : kSuccess;
}
// Memory that another process has created is counted in that process.
EXPORT cuMemImportFromShareableHandle(unsigned long long* handle, void* shared, int kind) {
  ENTER;
  const int file = static_cast<int>(reinterpret_cast<std::intptr_t>(shared));
  struct stat info {};
  if (kind != 1 || fstat(file, &info) != 0) return kInvalidValue;
  *handle = ++state().last_physical;
  state().physical[*handle] = {nullptr, dup(file), static_cast<std::size_t>(info.st_size)};
  return kSuccess;
}
EXPORT cuMemAddressReserve(unsigned long long* address, std::size_t bytes, std::size_t alignment,
                           unsigned long long wanted, unsigned long long flags) {
  ENTER;
  if (bytes == 0 || bytes % kUnit != 0 || wanted != 0 || flags != 0) return kInvalidValue;
  const std::uintptr_t at = find_gap(*device, bytes, std::max(alignment, kUnit));
  if (at == 0) return kOutOfMemory;
  Block& block = device->blocks[at];
  block.pages = bytes;
  block.reserved = true;
  *address = at;
  return kSuccess;
}
EXPORT cuMemAddressFree(unsigned long long address, std::size_t bytes) {
  ENTER;
  const Block* block = range_of(address, bytes, &device);
  if (block == nullptr || block->mapped != 0) return kInvalidValue;
  device->blocks.erase(address);
  return kSuccess;
}
EXPORT cuMemMap(unsigned long long address, std::size_t bytes, std::size_t offset,
                unsigned long long handle, unsigned long long flags) {
  ENTER;
  Block* block = range_of(address, bytes, &device);
  Physical* physical = physical_of(handle);
  if (block == nullptr || physical == nullptr || block->mapped != 0) return kInvalidValue;
  if (offset != 0 || flags != 0 || bytes > physical->bytes) return kInvalidValue;
  if (mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED,
           physical->file, 0) == MAP_FAILED) {
    std::abort();
  }
  ++physical->holders;
  block->mapped = handle;
  return kSuccess;
}
EXPORT cuMemUnmap(unsigned long long address, std::size_t bytes) {
  ENTER;
  Block* block = range_of(address, bytes, &device);
  if (block == nullptr || block->mapped == 0) return kInvalidValue;
  if (awaited(address, bytes)) return device->error = kIllegalAddress;
  if (closed(address, bytes) == MAP_FAILED) std::abort();
  let_go(block->mapped);
  block->mapped = 0;
  block->bytes = 0;
  return kSuccess;
}
EXPORT cuMemSetAccess(unsigned long long address, std::size_t bytes, const MemoryAccess* access,
                      std::size_t count) {
  ENTER;
  Block* block = range_of(address, bytes, &device);
  if (block == nullptr || block->mapped == 0 || count != 1 || access->place.type != 1 ||
      access->place.id != device->index || access->flags != 3) {
    return kInvalidValue;
  }
  block->bytes = bytes;
  return kSuccess;
}

// ---------------------------------------------------------------- functions for a client

EXPORT cuCtxPushCurrent_v2(void* context) {
  const Lock lock(state().mutex);
  return set_current(context);
}
EXPORT cuCtxPopCurrent_v2(void** context) {
  const Lock lock(state().mutex);
  *context = nullptr;
  return set_current(nullptr);
}
EXPORT cuCtxSynchronize() {
  ENTER;
  State& s = state();
  s.hurry = true;
  s.work.notify_all();
  s.done.wait(lock, [&] {
    for (const auto& [stream, owned] : s.streams) {
      if (stream->device == device && (stream->running || !stream->tasks.empty())) return false;
    }
    return true;
  });
  return device->error;
}
EXPORT cuMemcpyDtoH_v2(void* to, unsigned long long from, std::size_t bytes) {
  return copy(from, to, reinterpret_cast<const void*>(from), bytes);
}
EXPORT cuMemcpyHtoD_v2(unsigned long long to, const void* from, std::size_t bytes) {
  return copy(to, reinterpret_cast<void*>(to), from, bytes);
}
