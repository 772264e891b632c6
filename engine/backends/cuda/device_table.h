// Which ops run on the device, and how: the counterpart of KernelTable. An op without a row, and a
// call that its row refuses with kUnimplemented, runs on the host (operands copied out, the CPU's
// kernel, results copied in).
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "engine/backends/backend.h"
#include "engine/backends/cuda/kernel_source.h"

namespace teletensor::backends::cuda {

enum class Skeleton : std::uint8_t {
  kHost,   // no kernel of ours: the CPU's
  kLoop,   // elementwise, copies, casts, fills, any strides
  kFold,   // reductions
  kRows,   // softmax, normalisation
  kIndex,  // gather, scatter
  kScan,
  kRandom,
  kMatmul,
  kCell,  // an element from its place and a few others: windows, ranges, gates, optimizer steps
};
std::string_view name_of(Skeleton skeleton);

// Says what a call is on the device; never touches the memory of its tensors. Scratch is device
// memory that stays until the launches have run. kUnimplemented: not this call, with its dtypes or
// layouts.
using Describe = core::Status (*)(KernelCall& call, Work& work);

struct DeviceKernel {
  Skeleton skeleton = Skeleton::kHost;
  Describe describe = nullptr;
};

class DeviceTable {
 public:
  explicit DeviceTable(const ops::Catalog& catalog) : catalog_(catalog), kernels_(catalog.size()) {}
  // Our own bug when the catalog has no such op or it has a kernel already.
  void add(std::string_view op, Skeleton skeleton, Describe describe);
  const DeviceKernel& find(ops::OpId op) const { return kernels_[op]; }

 private:
  const ops::Catalog& catalog_;
  std::vector<DeviceKernel> kernels_;
};

// Every op that has a kernel on the device.
DeviceTable make_device_table(const ops::Catalog& catalog);

// A loop (backend.h, LoopStep) as one launch. LoopStep::kernel is not looked at. kUnimplemented:
// run its steps one by one.
core::Status describe_loop(std::span<const LoopStep> steps, Parallel& parallel, Scratch& scratch,
                           Work& work);

}  // namespace teletensor::backends::cuda
