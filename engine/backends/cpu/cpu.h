// The CPU backend: kernels over host memory. Each family of ops registers its kernels in an
// explicit list.
#pragma once

#include <memory>

#include "engine/backends/backend.h"

namespace teletensor::backends::cpu {

void add_copy_kernels(KernelTable& table);
void add_region_kernels(KernelTable& table);
void add_unary_kernels(KernelTable& table);
void add_binary_kernels(KernelTable& table);
void add_ternary_kernels(KernelTable& table);
void add_complex_kernels(KernelTable& table);
void add_reduction_kernels(KernelTable& table);
void add_softmax_kernels(KernelTable& table);
void add_loss_kernels(KernelTable& table);
void add_order_kernels(KernelTable& table);
void add_matmul_kernels(KernelTable& table);
void add_linalg_factor_kernels(KernelTable& table);
void add_linalg_solve_kernels(KernelTable& table);
void add_linalg_spectral_kernels(KernelTable& table);
void add_linalg_function_kernels(KernelTable& table);
void add_fft_kernels(KernelTable& table);
void add_creation_kernels(KernelTable& table);
void add_random_kernels(KernelTable& table);
void add_index_kernels(KernelTable& table);
void add_gather_kernels(KernelTable& table);
void add_scatter_kernels(KernelTable& table);
void add_search_kernels(KernelTable& table);
void add_join_kernels(KernelTable& table);
void add_attention_kernels(KernelTable& table);
void add_norm_kernels(KernelTable& table);
void add_ctc_kernels(KernelTable& table);
void add_conv_kernels(KernelTable& table);
void add_pooling_kernels(KernelTable& table);
void add_spatial_kernels(KernelTable& table);
void add_optimizer_kernels(KernelTable& table);
void add_recurrent_kernels(KernelTable& table);

// The table of all kernels; every op that computes has one.
KernelTable make_kernels(const ops::Catalog& catalog);

}  // namespace teletensor::backends::cpu
