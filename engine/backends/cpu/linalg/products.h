// The operands of a matrix product as its kernels read them from the call. The CUDA backend uses
// this as well.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/backends/backend.h"

namespace teletensor::backends::cpu {

// One operand: matrices with the strides `row` and `column`, one for each index of the batch
// dimensions.
struct Side {
  const void* data = nullptr;  // address of the first element
  std::int64_t row = 0, column = 0;
  // Stride of each batch dimension of the result; 0 if the operand is repeated along it.
  core::Dims batch;
  std::int64_t next = 0;  // distance to the operand of the next term, see Product::terms
};

// A batch of products of [m, k] and [k, n] matrices. The matrices of the result are row-major and
// stored one after another.
struct Product {
  std::int64_t m = 1, n = 1, k = 1;
  core::Dims batch;
  std::int64_t batches = 1;  // the product of `batch`
  // Each matrix of the result is the sum of so many products, added one by one (f32 only).
  std::int64_t terms = 1;
  Side a, b;
};

// Takes the matrix strides from the last two dimensions (a vector is a row on the left and a column
// on the right), and computes the batch strides.
inline Side side_of(const void* data, const core::Geometry& g, bool left, const core::Dims& batch) {
  Side s;
  s.data = data;
  const int rank = g.rank();
  if (rank == 1) {
    (left ? s.column : s.row) = g.strides[0];
  } else {
    s.row = g.strides[rank - 2];
    s.column = g.strides[rank - 1];
  }
  const int lead = batch.size() - std::max(0, rank - 2);
  for (int d = 0; d < batch.size(); ++d) {
    const int own = d - lead;
    s.batch.push_back(own < 0 || g.shape[own] == 1 ? 0 : g.strides[own]);
  }
  return s;
}

// The bias of linear and the x of addmm: out = alpha * product + beta * x.
struct Addend {
  const TensorArg* x = nullptr;
  double alpha = 1, beta = 1;
  // Strides of x, which is added to each matrix; 0 where it is repeated.
  std::int64_t row = 0, column = 0;
};

inline Addend addend_of_linear(const KernelCall& call) {
  Addend addend;
  if (call.in[2].kind == TensorArg::Kind::kTensor) {
    addend.x = &call.in[2];
    addend.column = call.in[2].geometry->strides[0];
  }
  return addend;
}

inline Addend addend_of_addmm(const KernelCall& call) {
  const core::Geometry& g = *call.in[0].geometry;
  Addend addend{&call.in[0], call.attributes.real(1), call.attributes.real(0), 0, 0};
  const int rank = g.rank();
  if (rank > 0 && g.shape[rank - 1] > 1) addend.column = g.strides[rank - 1];
  if (rank > 1 && g.shape[0] > 1) addend.row = g.strides[0];
  return addend;
}

// Computes a product of float or double operands on the host, in parts on the lanes, into `c`. The
// rows or the columns of each f32 operand must be dense.
template <class T>
core::Status multiply(KernelCall& call, Product product, T* c, const Addend& addend);

}  // namespace teletensor::backends::cpu
