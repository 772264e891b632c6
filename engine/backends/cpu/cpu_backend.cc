#include "engine/backends/cpu/cpu_backend.h"

#include <cstring>

#include "engine/memory/blocks/source.h"

namespace teletensor::backends::cpu {

void* CpuBackend::allocate(std::size_t bytes) { return memory::map_pages(bytes); }

void CpuBackend::deallocate(void* memory, std::size_t bytes) { memory::unmap_pages(memory, bytes); }

void CpuBackend::zero(void* memory, std::size_t bytes) { std::memset(memory, 0, bytes); }

core::Status CpuBackend::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return {};
}

core::Status CpuBackend::copy_in(void* device, const void* host, std::size_t bytes) {
  return CpuBackend::copy(device, host, bytes);
}

core::Status CpuBackend::copy_out(void* host, const void* device, std::size_t bytes) {
  return CpuBackend::copy(host, device, bytes);
}

}  // namespace teletensor::backends::cpu
