// Tests of the additions of groups: their results by block, and errors of the whole step.
#include "engine/runtime/groups/group_adder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <functional>
#include <string>
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
      1u << 15, ops::catalog());
  Lanes lanes(1);
  GroupAdder adder(ops::catalog(), host, lanes, 77);
  constexpr std::int64_t kLarge = 1 << 20;  // a block of its sums has twice the host's memory
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

// Buffers of a job, whose elements the test knows.
struct Buffers {
  std::vector<std::vector<char>> memory;
  char* operator()(const collective::Slice& slice) {
    return memory[slice.buffer.number].data() + slice.offset;
  }
};

class GroupAdderSums : public testing::TestWithParam<core::DType> {};

// Sums of three sources with a mean and several results, of counts around those of a block.
TEST_P(GroupAdderSums, AreThoseOfEachElement) {
  Device host(
      std::make_unique<backends::cpu::CpuBackend>(backends::cpu::make_kernels(ops::catalog())),
      1u << 24, ops::catalog());
  Lanes lanes(2);
  GroupAdder adder(ops::catalog(), host, lanes, 77);
  const core::DType dtype = GetParam();
  const std::size_t item = core::size_of(dtype);
  for (const std::int64_t count : {1, 16383, 16384, 16385, 100000}) {
    for (const bool in_place : {false, true}) {
      Buffers buffers;
      Job job;
      job.dtype = dtype;
      job.reduction = collective::Reduction::kAvg;
      job.elements = count;
      job.additions = {{0, 1}, {0, 2}};
      job.outputs.resize(1);
      job.outputs[0].divisor = 3;
      const auto slice = [&](std::uint64_t buffer) {
        collective::Slice s;
        s.buffer.number = buffer;
        s.bytes = count * static_cast<std::int64_t>(item);
        return s;
      };
      for (std::uint64_t i = 0; i < 5; ++i) {
        buffers.memory.emplace_back(static_cast<std::size_t>(count) * item);
        if (i >= 3) continue;
        job.sources.push_back({slice(i), false});
        for (std::int64_t k = 0; k < count; ++k) {
          const float value = static_cast<float>(3 * ((k + static_cast<std::int64_t>(i)) % 7));
          const auto half = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
          char* const to = buffers.memory[i].data() + static_cast<std::size_t>(k) * item;
          item == 4 ? std::memcpy(to, &value, 4) : std::memcpy(to, &half, 2);
        }
      }
      job.outputs[0].to = {slice(in_place ? 0 : 3), slice(4)};
      ASSERT_TRUE(adder.add({&job, 1}, std::ref(buffers)).ok());
      for (const collective::Slice& to : job.outputs[0].to) {
        for (std::int64_t k = 0; k < count; ++k) {
          const float expected = static_cast<float>(k % 7 + (k + 1) % 7 + (k + 2) % 7);
          std::uint32_t bits = 0;
          const char* const from =
              buffers.memory[to.buffer.number].data() + static_cast<std::size_t>(k) * item;
          std::memcpy(&bits, from, item);
          ASSERT_EQ(std::bit_cast<float>(item == 4 ? bits : bits << 16), expected) << k;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, GroupAdderSums,
                         testing::Values(core::DType::kF32, core::DType::kBF16),
                         [](const auto& info) { return std::string(core::name_of(info.param)); });

}  // namespace
}  // namespace teletensor::runtime
