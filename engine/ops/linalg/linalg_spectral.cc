// Spectra and matrix functions: singular values, eigenvalues, pseudo-inverse, exponential. Kernels:
// backends/cpu/linalg_spectral.cc and linalg_functions.cc.
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

Status svd_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(check_matrix(c, 0));
  const Dims batch = batch_of(c.shape(0), 2);
  const std::int64_t m = c.shape(0)[c.rank(0) - 2], n = c.shape(0).back(), k = std::min(m, n);
  const bool full = c.attributes.boolean(0);
  TT_RETURN_IF_ERROR(add_columns(c, c.dtype(0), batch, m, full ? m : k));
  c.add_result(core::real_of(c.dtype(0)), with(batch, k));
  return add_columns(c, c.dtype(0), batch, full ? n : k, n);
}

Status svdvals_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(check_matrix(c, 0));
  c.add_result(
      core::real_of(c.dtype(0)),
      with(batch_of(c.shape(0), 2), std::min(c.shape(0)[c.rank(0) - 2], c.shape(0).back())));
  return {};
}

Status eigvalsh_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(check_square(c, 0));
  const std::string_view triangle = c.attributes.text(0);
  if (triangle != "L" && triangle != "U" && triangle != "l" && triangle != "u") {
    return refuse(c, "Expected UPLO argument to be 'L' or 'U', but got " + std::string(triangle));
  }
  c.add_result(core::real_of(c.dtype(0)), batch_of(c.shape(0), 1));
  return {};
}

Status eigvals_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(check_square(c, 0));
  c.add_result(core::complex_of(c.dtype(0)), batch_of(c.shape(0), 1));
  return {};
}

Status eig_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(eigvals_infer(c));
  const std::int64_t n = c.shape(0).back();
  return add_columns(c, core::complex_of(c.dtype(0)), batch_of(c.shape(0), 2), n, n);
}

Status eigh_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(eigvalsh_infer(c));
  const std::int64_t n = c.shape(0).back();
  return add_columns(c, c.dtype(0), batch_of(c.shape(0), 2), n, n);
}

Status pinv_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(c.attributes.boolean(0) ? check_square(c, 0) : check_matrix(c, 0));
  const Dims batch = batch_of(c.shape(0), 2);
  for (std::size_t i : {1, 2}) {
    if (!c.operands[i].tensor()) continue;
    if (!core::is_floating(c.dtype(i))) return refuse(c, "tolerances must be floating point");
    const auto broad = core::broadcast_shapes(batch, c.shape(i), dotted(c.op));
    if (!broad.ok() || !(*broad == batch)) {
      return refuse(c, "tolerances of shape " + core::to_string(c.shape(i)) +
                           " do not broadcast to the batch " + core::to_string(batch));
    }
  }
  return add_columns(c, c.dtype(0), batch, c.shape(0).back(), c.shape(0)[c.rank(0) - 2]);
}

Status exp_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(check_square(c, 0));
  c.add_result(c.dtype(0), c.shape(0));
  return {};
}

// ---------------------------------------------------------------- derivatives

// x / difference, but 0 where both are 0, so that values may repeat if their vectors have no
// gradient.
Var divided(const Var& x, const Var& difference) {
  const Var both = binary("logical_and", binary("eq", difference, Var(0)), binary("eq", x, Var(0)));
  return x / where(both, Var(1), difference);
}

Var skew(const Var& x) { return x - adjoint(x); }

// Source: J. Townsend, "Differentiating the singular value decomposition".
void svd_vjp(VjpContext& c) {
  const core::Layout& a = c.operand_layout(0);
  const std::int64_t m = rows(a), n = columns(a), k = std::min(m, n);
  Var u = c.result(0), vh = c.result(2), gu = c.gradient(0), gvh = c.gradient(2);
  const Var s = c.result(1), gs = c.gradient(1);
  if (c.attributes().boolean(0)) {  // the columns that complete the basis have no gradient
    u = narrow(u, -1, 0, k), gu = narrow(gu, -1, 0, k);
    vh = narrow(vh, -2, 0, k), gvh = narrow(gvh, -2, 0, k);
  }
  const Var row = unsqueeze(s, -2), column = unsqueeze(s, -1);
  const Var uhgu = matmul(adjoint(u), gu), vhgv = matmul(vh, adjoint(gvh));
  const Var gap = row * row - column * column + identity_like(uhgu);
  Var inner = divided(skew(uhgu), gap) * row + column * divided(skew(vhgv), gap);
  inner = inner + diag_embed(gs);
  if (core::is_complex(a.dtype)) {  // the phases of the columns
    inner = inner + diag_embed(divided(diagonal(skew(uhgu)), s * Var(2.0)));
  }
  // The part of gU outside of the span of U: (I - U U^H) gU / S; the same for V^H.
  if (m > n) {
    const Var scaled = divided(gu, row);
    const Var out = matmul(u, inner) + scaled - matmul(u, matmul(adjoint(u), scaled));
    c.give(0, matmul(out, vh));
  } else if (m < n) {
    const Var scaled = divided(gvh, column);
    const Var out = matmul(inner, vh) + scaled - matmul(matmul(scaled, adjoint(vh)), vh);
    c.give(0, matmul(u, out));
  } else {
    c.give(0, matmul(matmul(u, inner), vh));
  }
}

// Source: M. B. Giles, "An extended collection of matrix derivative results".
void eigh_vjp(VjpContext& c) {
  const Var l = c.result(0), v = c.result(1), gl = c.gradient(0), gv = c.gradient(1);
  const Var vh = adjoint(v), vhgv = matmul(vh, gv), one = identity_like(vhgv);
  const Var off = where(cast(one, DType::kBool), Var(0), vhgv);
  const Var gap = unsqueeze(l, -2) - unsqueeze(l, -1) + one;
  c.give(0, matmul(v, matmul(divided(off, gap) + diag_embed(gl), vh)));
}

// Only singular values were computed, so the vectors come from a second decomposition.
void svdvals_vjp(VjpContext& c) {
  static const OpRef svd("linalg_svd");
  const Var a[] = {c.operand(0)};
  const Vars parts = apply_all(svd, a, {Attribute::of(false)});
  c.give(0, matmul(parts[0] * unsqueeze(c.gradient(), -2), parts[2]));
}

void eigvalsh_vjp(VjpContext& c) {
  static const OpRef eigh("linalg_eigh");
  const Var a[] = {c.operand(0)};
  const Var v = apply_all(eigh, a, {c.attributes().at(0)})[1];
  c.give(0, matmul(v * unsqueeze(c.gradient(), -2), adjoint(v)));
}

// Source: C. Boeddeker et al., "On the computation of complex-valued gradients with application to
// statistically optimum beamforming". The vectors have norm 1, hence the second term.
void eig_vjp(VjpContext& c) {
  const Var l = c.result(0), v = c.result(1), gl = c.gradient(0), gv = c.gradient(1);
  const Var vh = adjoint(v), vhgv = matmul(vh, gv), one = identity_like(vhgv);
  const Var d = unsqueeze(diagonal(vhgv), -2);
  const Var own = matmul(vh, v * ((d + conj(d)) * Var(0.5)));
  const Var off = where(cast(one, DType::kBool), Var(0), vhgv - own);
  const Var gap = conj(unsqueeze(l, -2) - unsqueeze(l, -1)) + one;
  c.give(0, solve(vh, matmul(divided(off, gap) + diag_embed(gl), vh)));
}

void eigvals_vjp(VjpContext& c) {
  static const OpRef eig("linalg_eig");
  const Var a[] = {c.operand(0)};
  const Var vh = adjoint(apply_all(eig, a)[1]);
  c.give(0, solve(vh, unsqueeze(c.gradient(), -1) * vh));
}

void pinv_vjp(VjpContext& c) { c.give(0, pinv_gradient(c.gradient(), c.result(), c.operand(0))); }

// The upper right block of exp [[A^H, G], [0, A^H]]. Source: I. Najfeld and T. F. Havel.
void exp_vjp(VjpContext& c) {
  static const OpRef op("linalg_matrix_exp");
  const Var ah = adjoint(c.operand(0)), g = c.gradient();
  if (!ah.is_tensor()) return;
  const std::int64_t n = ah.shape().back();
  const Var block = join(join(ah, g, -1), join(zeros(c.builder(), g.layout()), ah, -1), -2);
  c.give(0, narrow(narrow(apply(op, {block}), -2, 0, n), -1, n, n));
}

}  // namespace

namespace linalg {

// Source: G. H. Golub and V. Pereyra, "The differentiation of pseudo-inverses and nonlinear least
// squares problems whose variables separate".
Var pinv_gradient(const Var& g, const Var& p, const Var& a) {
  if (!a.is_tensor()) return a;
  const Var ph = adjoint(p), gh = adjoint(g);
  if (rows(a.layout()) <= columns(a.layout())) {
    const Var k = matmul(gh, p), kph = matmul(k, ph);
    return kph - adjoint(matmul(p, k)) - matmul(matmul(a, p), kph) +
           matmul(matmul(ph, p), gh - matmul(k, a));
  }
  const Var k = matmul(p, gh), phk = matmul(ph, k);
  return matmul(matmul(gh - matmul(a, k), p), ph) + phk - adjoint(matmul(k, p)) -
         matmul(matmul(phk, p), a);
}

}  // namespace linalg

std::vector<OpDef> linalg_spectral_ops() {
  return {
      {.signature = "linalg_svd(Tensor A, bool full_matrices=True) -> "
                    "(Tensor U, Tensor S, Tensor Vh)",
       .doc = "A = U diag(S) V^H with S in descending order.",
       .infer = svd_infer,
       .vjp = svd_vjp,
       .saves = {{.slot = kResult}, {.slot = kResult + 1}, {.slot = kResult + 2}},
       .internal = true,
       .batching = Batching::kFront},
      {.signature = "linalg_svdvals(Tensor A) -> Tensor",
       .doc = "Singular values in descending order.",
       .infer = svdvals_infer,
       .vjp = svdvals_vjp,
       .saves = {{.slot = 0}},
       .internal = true,
       .batching = Batching::kFront},
      {.signature = "linalg_eigh(Tensor A, str UPLO) -> "
                    "(Tensor eigenvalues, Tensor eigenvectors)",
       .doc = "Eigenvalues, ascending, and orthonormal eigenvectors of Hermitian matrices, from "
              "one triangle.",
       .infer = eigh_infer,
       .vjp = eigh_vjp,
       .saves = {{.slot = kResult}, {.slot = kResult + 1}},
       .internal = true,
       .batching = Batching::kFront},
      {.signature = "linalg_eigvalsh(Tensor A, str UPLO) -> Tensor",
       .doc = "Eigenvalues of Hermitian matrices, ascending.",
       .infer = eigvalsh_infer,
       .vjp = eigvalsh_vjp,
       .saves = {{.slot = 0}},
       .internal = true,
       .batching = Batching::kFront},
      {.signature = "linalg_eig(Tensor A) -> (Tensor eigenvalues, Tensor eigenvectors)",
       .doc = "Eigenvalues and eigenvectors of norm 1 of square matrices, complex also for real "
              "ones, in no order.",
       .infer = eig_infer,
       .vjp = eig_vjp,
       .saves = {{.slot = kResult}, {.slot = kResult + 1}},
       .internal = true,
       .batching = Batching::kFront},
      {.signature = "linalg_eigvals(Tensor A) -> Tensor",
       .doc = "Eigenvalues of square matrices.",
       .infer = eigvals_infer,
       .vjp = eigvals_vjp,
       .saves = {{.slot = 0}},
       .internal = true,
       .batching = Batching::kFront},
      {.signature = "linalg_pinv(Tensor A, Operand atol, Operand rtol, bool hermitian=False) -> "
                    "Tensor",
       .doc = "Pseudo-inverses; singular values up to max(atol, rtol * the largest) count as 0.",
       .infer = pinv_infer,
       .vjp = pinv_vjp,
       .saves = {{.slot = 0}, {.slot = kResult}},
       .internal = true,
       .batching = Batching::kFront},
      {.signature = "linalg_matrix_exp(Tensor A) -> Tensor",
       .doc = "Exponentials of square matrices, by scaling and squaring of Pade approximants.",
       .infer = exp_infer,
       .vjp = exp_vjp,
       .saves = {{.slot = 0}},
       .internal = true,
       .batching = Batching::kFront},
  };
}

}  // namespace teletensor::ops
