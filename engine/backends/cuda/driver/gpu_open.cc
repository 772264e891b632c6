// Device memory that other processes of this machine can map. It uses its own physical allocations,
// because memory from cuMemAllocAsync cannot be exported as a file descriptor.
#include <unistd.h>

#include <cstring>

#include "engine/backends/cuda/driver/gpu.h"

namespace teletensor::backends::cuda {

using core::Status;

namespace {

MemoryKind kind_on(int device) {
  MemoryKind kind;
  kind.place.id = device;
  return kind;
}

}  // namespace

Status Gpu::ask_open() {
  Uuid uuid;
  TT_RETURN_IF_ERROR(check(driver_.cuDeviceGetUuid_v2(&uuid, device_), "reading its UUID"));
  std::memcpy(uuid_.data(), uuid.bytes, sizeof uuid.bytes);
  int can = 0;
  const int code = driver_.cuDeviceGetAttribute(&can, kDescriptorsSupported, device_);
  if (code != kSuccess || can == 0) return {};
  const MemoryKind kind = kind_on(device_);
  return check(driver_.cuMemGetAllocationGranularity(&open_unit_, &kind, 0),
               "reading the granularity of shared memory");
}

// Memory that was freed into the driver's pool stays there until the pool is trimmed; this is done
// when an allocation fails.
int Gpu::make_physical(std::size_t bytes, Physical* made) {
  const MemoryKind kind = kind_on(device_);
  const int code = driver_.cuMemCreate(made, bytes, &kind, 0);
  CUmemPoolHandle_st* pool = nullptr;
  if (code != kOutOfMemory || !pools_ || !synchronize().ok() ||
      driver_.cuDeviceGetDefaultMemPool(&pool, device_) != kSuccess ||
      driver_.cuMemPoolTrimTo(pool, 0) != kSuccess) {
    return code;
  }
  return driver_.cuMemCreate(made, bytes, &kind, 0);
}

Status Gpu::map_open(Physical physical, std::size_t bytes, Address* mapped) {
  Address at = 0;
  TT_RETURN_IF_ERROR(check(driver_.cuMemAddressReserve(&at, bytes, open_unit_, 0, 0),
                           "reserving an address range"));
  MemoryAccess access;
  access.place.id = device_;
  Status status = check(driver_.cuMemMap(at, bytes, 0, physical, 0), "mapping memory");
  if (!status.ok()) {
    driver_.cuMemAddressFree(at, bytes);
    return status;
  }
  status = check(driver_.cuMemSetAccess(at, bytes, &access, 1), "allowing access to memory");
  // Clears the memory, because it may contain data of another process.
  Task clearing;
  clearing.to = at;
  clearing.bytes = bytes;
  if (status.ok()) status = run_now(clearing, "clearing memory");
  *mapped = at;
  if (status.ok()) return {};
  driver_.cuMemUnmap(at, bytes);
  driver_.cuMemAddressFree(at, bytes);
  return status;
}

int Gpu::open_memory(std::size_t bytes, void** memory) {
  if (open_unit_ == 0 || !enter().ok()) return -1;
  Physical physical = 0;
  if (!check(make_physical(bytes, &physical), "allocating shared memory").ok()) return -1;
  int descriptor = -1;
  Address mapped = 0;
  if (!check(driver_.cuMemExportToShareableHandle(&descriptor, physical, kDescriptor, 0),
             "a descriptor of memory")
           .ok()) {
    descriptor = -1;
  } else if (!map_open(physical, bytes, &mapped).ok()) {
    close(descriptor);
    descriptor = -1;
  }
  driver_.cuMemRelease(physical);  // the mapping and the descriptor keep the memory alive
  *memory = reinterpret_cast<void*>(mapped);
  return descriptor;
}

// Nothing is queued for this memory any more, because run_now() waits.
void Gpu::withdraw(int descriptor, void* memory, std::size_t bytes) {
  close(descriptor);
  if (!enter().ok()) return;
  const auto at = reinterpret_cast<Address>(memory);
  if (check(driver_.cuMemUnmap(at, bytes), "unmapping memory").ok()) {
    (void)check(driver_.cuMemAddressFree(at, bytes), "freeing an address range");
  }
}

}  // namespace teletensor::backends::cuda
