// DeviceTable: which ops run on the device, and how; the counterpart of KernelTable. An op runs on
// the host (operands copied out, the CPU's kernel, results copied back) if it has no row, or if its
// row refuses the call with kUnimplemented.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "engine/backends/backend.h"
#include "engine/backends/cuda/codegen/kernel_source.h"

namespace teletensor::backends::cuda {

enum class Skeleton : std::uint8_t {
  kHost,   // no kernel on the device: the CPU's kernel runs
  kLoop,   // elementwise ops, copies, casts and fills, with any strides
  kFold,   // reductions
  kRows,   // softmax
  kIndex,  // gather and scatter
  kScan,
  kRandom,
  kMatmul,
  // Each element of the result is computed from its position and a few elements of the operands, as
  // in windows, ranges, gates and optimizer steps.
  kCell,
};
std::string_view name_of(Skeleton skeleton);

// Describes a call as launches; it never touches the memory of the tensors. Scratch is device
// memory that stays allocated until the launches have run. Returns kUnimplemented if the device
// cannot run this call with its dtypes and layouts.
using Describe = core::Status (*)(KernelCall& call, Work& work);

struct DeviceKernel {
  Skeleton skeleton = Skeleton::kHost;
  Describe describe = nullptr;
};

class DeviceTable {
 public:
  explicit DeviceTable(const ops::Catalog& catalog) : catalog_(catalog), kernels_(catalog.size()) {}
  // Precondition: the catalog has the op, and the op has no kernel here yet. Otherwise it is an
  // internal error.
  void add(std::string_view op, Skeleton skeleton, Describe describe);
  const DeviceKernel& find(ops::OpId op) const { return kernels_[op]; }

 private:
  const ops::Catalog& catalog_;
  std::vector<DeviceKernel> kernels_;
};

// The table of all ops that have a kernel on the device.
DeviceTable make_device_table(const ops::Catalog& catalog);

// Describes a loop (LoopStep in backend.h) as one launch; LoopStep::kernel is not used. Returns
// kUnimplemented if the steps have to run one by one.
core::Status describe_loop(std::span<const LoopStep> steps, Parallel& parallel, Scratch& scratch,
                           Work& work);

}  // namespace teletensor::backends::cuda
