// What the descriptions of all skeletons share.
#pragma once

#include <string_view>

#include "engine/backends/cuda/device_table.h"
#include "engine/core/geometry.h"

namespace teletensor::backends::cuda {

core::Status not_here(const char* why);  // kUnimplemented: the host computes this call

// The dimension that an attribute gives; infer() has seen that it is there.
inline int dim_of(const KernelCall& call, std::int64_t given, int rank) {
  return *core::normalize_dim(given, rank, call.op.name);
}

// May a product of this dtype round its factors to TF32? `at`: that attribute's place.
inline bool takes_tf32(const KernelCall& call, core::DType dtype, std::size_t at) {
  return dtype == core::DType::kF32 && call.attributes.has(at) && call.attributes.boolean(at);
}

// The CPU's kernel of an op that is nothing but an elementwise step; null for others.
Kernel host_kernel(const ops::OpDef& op);
// Ops that are no steps of loops (they are slow, or rare) but whose kernels are functors alone.
bool elementwise_only(std::string_view op);

// One launch for an op that host_kernel() knows.
core::Status describe_elementwise(KernelCall& call, Work& work);
// `from` (a tensor that broadcasts to `to`, or a number) into `to`, converted as by a cast.
core::Status describe_copy(KernelCall& call, const TensorArg& from, const TensorArg& to,
                           Work& work);

// Families of rows for the table.
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
