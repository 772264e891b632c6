#include "engine/engine.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/cpu_backend.h"
#include "engine/backends/cuda/cuda.h"
#include "engine/backends/sim/sim_backend.h"
#include "engine/session/host.h"

namespace teletensor::engine {
namespace {

// The memory of the machine, or of the container that the daemon runs in.
std::uint64_t physical_memory() {
  const long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
  std::uint64_t bytes = pages > 0 && size > 0
                            ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(size)
                            : std::uint64_t{1} << 30;
  std::uint64_t limit;
  if (std::ifstream file("/sys/fs/cgroup/memory.max"); file >> limit) {
    bytes = std::min(bytes, limit);
  }
  return bytes;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> gpu_paths() {
  const ops::Catalog& catalog = ops::catalog();
  return backends::cuda::paths(catalog, backends::cpu::make_kernels(catalog));
}

std::unique_ptr<Engine> Engine::create(const EngineOptions& options, core::Status* why) {
  core::Status unused;
  core::Status& reason = why == nullptr ? unused : *why;
  const ops::Catalog& catalog = ops::catalog();
  const backends::KernelTable kernels = backends::cpu::make_kernels(catalog);
  const std::uint64_t host =
      options.host_memory != 0 ? options.host_memory : physical_memory() / 5 * 4;
  std::vector<std::unique_ptr<runtime::Device>> devices;
  devices.push_back(std::make_unique<runtime::Device>(
      std::make_unique<backends::cpu::CpuBackend>(kernels), host, catalog));
  for (const Guarantee& each : options.guarantees) {
    reason = devices[0]->pool().guarantee(each.user, each.bytes, each.limit);
    if (!reason.ok()) return nullptr;
  }
  if (options.group_memory > 0) {
    reason =
        session::reserve_for_groups(devices[0]->pool(), std::min(options.group_memory, host / 8));
    if (!reason.ok()) return nullptr;
  }
  backends::cuda::Options gpus{options.cuda_driver,   options.cuda_compiler,
                               options.device_memory, options.device_patience,
                               options.kernel_cache,  options.log};
  for (auto& each : backends::cuda::find_devices(gpus, catalog, kernels).devices) {
    devices.push_back(
        std::make_unique<runtime::Device>(std::move(each.backend), each.memory, catalog));
  }
  for (int i = 0; i < std::min(options.sim_devices, 64); ++i) {
    devices.push_back(std::make_unique<runtime::Device>(
        std::make_unique<backends::sim::SimBackend>(kernels, static_cast<std::uint8_t>(i),
                                                    options.sim_null),
        options.sim_memory, catalog));
  }
  std::unique_ptr<memory::Disk> disk;
  if (options.disk_memory > 0) {
    auto made = memory::Disk::open(options.disk_dir, options.disk_memory, options.user_disk_memory);
    reason = made.status();
    if (!made.ok()) return nullptr;
    disk = std::move(*made);
  }
  return std::make_unique<session::Host>(catalog, std::move(devices), options.lanes,
                                         std::move(disk));
}

}  // namespace teletensor::engine
