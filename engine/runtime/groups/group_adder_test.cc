// Tests that an addition of a group that fails is an error of the whole step.
#include "engine/runtime/groups/group_adder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/cpu_backend.h"

namespace teletensor::runtime {
namespace {

using collective::Job;
using ::testing::Each;

// Adds two sources and writes the sum to one slice.
Job sum_of(std::int64_t elements) {
  Job job;
  job.elements = elements;
  job.sources.resize(2);
  job.additions = {{0, 1}};
  job.outputs.resize(1);
  job.outputs[0].to.resize(1);
  return job;
}

TEST(GroupAdder, OneJobWithoutMemoryFailsTheStep) {
  Device host(
      std::make_unique<backends::cpu::CpuBackend>(backends::cpu::make_kernels(ops::catalog())),
      1u << 20, ops::catalog());
  Lanes lanes(1);
  GroupAdder adder(ops::catalog(), host, lanes, 77);
  constexpr std::int64_t kLarge = 1 << 20;  // its sums have four times the host's memory
  std::vector<float> memory(kLarge, 1.5f);
  const auto address = [&](const collective::Slice&) {
    return reinterpret_cast<char*>(memory.data());
  };
  const Job small = sum_of(8), large = sum_of(kLarge);
  EXPECT_TRUE(adder.add({&small, 1}, address).ok());
  EXPECT_THAT(std::vector<float>(memory.begin(), memory.begin() + 8), Each(3.0f));
  for (const std::vector<Job>& jobs : {std::vector<Job>{large, small}, {small, large}, {large}}) {
    EXPECT_EQ(adder.add(jobs, address).code(), core::Code::kResourceExhausted);
  }
}

}  // namespace
}  // namespace teletensor::runtime
