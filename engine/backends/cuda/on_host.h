// Runs a CPU kernel on tensors of a device.
#pragma once

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "engine/backends/backend.h"
#include "engine/backends/cuda/device/gpu.h"

namespace teletensor::backends::cuda {

// Copies the operands' elements to the host, runs the kernel there and copies the results back,
// with exactly the effect that the kernel would have on the device's memory. If it fails, nothing
// has changed. The copies count towards the session as temporary memory of the host.
core::Status run_through_host(KernelCall& call, Kernel kernel, Gpu& gpu);

// Counts how often each op ran that way. Thread-safe.
class HostCalls {
 public:
  explicit HostCalls(const ops::Catalog& catalog) : catalog_(catalog), counts_(catalog.size()) {}
  void add(ops::OpId op) { counts_[op].fetch_add(1, std::memory_order_relaxed); }
  // The ops with a nonzero count, in the catalog's order.
  std::vector<std::pair<std::string, std::uint64_t>> counts() const;

 private:
  const ops::Catalog& catalog_;
  std::vector<std::atomic<std::uint64_t>> counts_;
};

}  // namespace teletensor::backends::cuda
