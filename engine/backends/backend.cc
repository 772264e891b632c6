#include "engine/backends/backend.h"

#include <cstdio>
#include <cstdlib>
#include <string>

namespace teletensor::backends {

core::Status out_of_scratch(std::string_view op, std::size_t bytes) {
  return core::Status(core::Code::kResourceExhausted,
                      std::string(op) + ": no " + std::to_string(bytes) +
                          " bytes of temporary memory within the session's budget");
}

core::Status Backend::run_loop(std::span<const LoopStep>, Parallel&, Scratch&) {
  return core::Status(core::Code::kUnimplemented, "this device does not support fused loops");
}

void KernelTable::add(std::string_view op, Kernel kernel, LoopRole role) {
  const ops::OpDef* definition = catalog_.find(op);
  if (definition == nullptr || kernels_[catalog_.id(*definition)] != nullptr) {
    std::fprintf(stderr,
                 "kernel for '%.*s': the catalog has no such op, or the op already has a kernel\n",
                 static_cast<int>(op.size()), op.data());
    std::abort();
  }
  kernels_[catalog_.id(*definition)] = kernel;
  roles_[catalog_.id(*definition)] = role;
}

}  // namespace teletensor::backends
