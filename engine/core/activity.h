// What a processor of its own (a GPU) has done since the start, for all sessions, and does.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace teletensor::core {

struct Activity {
  std::uint64_t busy_ns = 0;    // of the batches that have ended; two at once count twice
  std::uint64_t in_flight = 0;  // batches
  std::uint64_t launches = 0, graphs = 0;             // asked of the driver; graphs among them
  std::uint64_t instructions = 0, loops = 0;          // that ran as kernels, those of loops apart
  std::uint64_t compiled = 0, read = 0, refused = 0;  // kernels; read: of the disk
  std::uint64_t loaded = 0;                           // kernels that are there now
  std::vector<std::pair<std::string, std::uint64_t>> on_host;  // instructions, by op

  double busy_seconds() const { return static_cast<double>(busy_ns) * 1e-9; }
  std::uint64_t calls_on_host() const {
    std::uint64_t sum = 0;
    for (const auto& [op, count] : on_host) sum += count;
    return sum;
  }
};

}  // namespace teletensor::core
