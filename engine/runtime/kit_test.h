// Helpers of the unit tests of runtime and session: a small catalog with f32 kernels that can be
// slow, fail, throw or split, and functions that make values.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "engine/backends/cpu/cpu_backend.h"
#include "engine/backends/sim/sim_backend.h"
#include "engine/program/instruction.h"
#include "engine/runtime/device.h"

namespace teletensor::runtime::testing {

const ops::Catalog& kit_catalog();
backends::KernelTable kit_kernels();
ops::OpId op(std::string_view name);

// A host and one simulated device of 64 MiB each.
struct Box {
  explicit Box(std::uint64_t budget = 64u << 20);
  Devices devices;
  backends::sim::SimBackend* sim;
  backends::sim::Faults& faults() { return sim->faults(); }
};

inline constexpr core::Device kHost{};
inline constexpr core::Device kSim{core::DeviceKind::kSim, 0};

program::ValueRef value_of(const core::Dims& shape, core::Device device = kSim,
                           core::DType dtype = core::DType::kF32);
// Returns an equal object that is never freed, for instructions made in tests. Any thread.
const core::Geometry* interned(const core::Geometry& geometry);
const core::Attributes* interned(const core::Attributes& attributes);
program::Operand whole(const program::ValueRef& value, const core::Dims& shape);
program::Operand view(const program::ValueRef& value, const core::Geometry& geometry);
program::Operand number(double x);

// result = op(operands), a new value.
program::Instruction apply(std::uint64_t seq, std::string_view op,
                           std::vector<program::Operand> operands, const program::ValueRef& result,
                           const core::Dims& shape);
// The region of operand 0 becomes op(operands); `result` is the new value of its storage.
program::Instruction overwrite(std::uint64_t seq, std::string_view op,
                               std::vector<program::Operand> operands,
                               const program::ValueRef& result);

// The elements of a computed f32 value on a device with host memory.
std::vector<float> floats(const program::Value& value);

// Settings of the kernels "slow" (milliseconds), "gate" and "wall" (both wait until opened).
extern std::atomic<int> slow_ms;
extern std::atomic<bool> gate_open;
extern std::atomic<int> at_gate;

}  // namespace teletensor::runtime::testing
