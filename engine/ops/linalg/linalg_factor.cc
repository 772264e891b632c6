// Factorizations: Cholesky, LU, LDL, QR, and Householder products. Kernels:
// backends/cpu/linalg_factor.cc.
#include <algorithm>

#include "engine/ops/families.h"
#include "engine/ops/linalg/linalg.h"

namespace teletensor::ops {
namespace {

using namespace linalg;
using core::Attribute;
using core::Dims;
using core::DType;
using core::Status;

// ---------------------------------------------------------------- inference

Status cholesky_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(check_square(c, 0));
  const Dims batch = batch_of(c.shape(0), 2);
  const std::int64_t n = c.shape(0).back();
  TT_RETURN_IF_ERROR(add_columns(c, c.dtype(0), batch, n, n));
  c.add_result(DType::kI32, batch);
  return {};
}

// Adds the results of a pivoted factorization: the factor, `count` pivots per matrix, and info.
Status add_pivoted(InferContext& c, std::int64_t count) {
  const Dims batch = batch_of(c.shape(0), 2);
  TT_RETURN_IF_ERROR(
      add_columns(c, c.dtype(0), batch, c.shape(0)[c.rank(0) - 2], c.shape(0).back()));
  c.add_result(DType::kI32, with(batch, count));
  c.add_result(DType::kI32, batch);
  return {};
}

Status lu_factor_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(check_matrix(c, 0));
  return add_pivoted(c, std::min(c.shape(0)[c.rank(0) - 2], c.shape(0).back()));
}

Status ldl_factor_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(check_square(c, 0));
  return add_pivoted(c, c.shape(0).back());
}

Status check_pivots(const InferContext& c, std::size_t operand) {
  if (c.dtype(operand) != DType::kI32) {
    return refuse(c, "pivots must be int32, got " + std::string(core::name_of(c.dtype(operand))));
  }
  if (c.rank(operand) < 1) return refuse(c, "pivots must have at least 1 dimension");
  return {};
}

Status ldl_solve_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(check_square(c, 0));
  TT_RETURN_IF_ERROR(check_pivots(c, 1));
  TT_RETURN_IF_ERROR(check_matrix(c, 2));
  TT_RETURN_IF_ERROR(check_same_dtype(c, 0, 2));
  const std::int64_t n = c.shape(0).back();
  if (c.shape(2)[c.rank(2) - 2] != n || c.shape(1) != with(batch_of(c.shape(0), 2), n)) {
    return refuse(c, "incompatible shapes of LD, pivots and B: " + core::to_string(c.shape(0)) +
                         ", " + core::to_string(c.shape(1)) + " and " +
                         core::to_string(c.shape(2)));
  }
  const auto batch = broadcast_batch(c, 0, 2, 2, 2);
  if (!batch.ok()) return batch.status();
  return add_columns(c, c.dtype(2), *batch, n, c.shape(2).back());
}

Status permutation_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(check_pivots(c, 0));
  const std::int64_t m = c.attributes.integer(0);
  if (m < c.shape(0).back()) {
    return refuse(c, "the matrix has fewer rows, " + std::to_string(m) + ", than pivots, " +
                         std::to_string(c.shape(0).back()));
  }
  c.add_result(DType::kI64, with(batch_of(c.shape(0), 1), m));
  return {};
}

Status qr_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(check_matrix(c, 0));
  const std::string_view mode = c.attributes.text(0);
  const Dims batch = batch_of(c.shape(0), 2);
  const std::int64_t m = c.shape(0)[c.rank(0) - 2], n = c.shape(0).back(), k = std::min(m, n);
  if (mode == "r") {
    c.add_result(c.dtype(0), Dims{0});
    return add_columns(c, c.dtype(0), batch, k, n);
  }
  if (mode != "reduced" && mode != "complete") {
    return refuse(c, "qr received unrecognized mode '" + std::string(mode) +
                         "' but expected one of 'reduced' (default), 'r', or 'complete'");
  }
  const bool complete = mode == "complete";
  TT_RETURN_IF_ERROR(add_columns(c, c.dtype(0), batch, m, complete ? m : k));
  return add_columns(c, c.dtype(0), batch, complete ? m : k, n);
}

Status geqrf_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(check_matrix(c, 0));
  const Dims batch = batch_of(c.shape(0), 2);
  const std::int64_t m = c.shape(0)[c.rank(0) - 2], n = c.shape(0).back();
  TT_RETURN_IF_ERROR(add_columns(c, c.dtype(0), batch, m, n));
  c.add_result(c.dtype(0), with(batch, std::min(m, n)));
  return {};
}

Status householder_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(check_matrix(c, 0));
  TT_RETURN_IF_ERROR(check_same_dtype(c, 0, 1));
  const std::int64_t m = c.shape(0)[c.rank(0) - 2], n = c.shape(0).back();
  if (m < n) return refuse(c, "input.shape[-2] must be greater than or equal to input.shape[-1]");
  if (c.rank(1) != c.rank(0) - 1 || c.shape(1).back() > n ||
      batch_of(c.shape(1), 1) != batch_of(c.shape(0), 2)) {
    return refuse(c,
                  "input.shape[-1] must be greater than or equal to tau.shape[-1] and the "
                  "batch dimensions equal, got " +
                      core::to_string(c.shape(0)) + " and " + core::to_string(c.shape(1)));
  }
  return add_columns(c, c.dtype(0), batch_of(c.shape(0), 2), m, n);
}

// ---------------------------------------------------------------- derivatives

// The lower triangle with half of the diagonal: the part that a symmetric function of the lower
// triangle depends on.
Var lower_half(const Var& x) { return (tril(x) + tril(x, -1)) * Var(0.5); }

// Source: S. F. Walter and L. Lehmann, "Algorithmic differentiation of linear algebra functions".
void cholesky_vjp(VjpContext& c) {
  const bool upper = c.attributes().boolean(0);
  const Var l = upper ? adjoint(c.result()) : c.result();
  const Var gl = upper ? adjoint(c.gradient()) : c.gradient();
  const Var lh = adjoint(l);
  Var g = solve_triangular(lh, lower_half(matmul(lh, gl)), true);
  g = solve_triangular(l, g, false, false);
  c.give(0, (g + adjoint(g)) * Var(0.5));
}

// P x: moves the rows of x to the positions from which the factorization took them.
Var permuted_back(const Var& pivots, const Var& x) {
  static const OpRef permutation("linalg_lu_permutation"), gather("gather");
  if (!x.is_tensor()) return x;
  const std::int64_t m = x.shape()[x.rank() - 2];
  const Var index = apply(permutation, {pivots}, {Attribute::of(m), Attribute::of(true)});
  return apply(gather, {x, expand(unsqueeze(index, -1), x.shape())}, {Attribute::of(-2)});
}

// A = P L U. The strict lower part of the factor's gradient belongs to L, the upper part to U.
void lu_factor_vjp(VjpContext& c) {
  const Var lu = c.result(0), g = c.gradient(0);
  const core::Layout& a = c.operand_layout(0);
  const std::int64_t m = rows(a), n = columns(a), k = std::min(m, n);
  const bool wide = m<n, tall = m> n;
  const Var square = wide ? narrow(lu, -1, 0, k) : tall ? narrow(lu, -2, 0, k) : lu;
  const Var l1 = tril(square, -1) + identity_like(square), u1 = triu(square);
  const Var lh = adjoint(l1), uh = adjoint(u1);
  Var out;
  if (!tall) {
    const Var gl = tril(narrow(g, -1, 0, k), -1), gu = triu(g);
    Var inner = matmul(lh, gl) - matmul(gu, adjoint(triu(lu)));
    inner = solve_triangular(uh, tril(inner, -1), false, false);
    inner = inner + (wide ? narrow(gu, -1, 0, k) : gu);
    out = solve_triangular(lh, inner, true, true, true);
    if (wide) {
      out = join(out, solve_triangular(lh, narrow(gu, -1, k, n - k), true, true, true), -1);
    }
  } else {
    const Var l = tril(lu, -1), gl = tril(g, -1), gu = triu(narrow(g, -2, 0, k));
    // The unit diagonal of L contributes to L^H gL.
    const Var product = matmul(adjoint(l), gl) + narrow(gl, -2, 0, k);
    Var inner = solve_triangular(lh, triu(matmul(gu, uh) - product), true, true, true);
    inner = inner + narrow(gl, -2, 0, k);
    out = join(inner, narrow(gl, -2, k, m - k), -2);
    out = solve_triangular(uh, out, false, false);
  }
  c.give(0, permuted_back(c.result(1), out));
}

// Source: S. F. Walter, L. Lehmann; for wide matrices H. Liao et al., "Differentiable programming
// tensor networks": A = [X Y], R = [U V], X = Q U.
void qr_vjp(VjpContext& c) {
  const core::Layout& a = c.operand_layout(0);
  const std::int64_t m = rows(a), n = columns(a);
  const Var q = c.result(0), r = c.result(1);
  Var gq = c.gradient(0), gr = c.gradient(1);
  Var u = r, gy;
  if (m < n) {
    const Var v = narrow(r, -1, m, n - m), gv = narrow(gr, -1, m, n - m);
    gq = gq + matmul(matmul(q, v), adjoint(gv));
    gy = matmul(q, gv);
    u = narrow(r, -1, 0, m);
    gr = narrow(gr, -1, 0, m);
  }
  const Var inner = triu(matmul(gr, adjoint(u)) - matmul(adjoint(q), gq));
  // inner + inner^H, where the real part of the diagonal is counted once
  const Var half = (inner + triu(inner, 1)) * Var(0.5);
  Var out = matmul(q, half + adjoint(half)) + gq;
  out = solve_triangular(adjoint(u), out, false, false);
  c.give(0, m < n ? join(out, gy, -1) : out);
}

}  // namespace

std::vector<OpDef> linalg_factor_ops() {
  return {
      {.signature = "linalg_cholesky_ex(Tensor A, bool upper=False, bool check_errors=False) -> "
                    "(Tensor L, Tensor info)",
       .doc = "A = L L^H (or U^H U) of Hermitian positive-definite matrices; info is 0, or the "
              "order of the leading minor that is not positive-definite.",
       .infer = cholesky_infer,
       .vjp = cholesky_vjp,
       .saves = {{.slot = kResult}},
       .internal = true,
       .batching = Batching::kFront},
      {.signature = "linalg_lu_factor_ex(Tensor A, bool check_errors=False) -> "
                    "(Tensor LU, Tensor pivots, Tensor info)",
       .doc = "A = P L U with L and U in one matrix; pivots (int32, from 1) are the rows that "
              "LAPACK exchanged.",
       .infer = lu_factor_infer,
       .vjp = lu_factor_vjp,
       .saves = {{.slot = kResult}, {.slot = kResult + 1}},
       .internal = true,
       .batching = Batching::kFront},
      {.signature = "linalg_lu_permutation(Tensor pivots, int m, bool inverse=False) -> Tensor",
       .doc = "The order in which the pivots of lu_factor put m rows: row i of L U is row "
              "result[i] of A; or the inverse of that order.",
       .infer = permutation_infer,
       .not_differentiable = "the result holds indices",
       .internal = true,
       .batching = Batching::kFront},
      refusing({.signature = "linalg_ldl_factor_ex(Tensor A, bool hermitian=False, "
                             "bool check_errors=False) -> (Tensor LD, Tensor pivots, Tensor info)",
                .doc = "Bunch-Kaufman factors of symmetric or Hermitian matrices, from their lower "
                       "triangle.",
                .infer = ldl_factor_infer,
                .internal = true,
                .batching = Batching::kFront}),
      refusing({.signature = "linalg_ldl_solve(Tensor LD, Tensor pivots, Tensor B, "
                             "bool hermitian=False) -> Tensor",
                .doc = "Solves A X = B with the factors of ldl_factor.",
                .infer = ldl_solve_infer,
                .internal = true}),
      {.signature = "linalg_qr(Tensor A, str mode) -> (Tensor Q, Tensor R)",
       .doc = "A = Q R with orthonormal columns in Q and R upper triangular; mode r leaves Q out.",
       .infer = qr_infer,
       .vjp = qr_vjp,
       .saves = {{.slot = kResult}, {.slot = kResult + 1}},
       .internal = true,
       .batching = Batching::kFront},
      refusing({.signature = "geqrf(Tensor x) -> (Tensor a, Tensor tau)",
                .doc = "QR in LAPACK's form: R above the diagonal, the Householder vectors below "
                       "it, and their scales tau.",
                .infer = geqrf_infer,
                .batching = Batching::kFront}),
      {.signature = "linalg_householder_product(Tensor A, Tensor tau) -> Tensor",
       .doc = "The first columns of the product of the reflectors I - tau v v^H whose vectors lie "
              "below the diagonal of A.",
       .infer = householder_infer,
       .not_differentiable = "the function in Python builds it from products where a gradient is "
                             "wanted",
       .internal = true,
       .batching = Batching::kFront},
  };
}

}  // namespace teletensor::ops
