// A call of a kernel of the CPU for tensors of a device.
#pragma once

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "engine/backends/backend.h"
#include "engine/backends/cuda/gpu.h"

namespace teletensor::backends::cuda {

// Copies what the operands show to the host, runs the kernel there and copies the results back:
// exactly what the kernel would do in the device's memory. What fails has changed nothing. The
// copies are charged to the session as the host's temporary memory.
core::Status run_through_host(KernelCall& call, Kernel kernel, Gpu& gpu);

// How often each op went that way. Thread-safe.
class HostCalls {
 public:
  explicit HostCalls(const ops::Catalog& catalog) : catalog_(catalog), counts_(catalog.size()) {}
  void add(ops::OpId op) { counts_[op].fetch_add(1, std::memory_order_relaxed); }
  // Those that did, in the catalog's order.
  std::vector<std::pair<std::string, std::uint64_t>> counts() const;

 private:
  const ops::Catalog& catalog_;
  std::vector<std::atomic<std::uint64_t>> counts_;
};

}  // namespace teletensor::backends::cuda
