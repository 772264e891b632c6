// MappableMemory allocates memory of one device that other processes of this machine can map (see
// memory::Source). It uses its own physical allocations, because memory from cuMemAllocAsync cannot
// be exported as a file descriptor.
#pragma once

#include <cstddef>

#include "engine/backends/cuda/device/work_queues.h"

namespace teletensor::backends::cuda {

class MappableMemory {
 public:
  // Both must outlive this object.
  MappableMemory(const DeviceContext& context, WorkQueues& work) : context_(context), work_(work) {}
  // Finds out whether the device supports such memory. Precondition: the context is open.
  core::Status start();

  // Sizes must be multiples of it, in bytes. 0 means that the device has no such memory.
  std::size_t unit() const { return unit_; }
  // Returns a descriptor of the memory, which contains zeros, or -1.
  int allocate(std::size_t bytes, void** memory);
  // Closes the descriptor and unmaps the memory from this process. Precondition: no work is queued
  // that uses the memory.
  void withdraw(int descriptor, void* memory, std::size_t bytes);

 private:
  int make_physical(std::size_t bytes, Physical* made);
  core::Status map(Physical physical, std::size_t bytes, Address* mapped);

  const DeviceContext& context_;
  WorkQueues& work_;
  std::size_t unit_ = 0;
};

}  // namespace teletensor::backends::cuda
