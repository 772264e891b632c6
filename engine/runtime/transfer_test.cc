// Tests copies between two devices of which neither is the host.
#include "engine/runtime/transfer.h"

#include <gtest/gtest.h>

#include <string>

#include "engine/backends/cpu/cpu.h"
#include "engine/backends/sim/sim_backend.h"

namespace teletensor::runtime {
namespace {

// Devices that cannot copy from each other directly exchange the bytes through the host, in pieces
// of 1 MiB.
TEST(Transfer, BytesBetweenTwoDevicesArriveInOrder) {
  const auto sim = [](std::uint8_t index) {
    return std::make_unique<backends::sim::SimBackend>(backends::cpu::make_kernels(ops::catalog()),
                                                       index);
  };
  Device from(sim(0), 64u << 20, ops::catalog()), to(sim(1), 64u << 20, ops::catalog());
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{1} << 20, (std::size_t{3} << 20) + 7}) {
    std::string source(bytes, '\0'), target(bytes, 'x');
    for (std::size_t i = 0; i < bytes; ++i) source[i] = static_cast<char>(i * 7 + (i >> 16));
    ASSERT_TRUE(copy_between(from, source.data(), to, target.data(), bytes).ok());
    EXPECT_EQ(target == source, true) << bytes;
  }
}

}  // namespace
}  // namespace teletensor::runtime
