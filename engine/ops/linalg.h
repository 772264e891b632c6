// What the families of linear algebra share: checks with PyTorch's texts, layouts, and the products
// that their derivatives are made of. Matrices are the last two dimensions, the others a batch.
#pragma once

#include <string>

#include "engine/ops/functions.h"
#include "engine/ops/op.h"

namespace teletensor::ops::linalg {

// ---------------------------------------------------------------- inference

// "linalg.inv" for the op linalg_inv_ex.
std::string dotted(std::string_view op);
core::Status refuse(const InferContext& c, const std::string& text);
// Refuses all but f32, f64 and their complex forms.
core::Status check_dtype(const InferContext& c, std::size_t operand);
// The same dtypes.
core::Status check_same_dtype(const InferContext& c, std::size_t a, std::size_t b);
// At least 2 dimensions and such a dtype.
core::Status check_matrix(const InferContext& c, std::size_t operand);
core::Status check_square(const InferContext& c, std::size_t operand);
// The leading dimensions of two operands, broadcast; `rank_a`, `rank_b` dimensions are their own.
core::Result<core::Dims> broadcast_batch(const InferContext& c, std::size_t a, int rank_a,
                                         std::size_t b, int rank_b);

// All but the last `rank` dimensions.
core::Dims batch_of(const core::Dims& shape, int rank);
core::Dims with(core::Dims batch, std::int64_t n);
core::Dims with(core::Dims batch, std::int64_t m, std::int64_t n);
// Adds m x n matrices whose columns are contiguous, as LAPACK gives them. Refuses ranks and sizes
// above the limits.
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
// x as the diagonal of matrices.
Var diag_embed(const Var& x);
// The identity of x's last size, dtype and device.
Var identity_like(const Var& x);
Var join(const Var& a, const Var& b, int dim);
Var solve(const Var& a, const Var& b);  // a^-1 b
// op(a) x = b, or x op(a) = b where not `left`.
Var solve_triangular(const Var& a, const Var& b, bool upper, bool left = true, bool unit = false);
// The gradient of p = pinv(a), of which `g` is the gradient.
Var pinv_gradient(const Var& g, const Var& p, const Var& a);

}  // namespace teletensor::ops::linalg
