#include "engine/backends/cuda/device/mappable_memory.h"

#include <unistd.h>

namespace teletensor::backends::cuda {

using core::Status;

namespace {

MemoryKind kind_on(int device) {
  MemoryKind kind;
  kind.place.id = device;
  return kind;
}

}  // namespace

Status MappableMemory::start() {
  const int device = context_.facts().number;
  int can = 0;
  const int code = context_.driver().cuDeviceGetAttribute(&can, kDescriptorsSupported, device);
  if (code != kSuccess || can == 0) return {};
  const MemoryKind kind = kind_on(device);
  return context_.check(context_.driver().cuMemGetAllocationGranularity(&unit_, &kind, 0),
                        "reading the granularity of shared memory");
}

// Memory that was freed into the driver's pool stays there until the pool is trimmed; this is done
// when an allocation fails.
int MappableMemory::make_physical(std::size_t bytes, Physical* made) {
  const Driver& driver = context_.driver();
  const int device = context_.facts().number;
  const MemoryKind kind = kind_on(device);
  const int code = driver.cuMemCreate(made, bytes, &kind, 0);
  CUmemPoolHandle_st* pool = nullptr;
  if (code != kOutOfMemory || !context_.facts().pools || !work_.synchronize().ok() ||
      driver.cuDeviceGetDefaultMemPool(&pool, device) != kSuccess ||
      driver.cuMemPoolTrimTo(pool, 0) != kSuccess) {
    return code;
  }
  return driver.cuMemCreate(made, bytes, &kind, 0);
}

Status MappableMemory::map(Physical physical, std::size_t bytes, Address* mapped) {
  const Driver& driver = context_.driver();
  Address at = 0;
  TT_RETURN_IF_ERROR(context_.check(driver.cuMemAddressReserve(&at, bytes, unit_, 0, 0),
                                    "reserving an address range"));
  MemoryAccess access;
  access.place.id = context_.facts().number;
  Status status = context_.check(driver.cuMemMap(at, bytes, 0, physical, 0), "mapping memory");
  if (!status.ok()) {
    driver.cuMemAddressFree(at, bytes);
    return status;
  }
  status =
      context_.check(driver.cuMemSetAccess(at, bytes, &access, 1), "allowing access to memory");
  // Clears the memory, because it may contain data of another process.
  Task clearing;
  clearing.to = at;
  clearing.bytes = bytes;
  if (status.ok()) status = work_.run_now(clearing, "clearing memory");
  *mapped = at;
  if (status.ok()) return {};
  driver.cuMemUnmap(at, bytes);
  driver.cuMemAddressFree(at, bytes);
  return status;
}

int MappableMemory::allocate(std::size_t bytes, void** memory) {
  if (unit_ == 0 || !context_.enter().ok()) return -1;
  const Driver& driver = context_.driver();
  Physical physical = 0;
  if (!context_.check(make_physical(bytes, &physical), "allocating shared memory").ok()) return -1;
  int descriptor = -1;
  Address mapped = 0;
  if (!context_
           .check(driver.cuMemExportToShareableHandle(&descriptor, physical, kDescriptor, 0),
                  "a descriptor of memory")
           .ok()) {
    descriptor = -1;
  } else if (!map(physical, bytes, &mapped).ok()) {
    close(descriptor);
    descriptor = -1;
  }
  driver.cuMemRelease(physical);  // the mapping and the descriptor keep the memory alive
  *memory = reinterpret_cast<void*>(mapped);
  return descriptor;
}

// Nothing is queued for this memory any more, because run_now() waits.
void MappableMemory::withdraw(int descriptor, void* memory, std::size_t bytes) {
  close(descriptor);
  if (!context_.enter().ok()) return;
  const auto at = reinterpret_cast<Address>(memory);
  if (context_.check(context_.driver().cuMemUnmap(at, bytes), "unmapping memory").ok()) {
    (void)context_.check(context_.driver().cuMemAddressFree(at, bytes), "freeing an address range");
  }
}

}  // namespace teletensor::backends::cuda
