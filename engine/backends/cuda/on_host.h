// A call of a kernel of the CPU for tensors of a device.
#pragma once

#include "engine/backends/backend.h"
#include "engine/backends/cuda/gpu.h"

namespace teletensor::backends::cuda {

// Copies what the operands show to the host, runs the kernel there and copies the results back:
// exactly what the kernel would do in the device's memory. What fails has changed nothing. The
// copies are charged to the session as the host's temporary memory.
core::Status run_through_host(KernelCall& call, Kernel kernel, Gpu& gpu);

}  // namespace teletensor::backends::cuda
