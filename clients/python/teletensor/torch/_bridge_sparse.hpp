// Part of _bridge.cpp, which is one translation unit: sparse tensors in COO layout, such as
// gradients of embeddings. Indices and values are tensors of the device, and the operators here are
// made of operators on these two. Everything else on a sparse tensor is refused by name.
#pragma once

#include <ATen/native/SparseTensorUtils.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_embedding_bag_sparse_backward.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_native.h>
#include <ATen/ops/_to_dense_native.h>
#include <ATen/ops/_to_sparse_native.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/abs_native.h>
#include <ATen/ops/cat_native.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/copy_sparse_to_sparse_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/sparse_resize_and_clear_native.h>
#include <ATen/ops/sparse_resize_native.h>
#include <ATen/ops/sum_native.h>
#include <ATen/ops/unsqueeze_native.h>
#include <ATen/ops/values_native.h>
#include <ATen/ops/zero_native.h>

#include "_bridge_rows.hpp"

namespace {

// The tensor with other values at the same places.
at::Tensor with_values(const at::Tensor& self, const at::Tensor& values) {
  return at::_sparse_coo_tensor_unsafe(self._indices(), values, self.sizes(),
                                       values.options().layout(c10::kSparse), self.is_coalesced());
}

// The row-major number of each place among all places.
at::Tensor places_of(const at::Tensor& self) {
  const at::Tensor indices = self._indices();
  at::Tensor places = at::zeros({indices.size(1)}, indices.options());
  for (std::int64_t d = 0; d < indices.size(0); ++d) places = places * self.size(d) + indices[d];
  return places;
}

at::Tensor sparse_coalesce(const at::Tensor& self) {
  const auto sparse_dims = self.sparse_dim();
  const auto sizes = self.sizes().slice(0, sparse_dims);
  const at::Tensor indices = self._indices(), values = self._values();
  auto [distinct, groups, counts] = at::_unique2(places_of(self), true, true, false);
  auto shape = values.sizes().vec();
  shape[0] = distinct.size(0);
  const bool truth = values.scalar_type() == c10::kBool;
  const at::Tensor terms = truth ? values.to(c10::kLong) : values;
  at::Tensor sums = at::zeros(shape, terms.options()).index_add_(0, groups, terms);
  if (truth) sums = sums.ne(0);
  std::vector<at::Tensor> rows(static_cast<std::size_t>(sparse_dims));
  for (std::int64_t d = sparse_dims - 1; d >= 0; --d) {
    const std::int64_t size = std::max<std::int64_t>(sizes[d], 1);
    rows[static_cast<std::size_t>(d)] = distinct.remainder(size);
    distinct = distinct.floor_divide(size);
  }
  const at::Tensor found =
      rows.empty() ? at::zeros({0, shape[0]}, indices.options()) : at::stack(rows);
  return at::_sparse_coo_tensor_unsafe(found, sums, self.sizes(),
                                       sums.options().layout(c10::kSparse), true);
}

// The same elements, each place once.
at::Tensor distinct_values(const at::Tensor& self) { return self.coalesce()._values(); }

c10::List<std::optional<at::Tensor>> rows_of_indices(const at::Tensor& self) {
  c10::List<std::optional<at::Tensor>> rows;
  const at::Tensor indices = self._indices();
  for (std::int64_t d = 0; d < indices.size(0); ++d) rows.push_back(indices[d]);
  return rows;
}

void check_sum(const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK(!self.is_sparse() || other.is_sparse(),
              "add(sparse, dense) is not supported. Use add(dense, sparse) instead.");
  TORCH_CHECK(self.sizes() == other.sizes(), "add: expected sizes of 'self' and 'other' to match, ",
              "but ", self.sizes(), " != ", other.sizes());
  TORCH_CHECK(self.device() == other.device(),
              "Expected all tensors to be on the same device, but found at least two devices, ",
              self.device(), " and ", other.device(), "!");
  TORCH_CHECK(!self.is_sparse() || self.sparse_dim() == other.sparse_dim(),
              "add: both tensors must have the same number of sparse dimensions");
}

// Work in proportion to the places of the sparse tensor if `self` is dense.
at::Tensor& sparse_add_(at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  check_sum(self, other);
  const at::Tensor values = alpha.equal(1) ? other._values() : other._values().mul(alpha);
  if (self.is_sparse()) {
    at::sparse::alias_into_sparse(self, at::cat({self._indices(), other._indices()}, 1),
                                  at::cat({self._values(), values.to(self.scalar_type())}));
    at::sparse::get_sparse_impl(self)->set_coalesced(self._nnz() < 2);
  } else if (other.sparse_dim() == 1) {
    self.index_add_(0, other._indices()[0], values.to(self.scalar_type()));
  } else if (other.sparse_dim() == 0) {
    self.add_(values.sum(0));
  } else {
    self.index_put_(rows_of_indices(other), values.to(self.scalar_type()), true);
  }
  return self;
}
at::Tensor sparse_add(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  check_sum(self, other);
  at::Tensor made = self.clone().to(at::result_type(self, other));
  return sparse_add_(made, other, alpha);
}
at::Tensor& sparse_sub_(at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  return sparse_add_(self, other, -alpha);
}
at::Tensor sparse_sub(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  return sparse_add(self, other, -alpha);
}

// The numbers by which the values are multiplied or divided: a number, or the elements of a dense
// tensor of the same shape at the places.
at::Tensor factors(const char* name, const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      self.is_sparse() && !other.is_sparse() && (other.dim() == 0 || self.sizes() == other.sizes()),
      "tt: ", name,
      ": the device tt has no such operator for these sparse tensors; keep them on the CPU, or "
      "call "
      "to_dense()");
  if (other.dim() == 0) return other;
  TORCH_CHECK(self.device() == other.device(),
              "Expected all tensors to be on the same device, but found at least two devices, ",
              self.device(), " and ", other.device(), "!");
  return other.index(rows_of_indices(self));
}
// The product of two sparse tensors has the places that both have.
at::Tensor common_places(const at::Tensor& self, const at::Tensor& other) {
  check_sum(self, other);
  const at::Tensor a = self.coalesce(), b = other.coalesce();
  if (a._nnz() == 0 || b._nnz() == 0) {
    const auto none = a._values().slice(0, 0, 0).mul(b._values().slice(0, 0, 0));
    return at::_sparse_coo_tensor_unsafe(a._indices().slice(1, 0, 0), none, a.sizes(),
                                         none.options().layout(c10::kSparse), true);
  }
  const at::Tensor left = places_of(a), right = places_of(b);
  const at::Tensor near = at::searchsorted(right, left).clamp_max(right.size(0) - 1);
  const at::Tensor kept = right.index_select(0, near).eq(left).nonzero().squeeze(1);
  const at::Tensor values = a._values().index_select(0, kept).mul(
      b._values().index_select(0, near.index_select(0, kept)));
  return at::_sparse_coo_tensor_unsafe(a._indices().index_select(1, kept), values, a.sizes(),
                                       values.options().layout(c10::kSparse), true);
}
at::Tensor sparse_mul(const at::Tensor& self, const at::Tensor& other) {
  if (self.is_sparse() && other.is_sparse()) return common_places(self, other);
  if (!self.is_sparse()) return sparse_mul(other, self);
  return with_values(self, self._values().mul(factors("aten::mul", self, other)));
}
at::Tensor sparse_div(const at::Tensor& self, const at::Tensor& other) {
  return with_values(self, self._values().div(factors("aten::div", self, other)));
}
// As in PyTorch, a sparse tensor gets new values. Others may share the old ones.
at::Tensor& set_values(at::Tensor& self, const at::Tensor& values) {
  const bool coalesced = self.is_coalesced();
  at::sparse::alias_into_sparse(self, self._indices(), values.to(self.scalar_type()));
  at::sparse::get_sparse_impl(self)->set_coalesced(coalesced);
  return self;
}
at::Tensor& sparse_mul_(at::Tensor& self, const at::Tensor& other) {
  return set_values(self, self._values().mul(factors("aten::mul_", self, other)));
}
at::Tensor& sparse_div_(at::Tensor& self, const at::Tensor& other) {
  return set_values(self, self._values().div(factors("aten::div_", self, other)));
}
at::Tensor& sparse_mul_scalar_(at::Tensor& self, const at::Scalar& other) {
  return set_values(self, self._values().mul(other));
}
at::Tensor& sparse_div_scalar_(at::Tensor& self, const at::Scalar& other) {
  return set_values(self, self._values().div(other));
}
at::Tensor sparse_neg(const at::Tensor& self) { return with_values(self, self._values().neg()); }

at::Tensor sparse_vector_norm(const at::Tensor& self, const at::Scalar& order,
                              at::OptionalIntArrayRef dim, bool keepdim,
                              std::optional<c10::ScalarType> dtype) {
  const bool whole = !dim || dim->empty() || static_cast<std::int64_t>(dim->size()) == self.dim();
  TORCH_CHECK_NOT_IMPLEMENTED(
      whole && !keepdim && order.toDouble() > 0,
      "tt: aten::linalg_vector_norm: the device tt has norms of positive order of whole sparse "
      "tensors only");
  return at::linalg_vector_norm(distinct_values(self), order, std::nullopt, false, dtype);
}
at::Tensor sparse_norm(const at::Tensor& self, const at::Scalar& order) {
  return sparse_vector_norm(self, order, std::nullopt, false, std::nullopt);
}
at::Tensor sparse_norm_of_dims(const at::Tensor& self, const std::optional<at::Scalar>& order,
                               c10::IntArrayRef dim, bool keepdim) {
  return sparse_vector_norm(self, order.value_or(2), dim, keepdim, std::nullopt);
}

at::Tensor sparse_mask(const at::Tensor& self, const at::Tensor& mask) {
  TORCH_CHECK(self.sizes() == mask.sizes(),
              "sparse_mask(): operands have incompatible sizes; self has size ", self.sizes(),
              " but mask has size ", mask.sizes());
  const at::Tensor dense = self.is_sparse() ? self.to_dense() : self;
  return with_values(mask, dense.index(rows_of_indices(mask)));
}

// The product of a sparse matrix and a dense one: rows of `dense` are scaled and added.
at::Tensor sparse_mm(const at::Tensor& self, const at::Tensor& dense) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      self.is_sparse() && !dense.is_sparse() && self.dense_dim() == 0,
      "tt: aten::mm: the device tt has products of a sparse matrix and a dense one, in this order; "
      "for others keep them on the CPU, or call to_dense()");
  TORCH_CHECK(self.dim() == 2 && dense.dim() == 2 && self.size(1) == dense.size(0),
              "mm: shapes cannot be multiplied: ", self.sizes(), " and ", dense.sizes());
  TORCH_CHECK(self.scalar_type() == dense.scalar_type() && self.device() == dense.device(),
              "mm: both must have the same dtype and device");
  const at::Tensor indices = self._indices();
  const at::Tensor rows = dense.index_select(0, indices[1]).mul(self._values().unsqueeze(1));
  return at::zeros({self.size(0), dense.size(1)}, dense.options()).index_add_(0, indices[0], rows);
}
at::Tensor sparse_addmm(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                        const at::Scalar& beta, const at::Scalar& alpha) {
  const at::Tensor product = sparse_mm(a, b).mul(alpha);
  return beta.equal(0) ? product : product.add(self, beta);
}

// What _embedding_bag_backward does with sparse=True, which the row for dense gradients refuses.
bool makes_sparse(const std::string& name, torch::jit::Stack* stack) {
  if (name != "aten::_embedding_bag_backward") return false;
  const auto at = [&](int i) -> c10::IValue& { return torch::jit::peek(*stack, i, 12); };
  if (!at(9).toBool()) return false;
  const auto weights = at(10).toOptional<at::Tensor>();
  at::Tensor made = at::_embedding_bag_sparse_backward(
      at(0).toTensor(), at(1).toTensor(), at(2).toTensor(), at(3).toTensor(), at(4).toTensor(),
      at(6).toInt(), at(7).toBool(), at(8).toInt(), weights, at(11).toInt());
  torch::jit::drop(*stack, 12);
  torch::jit::push(*stack, std::move(made));
  return true;
}

void register_sparse(torch::Library& dense, torch::Library& sparse) {
  dense.impl(
      "_to_sparse",
      TORCH_FN(static_cast<at::Tensor (*)(const at::Tensor&, std::optional<at::Layout>,
                                          at::OptionalIntArrayRef, std::optional<std::int64_t>)>(
          at::native::dense_to_sparse)));
  dense.impl("_to_sparse.sparse_dim",
             TORCH_FN(static_cast<at::Tensor (*)(const at::Tensor&, std::int64_t)>(
                 at::native::dense_to_sparse)));
  sparse.impl("_sparse_coo_tensor_with_dims", TORCH_FN(at::native::new_with_dims_sparse));
  sparse.impl("_sparse_coo_tensor_with_dims_and_tensors",
              TORCH_FN(at::native::new_with_dims_and_tensor_sparse_symint));
  sparse.impl("empty.memory_format", TORCH_FN(at::native::empty_sparse));
  sparse.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse));
  sparse.impl("_dimI", TORCH_FN(at::native::sparse_dim_sparse));
  sparse.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse));
  sparse.impl("_dimV", TORCH_FN(at::native::dense_dim_sparse));
  sparse.impl("_nnz", TORCH_FN(at::native::_nnz_sparse));
  sparse.impl("is_coalesced", TORCH_FN(at::native::is_coalesced_sparse));
  sparse.impl("_coalesced_", TORCH_FN(at::native::_coalesced_sparse_));
  sparse.impl("_indices", TORCH_FN(at::native::_indices_sparse));
  sparse.impl("_values", TORCH_FN(at::native::_values_sparse));
  sparse.impl("indices", TORCH_FN(at::native::indices_sparse));
  sparse.impl("values", TORCH_FN(at::native::values_sparse));
  sparse.impl("clone", TORCH_FN(at::native::clone_sparse));
  sparse.impl("copy_", TORCH_FN(at::native::copy_sparse_wrapper_));
  sparse.impl("copy_sparse_to_sparse_", TORCH_FN(at::native::copy_sparse_));
  sparse.impl("sparse_resize_", TORCH_FN(at::native::sparse_resize_));
  sparse.impl("sparse_resize_and_clear_", TORCH_FN(at::native::sparse_resize_and_clear_));
  sparse.impl("zero_", TORCH_FN(at::native::zero_sparse_));
  sparse.impl("sum", TORCH_FN(at::native::sum_coo));
  sparse.impl("unsqueeze", TORCH_FN(at::native::unsqueeze_sparse));
  sparse.impl("_to_dense", TORCH_FN(at::native::sparse_to_dense));
  sparse.impl("_coalesce", TORCH_FN(sparse_coalesce));
  sparse.impl("add.Tensor", TORCH_FN(sparse_add));
  sparse.impl("add_.Tensor", TORCH_FN(sparse_add_));
  sparse.impl("sub.Tensor", TORCH_FN(sparse_sub));
  sparse.impl("sub_.Tensor", TORCH_FN(sparse_sub_));
  sparse.impl("mul.Tensor", TORCH_FN(sparse_mul));
  sparse.impl("mul_.Tensor", TORCH_FN(sparse_mul_));
  sparse.impl("div.Tensor", TORCH_FN(sparse_div));
  sparse.impl("div_.Tensor", TORCH_FN(sparse_div_));
  sparse.impl("mul_.Scalar", TORCH_FN(sparse_mul_scalar_));
  sparse.impl("div_.Scalar", TORCH_FN(sparse_div_scalar_));
  sparse.impl("abs", TORCH_FN(at::native::abs_sparse));
  sparse.impl("neg", TORCH_FN(sparse_neg));
  sparse.impl("linalg_vector_norm", TORCH_FN(sparse_vector_norm));
  sparse.impl("norm.Scalar", TORCH_FN(sparse_norm));
  sparse.impl("norm.ScalarOpt_dim", TORCH_FN(sparse_norm_of_dims));
  sparse.impl("mm", TORCH_FN(sparse_mm));
  sparse.impl("addmm", TORCH_FN(sparse_addmm));
  sparse.impl("cat", TORCH_FN(at::native::cat_sparse));
  sparse.impl("sparse_mask", TORCH_FN(sparse_mask));
}

}  // namespace
