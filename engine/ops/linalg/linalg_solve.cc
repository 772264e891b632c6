// Linear systems: inverses, solutions, determinants, least squares.
// Kernels: backends/cpu/linalg_solve.cc.
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

Status inv_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(check_square(c, 0));
  const Dims batch = batch_of(c.shape(0), 2);
  const std::int64_t n = c.shape(0).back();
  TT_RETURN_IF_ERROR(add_columns(c, c.dtype(0), batch, n, n));
  c.add_result(DType::kI32, batch);
  return {};
}

// Checks that A is square and B is a matrix that fits the side on which the system is solved.
core::Result<Dims> system_batch(InferContext& c, bool left) {
  TT_RETURN_IF_ERROR(check_square(c, 0));
  TT_RETURN_IF_ERROR(check_matrix(c, 1));
  TT_RETURN_IF_ERROR(check_same_dtype(c, 0, 1));
  const std::int64_t inner = left ? c.shape(1)[c.rank(1) - 2] : c.shape(1).back();
  if (inner != c.shape(0).back()) {
    return refuse(c, "Incompatible shapes of A and B for the equation " +
                         std::string(left ? "AX = B (" : "XA = B (") + core::to_string(c.shape(0)) +
                         " and " + core::to_string(c.shape(1)) + ")");
  }
  return broadcast_batch(c, 0, 2, 1, 2);
}

Status solve_infer(InferContext& c) {
  const auto batch = system_batch(c, c.attributes.boolean(0));
  if (!batch.ok()) return batch.status();
  TT_RETURN_IF_ERROR(
      add_columns(c, c.dtype(1), *batch, c.shape(1)[c.rank(1) - 2], c.shape(1).back()));
  c.add_result(DType::kI32, batch_of(c.shape(0), 2));
  return {};
}

Status triangular_infer(InferContext& c) {
  const auto batch = system_batch(c, c.attributes.boolean(1));
  if (!batch.ok()) return batch.status();
  return add_columns(c, c.dtype(1), *batch, c.shape(1)[c.rank(1) - 2], c.shape(1).back());
}

Status det_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(check_square(c, 0));
  c.add_result(c.dtype(0), batch_of(c.shape(0), 2));
  return {};
}

Status slogdet_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(det_infer(c));
  c.add_result(core::real_of(c.dtype(0)), batch_of(c.shape(0), 2));
  return {};
}

Status cofactor_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(check_square(c, 0));
  const std::int64_t n = c.shape(0).back();
  return add_columns(c, c.dtype(0), batch_of(c.shape(0), 2), n, n);
}

Status lstsq_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(check_matrix(c, 0));
  TT_RETURN_IF_ERROR(check_matrix(c, 1));
  TT_RETURN_IF_ERROR(check_same_dtype(c, 0, 1));
  const std::string_view driver = c.attributes.text(1);
  if (driver != "gels" && driver != "gelsy" && driver != "gelsd" && driver != "gelss") {
    return refuse(c, "parameter `driver` should be one of (gels, gelsy, gelsd, gelss), got " +
                         std::string(driver));
  }
  const std::int64_t m = c.shape(0)[c.rank(0) - 2], n = c.shape(0).back();
  if (c.shape(1)[c.rank(1) - 2] != m) {
    return refuse(c, "A and B must have the same number of rows, got " +
                         core::to_string(c.shape(0)) + " and " + core::to_string(c.shape(1)));
  }
  const auto batch = broadcast_batch(c, 0, 2, 1, 2);
  if (!batch.ok()) return batch.status();
  TT_RETURN_IF_ERROR(add_columns(c, c.dtype(0), *batch, n, c.shape(1).back()));
  c.add_result(DType::kI64, *batch);
  c.add_result(core::real_of(c.dtype(0)), with(*batch, std::min(m, n)));
  return {};
}

// ---------------------------------------------------------------- derivatives

void inv_vjp(VjpContext& c) {
  const Var ih = adjoint(c.result());
  c.give(0, -matmul(ih, matmul(c.gradient(), ih)));
}

// X = A^-1 B: gB = A^-H gX, gA = -gB X^H; for systems from the right the same, transposed.
void solve_vjp(VjpContext& c) {
  static const OpRef op("linalg_solve_ex");
  const bool left = c.attributes().boolean(0);
  const Var g = apply(op, {adjoint(c.operand(0)), c.gradient()}, {Attribute::of(left)});
  if (c.needs(1)) c.give(1, g);
  if (!c.needs(0)) return;
  const Var xh = adjoint(c.result());
  c.give(0, -(left ? matmul(g, xh) : matmul(xh, g)));
}

void triangular_vjp(VjpContext& c) {
  const bool upper = c.attributes().boolean(0), left = c.attributes().boolean(1),
             unit = c.attributes().boolean(2);
  const Var g = solve_triangular(adjoint(c.operand(0)), c.gradient(), !upper, left, unit);
  if (c.needs(1)) c.give(1, g);
  if (!c.needs(0)) return;
  const Var xh = adjoint(c.result());
  const Var full = -(left ? matmul(g, xh) : matmul(xh, g));
  c.give(0, upper ? triu(full, unit) : tril(full, unit ? -1 : 0));
}

Var of_matrix(const Var& x) { return unsqueeze(unsqueeze(x, -1), -1); }

void det_vjp(VjpContext& c) {
  static const OpRef cofactor("linalg_cofactor");
  c.give(0, of_matrix(c.gradient()) * conj(apply(cofactor, {c.operand(0)})));
}

// C = det(A) A^-T: dC = <A^-T, dA> C - A^-T dA^T C, for matrices that are not singular.
void cofactor_vjp(VjpContext& c) {
  static const OpRef inverse("linalg_inv_ex");
  const Var bt = transposed(apply(inverse, {c.operand(0)}));
  const Var g = c.gradient(), cofactors = c.result();
  const Var scale = sum(g * conj(cofactors), Dims{-2, -1}, true);
  const Var bh = conj(bt);
  c.give(0, scale * bh - matmul(conj(cofactors), matmul(transposed(g), bh)));
}

// The logarithm of the determinant is logabsdet + i * (the angle of the sign).
void slogdet_vjp(VjpContext& c) {
  static const OpRef inverse("linalg_inv_ex");
  Var scale = c.gradient(1);
  if (core::is_complex(c.operand_layout(0).dtype)) {
    const Var turn = conj(c.gradient(0)) * c.result(0);
    scale = scale - (turn - conj(turn)) * Var(0.5);
  }
  c.give(0, of_matrix(scale) * adjoint(apply(inverse, {c.operand(0)})));
}

// X = pinv(A) B.
void lstsq_vjp(VjpContext& c) {
  static const OpRef pinv("linalg_pinv");
  const Var a = c.operand(0), g = c.gradient();
  const Var inverse = apply(pinv, {a, Var(0.0), Var(c.attributes().real(0))});
  if (c.needs(1)) c.give(1, matmul(adjoint(inverse), g));
  if (c.needs(0)) {
    c.give(0, pinv_gradient(matmul(g, adjoint(c.operand(1))), inverse, a));
  }
}

}  // namespace

std::vector<OpDef> linalg_solve_ops() {
  return {
      {.signature = "linalg_inv_ex(Tensor A, bool check_errors=False) -> "
                    "(Tensor inverse, Tensor info)",
       .doc = "Inverses; info is 0, or the diagonal element of U that is zero.",
       .infer = inv_infer,
       .vjp = inv_vjp,
       .saves = {{.slot = kResult}},
       .internal = true,
       .batching = Batching::kFront},
      {.signature = "linalg_solve_ex(Tensor A, Tensor B, bool left=True, "
                    "bool check_errors=False) -> (Tensor result, Tensor info)",
       .doc = "Solves A X = B, or X A = B, of matrices, by LU with partial pivoting.",
       .infer = solve_infer,
       .vjp = solve_vjp,
       .saves = {{.slot = 0}, {.slot = kResult, .when = bit(0)}},
       .internal = true},
      {.signature = "linalg_solve_triangular(Tensor A, Tensor B, bool upper, bool left=True, "
                    "bool unitriangular=False) -> Tensor",
       .doc = "Solves A X = B, or X A = B, reading one triangle of A.",
       .infer = triangular_infer,
       .vjp = triangular_vjp,
       .saves = {{.slot = 0}, {.slot = kResult, .when = bit(0)}},
       .internal = true},
      {.signature = "linalg_det(Tensor A) -> Tensor",
       .doc = "Determinants.",
       .infer = det_infer,
       .vjp = det_vjp,
       .saves = {{.slot = 0}},
       .internal = true,
       .batching = Batching::kFront},
      {.signature = "linalg_cofactor(Tensor A) -> Tensor",
       .doc = "det(A) A^-T, the derivative of det; a singular A is moved by its rounding error.",
       .infer = cofactor_infer,
       .vjp = cofactor_vjp,
       .saves = {{.slot = 0}, {.slot = kResult}},
       .internal = true,
       .batching = Batching::kFront},
      {.signature = "linalg_slogdet(Tensor A) -> (Tensor sign, Tensor logabsdet)",
       .doc = "Sign and logarithm of the absolute value of determinants.",
       .infer = slogdet_infer,
       .vjp = slogdet_vjp,
       .saves = {{.slot = 0}, {.slot = kResult}},
       .internal = true,
       .batching = Batching::kFront},
      {.signature = "linalg_lstsq(Tensor A, Tensor B, float rcond, str driver) -> "
                    "(Tensor solution, Tensor rank, Tensor singular_values)",
       .doc = "Least-squares solutions of A X = B, of the smallest norm for wide matrices, by one "
              "of LAPACK's drivers gels, gelsy, gelsd, gelss.",
       .infer = lstsq_infer,
       .vjp = lstsq_vjp,
       .saves = {{.slot = 0}, {.slot = 1, .when = bit(0)}},
       .internal = true},
  };
}

}  // namespace teletensor::ops
