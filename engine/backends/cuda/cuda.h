// Finds the GPUs of this machine when the daemon starts. The driver is loaded at run time and may
// be missing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/backends/backend.h"
#include "engine/backends/cuda/device/gpu.h"

namespace teletensor::backends::cuda {

struct Options {
  std::string driver;        // path of the driver's library; "" disables GPUs
  std::string compiler;      // path of NVRTC; "" means the usual names
  std::uint64_t memory = 0;  // bytes to use on each device; 0 means 90 % of the free memory
  double patience = 60;      // a device without progress for this many seconds is lost
  std::string code_folder;   // folder for compiled kernels; "" stores none
  Log log;
};

struct Found {
  struct Device {
    std::unique_ptr<Backend> backend;
    std::uint64_t memory = 0;
  };
  std::vector<Device> devices;  // cuda:0, cuda:1, ...
};

// Opens every usable device, in the driver's order. Writes one line to the log for each device,
// usable or not, or one that says why there are none. `host` has the CPU's kernels.
Found find_devices(const Options& options, const ops::Catalog& catalog, const KernelTable& host);

// For each op: its name and how it runs, which is "view" (nothing runs), "host", or the skeleton of
// its kernel.
std::vector<std::pair<std::string, std::string>> paths(const ops::Catalog& catalog,
                                                       const KernelTable& host);

}  // namespace teletensor::backends::cuda
