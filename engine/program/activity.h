// Activity: counters of the work of a separate processor (a GPU) for all sessions since the start,
// and its current load.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace teletensor::program {

struct Activity {
  std::uint64_t busy_ns = 0;    // time of the ended batches; overlapping batches count separately
  std::uint64_t in_flight = 0;  // batches in progress
  std::uint64_t launches = 0, graphs = 0;     // submissions to the driver; the graphs among them
  std::uint64_t instructions = 0, loops = 0;  // single instructions that ran as kernels; loops
  // Kernels compiled, read from the disk cache, and refused.
  std::uint64_t compiled = 0, read = 0, refused = 0;
  std::uint64_t loaded = 0;  // kernels loaded now
  // Instructions that ran on the host, by op.
  std::vector<std::pair<std::string, std::uint64_t>> on_host;

  double busy_seconds() const { return static_cast<double>(busy_ns) * 1e-9; }
  std::uint64_t calls_on_host() const {
    std::uint64_t sum = 0;
    for (const auto& [op, count] : on_host) sum += count;
    return sum;
  }
};

}  // namespace teletensor::program
