// Part of _bridge.cpp, which is one translation unit: sparse matrices in the layouts CSR and CSC.
// Index tensors and values are tensors of the device. A function that needs the place of each value
// converts the matrix to COO, whose functions are in _bridge_sparse.hpp. Blocks and batches of
// matrices are moved, but have no functions here.
#pragma once

#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_compressed_tensor_unsafe.h>
#include <ATen/ops/_validate_compressed_sparse_indices.h>
#include <ATen/ops/ccol_indices_native.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/col_indices_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/crow_indices_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/empty_like_native.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/resize_as_sparse_native.h>
#include <ATen/ops/row_indices_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/values_native.h>
#include <ATen/ops/zero_native.h>

#include "_bridge_sparse.hpp"

namespace {

bool is_compressed(const at::Tensor& self) { return at::sparse_csr::is_sparse_compressed(self); }

// The matrix with other values at the same places.
at::Tensor compressed_with(const at::Tensor& self, const at::Tensor& values) {
  const auto [starts, others] = at::sparse_csr::getCompressedPlainIndices(self);
  return at::_sparse_compressed_tensor_unsafe(starts, others, values, self.sizes(),
                                              values.options().layout(self.layout()));
}

// The matrix in COO layout. A dense tensor and one in COO layout are returned as they are.
at::Tensor coo_of(const at::Tensor& self) {
  if (!is_compressed(self)) return self;
  const auto [starts, others] = at::sparse_csr::getCompressedPlainIndices(self);
  const bool by_column = self.layout() == c10::kSparseCsc;
  TORCH_CHECK_NOT_IMPLEMENTED(
      (by_column || self.layout() == c10::kSparseCsr) && starts.dim() == 1,
      "tt: the device tt has no operators for blocks and batches of sparse matrices; keep them on "
      "the CPU, or call to_dense() there");
  const at::Tensor values = self.values(), inner = starts.to(c10::kLong).slice(0, 1, -1);
  at::Tensor lines = at::zeros({others.size(0) + 1}, inner.options());
  lines = lines.index_add_(0, inner, at::ones_like(inner)).slice(0, 0, others.size(0)).cumsum(0);
  const at::Tensor plain = others.to(c10::kLong);
  const at::Tensor places = by_column ? at::stack({plain, lines}) : at::stack({lines, plain});
  return at::_sparse_coo_tensor_unsafe(places, values, self.sizes(),
                                       values.options().layout(c10::kSparse), !by_column);
}

// The matrix in the layout COO, CSR or CSC.
at::Tensor in_layout(const at::Tensor& self, c10::Layout layout,
                     std::optional<std::int64_t> dense_dim) {
  if (self.layout() == layout) return self;
  const at::Tensor coo = coo_of(self);
  if (layout == c10::kSparse) return coo;
  TORCH_CHECK_NOT_IMPLEMENTED(layout == c10::kSparseCsr || layout == c10::kSparseCsc,
                              "tt: the device tt has no conversion to the layout ", layout,
                              "; convert on the CPU");
  TORCH_CHECK_NOT_IMPLEMENTED(
      coo.sparse_dim() == 2 && dense_dim.value_or(coo.dense_dim()) == coo.dense_dim(),
      "tt: the layout ", layout, " needs a matrix, got ", coo.sparse_dim(),
      " sparse dimensions and ", coo.dense_dim(), " dense ones");
  const bool by_column = layout == c10::kSparseCsc;
  at::Tensor lines = coo;
  if (by_column) {
    auto sizes = coo.sizes().vec();
    std::swap(sizes[0], sizes[1]);
    lines = at::_sparse_coo_tensor_unsafe(coo._indices().flip(0), coo._values(), sizes,
                                          coo._values().options().layout(c10::kSparse), false);
  }
  lines = lines.coalesce();
  const at::Tensor line = lines._indices()[0], values = lines._values();
  const at::Tensor counts = at::zeros({lines.size(0) + 1}, line.options());
  const at::Tensor starts = counts.index_add_(0, line + 1, at::ones_like(line)).cumsum(0);
  return at::_sparse_compressed_tensor_unsafe(starts, lines._indices()[1], values, coo.sizes(),
                                              values.options().layout(layout));
}

at::Tensor to_sparse_layout(const at::Tensor& self, std::optional<c10::Layout> layout,
                            at::OptionalIntArrayRef, std::optional<std::int64_t> dense_dim) {
  return in_layout(self, layout.value_or(c10::kSparse), dense_dim);
}
at::Tensor compressed_to_sparse(const at::Tensor& self, std::int64_t sparse_dim) {
  TORCH_CHECK(sparse_dim == 2, "to_sparse: the sparse dimension argument must be 2 for ",
              self.layout(), ", got ", sparse_dim);
  return coo_of(self);
}
at::Tensor to_sparse_csr(const at::Tensor& self, std::optional<std::int64_t> dense_dim) {
  return in_layout(self, c10::kSparseCsr, dense_dim);
}
at::Tensor to_sparse_csc(const at::Tensor& self, std::optional<std::int64_t> dense_dim) {
  return in_layout(self, c10::kSparseCsc, dense_dim);
}
// The elements of a dense matrix that are not zero.
at::Tensor dense_to_layout(const at::Tensor& self, c10::Layout layout,
                           std::optional<std::int64_t> dense_dim) {
  const std::int64_t sparse_dims = self.dim() - dense_dim.value_or(0);
  TORCH_CHECK_NOT_IMPLEMENTED(sparse_dims == 2, "tt: to the layout ", layout,
                              ": the device tt converts matrices only, got ", sparse_dims,
                              " dimensions that are not dense; convert on the CPU");
  return in_layout(self.to_sparse(2), layout, dense_dim);
}
at::Tensor dense_to_csr(const at::Tensor& self, std::optional<std::int64_t> dense_dim) {
  return dense_to_layout(self, c10::kSparseCsr, dense_dim);
}
at::Tensor dense_to_csc(const at::Tensor& self, std::optional<std::int64_t> dense_dim) {
  return dense_to_layout(self, c10::kSparseCsc, dense_dim);
}
at::Tensor compressed_to_dense(const at::Tensor& self, std::optional<c10::ScalarType> dtype,
                               std::optional<bool>) {
  const at::Tensor dense = coo_of(self).to_dense();
  return dtype ? dense.to(*dtype) : dense;
}

// A sum with a dense tensor is dense, a sum of two matrices has the layout of the first.
at::Tensor compressed_add(const at::Tensor& self, const at::Tensor& other,
                          const at::Scalar& alpha) {
  if (!is_compressed(self) && !self.is_sparse()) return self.add(coo_of(other), alpha);
  if (!is_compressed(other) && !other.is_sparse()) {
    return other.mul(alpha).add(coo_of(self));
  }
  return in_layout(coo_of(self).add(coo_of(other), alpha), self.layout(), std::nullopt);
}
at::Tensor compressed_sub(const at::Tensor& self, const at::Tensor& other,
                          const at::Scalar& alpha) {
  return compressed_add(self, other, -alpha);
}
at::Tensor compressed_mul(const at::Tensor& self, const at::Tensor& other) {
  if (!is_compressed(self)) return compressed_mul(other, self);
  if (!is_compressed(other) && !other.is_sparse() && other.dim() == 0) {
    return compressed_with(self, self.values().mul(other));
  }
  const at::Tensor product = coo_of(self).mul(coo_of(other));
  return is_compressed(other) ? in_layout(product, self.layout(), std::nullopt)
                              : compressed_with(self, product._values());
}
at::Tensor compressed_mul_scalar(const at::Tensor& self, const at::Scalar& other) {
  return compressed_with(self, self.values().mul(other));
}
at::Tensor& compressed_mul_scalar_(at::Tensor& self, const at::Scalar& other) {
  self.values().mul_(other);
  return self;
}
at::Tensor& compressed_mul_(at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK_NOT_IMPLEMENTED(other.layout() == c10::kStrided && other.dim() == 0,
                              "tt: aten::mul_: the device tt multiplies a sparse matrix by numbers "
                              "only in place");
  self.values().mul_(other);
  return self;
}
at::Tensor compressed_sum(const at::Tensor& self, std::optional<c10::ScalarType> dtype) {
  return self.values().sum(dtype);
}
at::Tensor compressed_mask(const at::Tensor& self, const at::Tensor& mask) {
  const at::Tensor dense = self.layout() == c10::kStrided ? self : self.to_dense();
  return compressed_with(mask, sparse_mask(dense, coo_of(mask))._values());
}

at::Tensor compressed_mm(const at::Tensor& self, const at::Tensor& other) {
  // The product of a dense and a sparse matrix is the transposed one of a sparse and a dense one.
  if (!is_compressed(self) && !self.is_sparse()) {
    return compressed_mm(other.transpose(0, 1), self.transpose(0, 1)).transpose(0, 1);
  }
  return sparse_mm(coo_of(self), coo_of(other));
}
at::Tensor compressed_addmm(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                            const at::Scalar& beta, const at::Scalar& alpha) {
  const at::Tensor product = compressed_mm(a, b).mul(alpha);
  return beta.equal(0) ? product : product.add(self, beta);
}
at::Tensor compressed_mv(const at::Tensor& self, const at::Tensor& vector) {
  return compressed_mm(self, vector.unsqueeze(1)).squeeze(1);
}

// The check reads the indices: it is one of programs that ask for it.
void validate_indices(bool by_row, const at::Tensor& starts, const at::Tensor& others,
                      std::int64_t lines, std::int64_t width, std::int64_t nnz) {
  at::_validate_compressed_sparse_indices(by_row, starts.cpu(), others.cpu(), lines, width, nnz);
}

// A function that maps zero to zero is applied to the values.
template <at::Tensor (at::Tensor::*kFunction)() const>
at::Tensor of_values(const at::Tensor& self) {
  return compressed_with(self, (self.values().*kFunction)());
}

void register_functions_of_values(torch::Library& compressed) {
  compressed.impl("abs", TORCH_FN((of_values<&at::Tensor::abs>)));
  compressed.impl("asin", TORCH_FN((of_values<&at::Tensor::asin>)));
  compressed.impl("atan", TORCH_FN((of_values<&at::Tensor::atan>)));
  compressed.impl("ceil", TORCH_FN((of_values<&at::Tensor::ceil>)));
  compressed.impl("erf", TORCH_FN((of_values<&at::Tensor::erf>)));
  compressed.impl("expm1", TORCH_FN((of_values<&at::Tensor::expm1>)));
  compressed.impl("floor", TORCH_FN((of_values<&at::Tensor::floor>)));
  compressed.impl("log1p", TORCH_FN((of_values<&at::Tensor::log1p>)));
  compressed.impl("neg", TORCH_FN((of_values<&at::Tensor::neg>)));
  compressed.impl("relu", TORCH_FN((of_values<&at::Tensor::relu>)));
  compressed.impl("round", TORCH_FN((of_values<&at::Tensor::round>)));
  compressed.impl("sgn", TORCH_FN((of_values<&at::Tensor::sgn>)));
  compressed.impl("sign", TORCH_FN((of_values<&at::Tensor::sign>)));
  compressed.impl("sin", TORCH_FN((of_values<&at::Tensor::sin>)));
  compressed.impl("sinh", TORCH_FN((of_values<&at::Tensor::sinh>)));
  compressed.impl("sqrt", TORCH_FN((of_values<&at::Tensor::sqrt>)));
  compressed.impl("tan", TORCH_FN((of_values<&at::Tensor::tan>)));
  compressed.impl("tanh", TORCH_FN((of_values<&at::Tensor::tanh>)));
  compressed.impl("trunc", TORCH_FN((of_values<&at::Tensor::trunc>)));
}

void register_compressed(torch::Library& dense, torch::Library& coo, torch::Library& compressed) {
  dense.impl("_to_sparse_csr", TORCH_FN(dense_to_csr));
  dense.impl("_to_sparse_csc", TORCH_FN(dense_to_csc));
  dense.impl("_validate_compressed_sparse_indices", TORCH_FN(validate_indices));
  for (auto* const sparse : {&coo, &compressed}) {
    sparse->impl("_to_sparse", TORCH_FN(to_sparse_layout));
    sparse->impl("_to_sparse_csr", TORCH_FN(to_sparse_csr));
    sparse->impl("_to_sparse_csc", TORCH_FN(to_sparse_csc));
  }
  compressed.impl("_to_sparse.sparse_dim", TORCH_FN(compressed_to_sparse));
  compressed.impl("_to_dense", TORCH_FN(compressed_to_dense));
  compressed.impl("crow_indices", TORCH_FN(at::native::crow_indices_sparse_csr));
  compressed.impl("col_indices", TORCH_FN(at::native::col_indices_sparse_csr));
  compressed.impl("ccol_indices", TORCH_FN(at::native::ccol_indices_sparse_csr));
  compressed.impl("row_indices", TORCH_FN(at::native::row_indices_sparse_csr));
  compressed.impl("values", TORCH_FN(at::native::values_sparse_csr));
  compressed.impl("_nnz", TORCH_FN(at::native::_nnz_sparse_csr));
  compressed.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse_csr));
  compressed.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse_csr));
  compressed.impl("clone", TORCH_FN(at::native::clone_sparse_compressed));
  compressed.impl("copy_", TORCH_FN(at::native::copy_sparse_compressed_));
  compressed.impl("empty.memory_format", TORCH_FN(at::native::empty_sparse_compressed));
  compressed.impl("empty_like", TORCH_FN(at::native::empty_like_sparse_csr));
  compressed.impl("resize_as_sparse_", TORCH_FN(at::native::resize_as_sparse_compressed_));
  compressed.impl("add.Tensor", TORCH_FN(compressed_add));
  compressed.impl("sub.Tensor", TORCH_FN(compressed_sub));
  compressed.impl("mul.Tensor", TORCH_FN(compressed_mul));
  compressed.impl("mul.Scalar", TORCH_FN(compressed_mul_scalar));
  compressed.impl("mul_.Scalar", TORCH_FN(compressed_mul_scalar_));
  compressed.impl("mul_.Tensor", TORCH_FN(compressed_mul_));
  compressed.impl("zero_", TORCH_FN(at::native::zero_sparse_csr_));
  compressed.impl("sum", TORCH_FN(compressed_sum));
  compressed.impl("sparse_mask", TORCH_FN(compressed_mask));
  compressed.impl("mm", TORCH_FN(compressed_mm));
  compressed.impl("addmm", TORCH_FN(compressed_addmm));
  compressed.impl("mv", TORCH_FN(compressed_mv));
  register_functions_of_values(compressed);
}

}  // namespace
