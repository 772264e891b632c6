// The families of ops, in the order in which the catalog lists them. There is one function per
// file.
#pragma once

#include <vector>

#include "engine/ops/op.h"

namespace teletensor::ops {

std::vector<OpDef> view_ops();    // views.cc: select slice transpose permute expand view detach ...
std::vector<OpDef> region_ops();  // regions.cc: what views and writes through views record
std::vector<OpDef> copy_ops();    // copies.cc: clone, contiguous, cast, copy, fill, to_device
std::vector<OpDef> unary_ops();   // unary.cc
std::vector<OpDef> binary_ops();  // binary.cc: arithmetic, comparison, logical, bitwise
std::vector<OpDef> ternary_ops();          // ternary.cc: where, clamp, lerp, addcmul, addcdiv
std::vector<OpDef> complex_ops();          // complex.cc: conj, real, imag, complex, polar, ...
std::vector<OpDef> reduction_ops();        // reductions.cc
std::vector<OpDef> softmax_ops();          // softmax.cc: softmax, log_softmax
std::vector<OpDef> loss_ops();             // losses.cc
std::vector<OpDef> order_ops();            // order.cc: sort, topk, cumsum
std::vector<OpDef> matmul_ops();           // matmul.cc: matmul, linear
std::vector<OpDef> linalg_factor_ops();    // linalg_factor.cc: Cholesky, LU, LDL, QR
std::vector<OpDef> linalg_solve_ops();     // linalg_solve.cc: inverse, systems, det, lstsq
std::vector<OpDef> linalg_spectral_ops();  // linalg_spectral.cc: SVD, eigenvalues, pinv, exp
std::vector<OpDef> fft_ops();              // fft.cc: Fourier transforms
std::vector<OpDef> creation_ops();  // creation.cc: full, arange, linspace, eye, one_hot, tril, triu
std::vector<OpDef> random_ops();    // random.cc: Philox
std::vector<OpDef> index_ops();     // index.cc: index, index_put, gather, index_select, embedding
std::vector<OpDef> scatter_ops();   // scatter.cc: scatter_reduce, listed by index_ops
std::vector<OpDef> join_ops();      // join.cc: cat, stack
std::vector<OpDef> recurrent_ops();   // recurrent.cc: lstm_gates, gru_gates
std::vector<OpDef> client_ops();      // client.cc: nodes whose backward is the client's own code
std::vector<OpDef> attention_ops();   // attention.cc: scaled dot products
std::vector<OpDef> norm_ops();        // norms.cc: layer_norm, batch_norm
std::vector<OpDef> ctc_ops();         // ctc.cc: ctc_loss
std::vector<OpDef> conv_ops();        // conv.cc: convolution
std::vector<OpDef> pooling_ops();     // pooling.cc
std::vector<OpDef> spatial_ops();     // spatial.cc: padding, columns of windows, resampling
std::vector<OpDef> collective_ops();  // collectives.cc: all_reduce, all_gather, all_to_all, ...
std::vector<OpDef> optimizer_ops();   // optimizers.cc: sgd_step, adam_step over lists

}  // namespace teletensor::ops
