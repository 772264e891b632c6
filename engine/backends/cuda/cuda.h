// The GPUs of this box: found when the daemon starts, through a driver that may not be there.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/backends/backend.h"
#include "engine/backends/cuda/gpu.h"

namespace teletensor::backends::cuda {

struct Options {
  std::string driver;        // the driver's library; "": none is asked for
  std::string compiler;      // NVRTC's; "": where it usually is
  std::uint64_t memory = 0;  // bytes on each device; 0: 90 % of what is free
  double patience = 60;      // seconds without progress after which a device is lost
  std::string code_folder;   // keeps compiled kernels; "": none are kept
  Log log;
};

struct Found {
  struct Device {
    std::unique_ptr<Backend> backend;
    std::uint64_t memory = 0;
  };
  std::vector<Device> devices;  // cuda:0, cuda:1, ...
};

// Every device that can be used, in the driver's order; one line to the log for each, and for each
// that cannot, or why there is none at all. `host`: the CPU's kernels.
Found find_devices(const Options& options, const ops::Catalog& catalog, const KernelTable& host);

// How each op runs: its name, and "view" (nothing runs), "host" or the skeleton of its kernel.
std::vector<std::pair<std::string, std::string>> paths(const ops::Catalog& catalog,
                                                       const KernelTable& host);

}  // namespace teletensor::backends::cuda
