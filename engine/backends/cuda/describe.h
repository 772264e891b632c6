// Helpers for the functions that describe a call as launches (Describe in device_table.h).
#pragma once

#include <string_view>

#include "engine/backends/cuda/device_table.h"
#include "engine/core/geometry.h"

namespace teletensor::backends::cuda {

core::Status not_on_device(const char* why);  // returns kUnimplemented: the host runs this call

// The dimension given by an attribute, normalised. infer() has already checked that it exists.
inline int dim_of(const KernelCall& call, std::int64_t given, int rank) {
  return *core::normalize_dim(given, rank, call.op.name);
}

// Returns true if a product of this dtype may round its factors to TF32. `at` is the index of that
// attribute.
inline bool takes_tf32(const KernelCall& call, core::DType dtype, std::size_t at) {
  return dtype == core::DType::kF32 && call.attributes.has(at) && call.attributes.boolean(at);
}

// The CPU's kernel if the op is a single elementwise step; null otherwise.
Kernel host_kernel(const ops::OpDef& op);
// Returns true for ops whose kernels are plain functors but which are never steps of loops, because
// they are slow or rare.
bool elementwise_only(std::string_view op);

// Adds one launch for an op that has a host_kernel().
core::Status describe_elementwise(KernelCall& call, Work& work);
// Copies `from` (a tensor that broadcasts to `to`, or a number) into `to` and converts it like a
// cast.
core::Status describe_copy(KernelCall& call, const TensorArg& from, const TensorArg& to,
                           Work& work);

// Each function adds the rows of one family of ops to the table.
void add_loop_kernels(DeviceTable& table, const ops::Catalog& catalog);
void add_attention_kernels(DeviceTable& table);
void add_cell_kernels(DeviceTable& table);
void add_conv_kernels(DeviceTable& table);
void add_copy_kernels(DeviceTable& table);
void add_fold_kernels(DeviceTable& table);
void add_index_kernels(DeviceTable& table);
void add_loss_kernels(DeviceTable& table);
void add_matmul_kernels(DeviceTable& table);
void add_norm_kernels(DeviceTable& table);
void add_pool_kernels(DeviceTable& table);
void add_random_kernels(DeviceTable& table);
void add_row_kernels(DeviceTable& table);
void add_scan_kernels(DeviceTable& table);
void add_scatter_kernels(DeviceTable& table);
void add_search_kernels(DeviceTable& table);
void add_select_kernels(DeviceTable& table);
void add_step_kernels(DeviceTable& table);

}  // namespace teletensor::backends::cuda
