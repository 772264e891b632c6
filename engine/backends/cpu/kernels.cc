#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/linalg/lapack.h"

namespace teletensor::backends::cpu {

KernelTable make_kernels(const ops::Catalog& catalog) {
  lapack::prepare();
  KernelTable table(catalog);
  add_copy_kernels(table);
  add_region_kernels(table);
  add_unary_kernels(table);
  add_binary_kernels(table);
  add_ternary_kernels(table);
  add_complex_kernels(table);
  add_reduction_kernels(table);
  add_softmax_kernels(table);
  add_loss_kernels(table);
  add_order_kernels(table);
  add_matmul_kernels(table);
  add_linalg_factor_kernels(table);
  add_linalg_solve_kernels(table);
  add_linalg_spectral_kernels(table);
  add_linalg_function_kernels(table);
  add_fft_kernels(table);
  add_creation_kernels(table);
  add_random_kernels(table);
  add_index_kernels(table);
  add_gather_kernels(table);
  add_scatter_kernels(table);
  add_search_kernels(table);
  add_join_kernels(table);
  add_norm_kernels(table);
  add_attention_kernels(table);
  add_ctc_kernels(table);
  add_conv_kernels(table);
  add_pooling_kernels(table);
  add_spatial_kernels(table);
  add_optimizer_kernels(table);
  add_recurrent_kernels(table);
  return table;
}

}  // namespace teletensor::backends::cpu
