// Helpers of the linear algebra families: checks with PyTorch's messages, layouts, and the products
// that derivatives consist of. Matrices are the last two dimensions; the other dimensions are the
// batch.
#pragma once

#include <string>

#include "engine/ops/functions.h"
#include "engine/ops/op.h"

namespace teletensor::ops::linalg {

// ---------------------------------------------------------------- inference

// Returns "linalg.inv" for the op linalg_inv_ex.
std::string dotted(std::string_view op);
core::Status refuse(const InferContext& c, const std::string& text);
// Refuses all dtypes except f32, f64 and their complex forms.
core::Status check_dtype(const InferContext& c, std::size_t operand);
// Checks that both operands have the same dtype.
core::Status check_same_dtype(const InferContext& c, std::size_t a, std::size_t b);
// Checks for at least 2 dimensions and a dtype that check_dtype() accepts.
core::Status check_matrix(const InferContext& c, std::size_t operand);
core::Status check_square(const InferContext& c, std::size_t operand);
// The broadcast leading dimensions of two operands, whose last `rank_a` and `rank_b` dimensions do
// not take part.
core::Result<core::Dims> broadcast_batch(const InferContext& c, std::size_t a, int rank_a,
                                         std::size_t b, int rank_b);

// All dimensions except the last `rank`.
core::Dims batch_of(const core::Dims& shape, int rank);
core::Dims with(core::Dims batch, std::int64_t n);
core::Dims with(core::Dims batch, std::int64_t m, std::int64_t n);
// Adds a result of m x n matrices with contiguous columns, as LAPACK returns them. Refuses ranks
// and sizes above the limits.
core::Status add_columns(InferContext& c, core::DType dtype, const core::Dims& batch,
                         std::int64_t m, std::int64_t n);

// ---------------------------------------------------------------- derivatives

std::int64_t rows(const core::Layout& layout);
std::int64_t columns(const core::Layout& layout);
Var transposed(const Var& x);
Var adjoint(const Var& x);  // conjugate transpose
Var tril(const Var& x, int diagonal = 0);
Var triu(const Var& x, int diagonal = 0);
Var narrow(const Var& x, int dim, std::int64_t start, std::int64_t length);
Var diagonal(const Var& x);
// Matrices with x as their diagonals.
Var diag_embed(const Var& x);
// The identity matrix with the last size, the dtype and the device of x.
Var identity_like(const Var& x);
Var join(const Var& a, const Var& b, int dim);
Var solve(const Var& a, const Var& b);  // a^-1 b
// Solves op(a) x = b, or x op(a) = b if `left` is false.
Var solve_triangular(const Var& a, const Var& b, bool upper, bool left = true, bool unit = false);
// The gradient of a, where `g` is the gradient of p = pinv(a).
Var pinv_gradient(const Var& g, const Var& p, const Var& a);

}  // namespace teletensor::ops::linalg
