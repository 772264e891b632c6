// Factors, solutions and spectra of matrices.

#include <algorithm>

#include "clients/torch/compose.h"

namespace teletensor::torch {
namespace {

using core::Attribute;
using core::Dims;

// ---- LU

// torch's gradients of determinants take it that a contiguous real A was factored as its
// transpose.
bool factors_transpose(Call& c, const Var& a) {
  const tt_tensor& tensor = c.value("A").tensor;
  if (a.absent() || core::is_complex(a.dtype())) return false;
  std::int64_t expected = 1;
  for (int i = tensor.rank - 1; i >= 0; --i) {
    if (tensor.sizes[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.sizes[i];
  }
  return true;
}
ops::Vars factored(Call& c, const Var& a) {
  return all_made("linalg_lu_factor_ex", {factors_transpose(c, a) ? transposed(a) : a});
}

void lu_factor(Call& c) {
  if (!c.flag("pivot")) return c.fail(core::unimplemented("LU without pivots"));
  for (const Var& each :
       all_made("linalg_lu_factor_ex", {c.var("A")}, {Attribute::of(c.flag("check_errors"))})) {
    c.give(each);
  }
}

// The permutation matrix P of pivots, for m rows.
Var permutation(Call& c, const Var& pivots, std::int64_t m, DType dtype) {
  const Var order =
      made("linalg_lu_permutation", {pivots}, {Attribute::of(m), Attribute::of(true)});
  if (order.absent()) return {};
  return ops::cast(equal_to(ops::unsqueeze(order, order.rank()), range(c, m)), dtype);
}
Var lower_of(Call& c, const Var& factor, std::int64_t m, std::int64_t k) {
  return made("tril", {slice(factor, -1, 0, k)}, {Attribute::of(-1)}) +
         identity(c, m, k, factor.dtype());
}
Var upper_of(const Var& factor, std::int64_t k) { return made("triu", {slice(factor, -2, 0, k)}); }

void lu(Call& c) {
  if (!c.flag("pivot")) return c.fail(core::unimplemented("LU without pivots"));
  const Var a = c.var("A");
  const ops::Vars factors = all_made("linalg_lu_factor_ex", {a});
  if (factors[0].absent()) return;
  const std::int64_t m = size_of(a, -2), k = std::min(m, size_of(a, -1));
  c.give(permutation(c, factors[1], m, a.dtype()));
  c.give(lower_of(c, factors[0], m, k));
  c.give(upper_of(factors[0], k));
}
void lu_unpack(Call& c) {
  const Var factor = c.var("LU_data"), pivots = c.var("LU_pivots");
  if (factor.absent() || factor.rank() < 2) return c.fail(core::unimplemented("these factors"));
  const std::int64_t m = size_of(factor, -2), k = std::min(m, size_of(factor, -1));
  const DType dtype = factor.dtype();
  c.flag("unpack_pivots") ? c.give(permutation(c, pivots, m, dtype)) : give_empty(c, dtype);
  c.flag("unpack_data") ? c.give(lower_of(c, factor, m, k)) : give_empty(c, dtype);
  c.flag("unpack_data") ? c.give(upper_of(factor, k)) : give_empty(c, dtype);
}

Var triangular(const Var& a, const Var& b, bool upper, bool unit) {
  return made("linalg_solve_triangular", {a, b},
              {Attribute::of(upper), Attribute::of(true), Attribute::of(unit)});
}
// The X of A X = B, or of A^H X = B, from the factors of A.
Var lu_solution(Call& c, const Var& factor, const Var& pivots, const Var& right, bool of_adjoint) {
  if (factor.absent() || right.absent()) return {};
  const int rank = factor.rank();
  const auto lead = core::broadcast_shapes(
      Dims(factor.shape().span().first(static_cast<std::size_t>(rank - 2))),
      Dims(right.shape().span().first(static_cast<std::size_t>(right.rank() - 2))), c.name());
  if (!lead.ok()) return c.fail(lead.status()), Var();
  Dims shape = *lead;
  for (int i = -2; i < 0; ++i) shape.push_back(size_of(right, i));
  const Var b = ops::expand(right, shape);
  const Var order = made("linalg_lu_permutation", {pivots},
                         {Attribute::of(size_of(factor, -1)), Attribute::of(of_adjoint)});
  if (order.absent()) return {};
  const Var places = ops::expand(ops::unsqueeze(order, order.rank()), shape);
  if (of_adjoint) {
    const Var other = adjoint(factor);
    return gather(triangular(other, triangular(other, b, false, false), true, true), places, -2);
  }
  return triangular(factor, triangular(factor, gather(b, places, -2), false, true), true, false);
}
void lu_solve(Call& c) {
  const Var factor = c.var("LU"), pivots = c.var("pivots"), b = c.var("B");
  if (factor.rank() < 2 || b.rank() < 2) return c.fail(core::unimplemented("these factors"));
  const bool of_adjoint = c.flag("adjoint");
  if (c.integer("left", 1) != 0) return c.give(lu_solution(c, factor, pivots, b, of_adjoint));
  c.give(adjoint(lu_solution(c, factor, pivots, adjoint(b), !of_adjoint)));
}

void determinant(Call& c) {
  const Var a = c.var("A");
  const ops::Vars factors = factored(c, a);
  c.give(made("linalg_det", {a}));
  c.give(factors[0]);
  c.give(factors[1]);
}
void sign_and_log(Call& c) {
  const Var a = c.var("A");
  const ops::Vars factors = factored(c, a), results = all_made("linalg_slogdet", {a});
  c.give(results[0]);
  c.give(results[1]);
  c.give(factors[0]);
  c.give(factors[1]);
}
void solve(Call& c) {
  const Var a = c.var("A"), b = c.var("B");
  if (a.absent() || b.absent()) return;
  const bool vectors =
      b.rank() == 1 || (b.rank() == a.rank() - 1 &&
                        std::equal(b.shape().begin(), b.shape().end(), a.shape().begin()));
  const ops::Vars factors = all_made("linalg_lu_factor_ex", {a});
  const ops::Vars results =
      all_made("linalg_solve_ex", {a, vectors ? ops::unsqueeze(b, b.rank()) : b},
               {Attribute::of(vectors || c.flag("left")), Attribute::of(c.flag("check_errors"))});
  if (results[0].absent()) return;
  c.give(vectors ? ops::squeeze(results[0], results[0].rank() - 1) : results[0]);
  c.give(factors[0]);
  c.give(factors[1]);
  c.give(results[1]);
}

// ---- Cholesky, triangular systems, least squares

Var cholesky_solution(const Var& b, const Var& factor, bool upper) {
  const Var lower = upper ? adjoint(factor) : factor, other = upper ? factor : adjoint(factor);
  return triangular(other, triangular(lower, b, false, false), true, false);
}
void cholesky_solve(Call& c) {
  c.give(cholesky_solution(c.var("self"), c.var("A"), c.flag("upper")));
}
void cholesky_inverse(Call& c) {
  const Var factor = c.var("self");
  if (factor.absent()) return;
  const std::int64_t n = size_of(factor, -1);
  c.give(cholesky_solution(identity(c, n, n, factor.dtype()), factor, c.flag("upper")));
}
void triangular_solve(Call& c) {
  const Var a = c.var("A");
  const bool transposes = c.flag("transpose");
  if (transposes && core::is_complex(a.dtype())) {
    return c.fail(core::unimplemented("a complex transposed system"));
  }
  c.give(triangular(transposes ? transposed(a) : a, c.var("self"), c.flag("upper") != transposes,
                    c.flag("unitriangular")));
  c.give(ops::unary("clone", a));
}
void least_squares(Call& c) {
  const Var a = c.var("self"), b = c.var("b");
  if (a.rank() < 2 || b.rank() < 1) return c.fail(core::unimplemented("these operands"));
  const std::string_view driver = c.absent("driver") ? "gelsy" : c.text("driver");
  const std::int64_t m = size_of(a, -2), n = size_of(a, -1);
  const bool wide = a.dtype() == DType::kF64 || a.dtype() == DType::kC128;
  const double epsilon = wide ? 0x1p-52 : 0x1p-23;
  const double cut = c.real("rcond", epsilon * static_cast<double>(std::max(m, n)));
  const bool vector = b.rank() == a.rank() - 1;
  const Var right = vector ? ops::unsqueeze(b, b.rank()) : b;
  const ops::Vars results =
      all_made("linalg_lstsq", {a, right}, {Attribute::of(cut), Attribute::of(driver)});
  const Var solution = results[0];
  if (solution.absent()) return;
  const DType real = core::is_complex(a.dtype()) ? results[2].dtype() : a.dtype();
  c.give(vector ? ops::squeeze(solution, solution.rank() - 1) : solution);
  if (driver != "gelsy" && m > n) {
    const Var off = ops::unary("abs", ops::matmul(a, solution) - right);
    c.give(ops::sum(off * off, Dims{off.rank() - 2}, false));
  } else {
    give_empty(c, real);
  }
  driver == "gels" ? give_empty(c, DType::kI64) : c.give(results[1]);
  driver == "gels" || driver == "gelsy" ? give_empty(c, real) : c.give(results[2]);
}

// ---- Reflectors and spectra

// Q other, or other Q, with the complete Q of geqrf's reflectors.
void ormqr(Call& c) {
  const Var input = c.var("self"), other = c.var("input3");
  if (input.rank() < 2) return c.fail(core::unimplemented("these reflectors"));
  const std::int64_t m = size_of(input, -2), n = size_of(input, -1);
  Dims missing = input.shape();
  missing[input.rank() - 1] = std::max<std::int64_t>(m - n, 0);
  const Var whole =
      m > n ? cat({input, filled(c, missing, core::Number::of_int(0), input.dtype())}, -1)
            : slice(input, -1, 0, m);
  const Var product = made("linalg_householder_product", {whole, c.var("input2")});
  const Var q = c.flag("transpose") ? adjoint(product) : product;
  c.give(c.integer("left", 1) != 0 ? ops::matmul(q, other) : ops::matmul(other, q));
}

void svd(Call& c) {
  const Var a = c.var("A");
  if (a.absent()) return;
  if (c.flag("compute_uv")) {
    for (const Var& each : all_made("linalg_svd", {a}, {Attribute::of(c.flag("full_matrices"))})) {
      c.give(each);
    }
    return;
  }
  give_empty(c, a.dtype());
  c.give(made("linalg_svdvals", {a}));
  give_empty(c, a.dtype());
}
ops::Vars eigenpairs(const Var& a, std::string_view triangle) {
  return all_made("linalg_eigh", {a}, {Attribute::of(triangle)});
}
void eigh(Call& c) {
  const Var a = c.var("A");
  if (a.absent()) return;
  const std::string_view triangle = c.text("UPLO") == "U" || c.text("UPLO") == "u" ? "U" : "L";
  if (c.flag("compute_v")) {
    for (const Var& each : eigenpairs(a, triangle)) c.give(each);
    return;
  }
  c.give(made("linalg_eigvalsh", {a}, {Attribute::of(triangle)}));
  give_empty(c, a.dtype());
}
// The root of a Hermitian matrix without negative eigenvalues.
void root(Call& c) {
  const ops::Vars pairs = eigenpairs(c.var("self"), "L");
  if (pairs[0].absent()) return;
  const Var roots = ops::unary("sqrt", clamped(pairs[0], 0, {}));
  c.give(ops::matmul(pairs[1] * ops::unsqueeze(roots, roots.rank() - 1), adjoint(pairs[1])));
}
// A = U H, from A = W S V^H: U = W V^H, H = V S V^H.
void polar_factors(Call& c) {
  const ops::Vars factors = all_made("linalg_svd", {c.var("A")}, {Attribute::of(false)});
  if (factors[0].absent()) return;
  const Var scale = ops::unsqueeze(factors[1], factors[1].rank() - 1);
  c.give(ops::matmul(factors[0], factors[2]));
  c.give(ops::matmul(adjoint(factors[2]) * scale, factors[2]));
}

// ---- Products

void cross(Call& c) {
  const Var a = c.var("self"), b = c.var("other");
  if (a.absent() || b.absent()) return;
  const auto dim = dim_of(c, c.integer("dim", -1), a.rank());
  if (!dim) return;
  constexpr std::int64_t kNext[] = {1, 2, 0}, kAfter[] = {2, 0, 1};
  const Var next = constant(c, kNext), after = constant(c, kAfter);
  if (size_of(a, *dim) != 3 || a.rank() != b.rank() || size_of(b, *dim) != 3) {
    return c.fail(core::invalid("linalg.cross: inputs dimension " + std::to_string(*dim) +
                                " must have length 3"));
  }
  c.give(rows_at(a, next, *dim) * rows_at(b, after, *dim) -
         rows_at(a, after, *dim) * rows_at(b, next, *dim));
}
void vdot(Call& c) { c.give(made("dot", {ops::conj(c.var("self")), c.var("other")})); }
void trace(Call& c) {
  const Var x = c.var("self");
  if (x.rank() != 2) return c.fail(core::invalid("trace: expected a matrix"));
  c.give(made("sum", {made("diagonal", {x})}));
}

constexpr Row kLinalgRows[] = {
    {"linalg_cholesky_ex", "(self, upper, check_errors)"},
    {"linalg_inv_ex", "(A, check_errors)"},
    {"linalg_solve_triangular", "(self, B, upper, left, unitriangular)"},
    {"linalg_lu_factor_ex", "(A, pivot, check_errors)", lu_factor},
    {"linalg_lu", "(A, pivot)", lu},
    {"lu_unpack", "(LU_data, LU_pivots, unpack_data, unpack_pivots)", lu_unpack},
    {"linalg_lu_solve", "(LU, pivots, B, left, adjoint)", lu_solve},
    {"_linalg_det", "(A)", determinant},
    {"_linalg_slogdet", "(A)", sign_and_log},
    {"_linalg_solve_ex", "(A, B, left, check_errors)", solve},
    {"linalg_ldl_factor_ex", "(self, hermitian, check_errors)"},
    {"linalg_ldl_solve", "(LD, pivots, B, hermitian)"},
    {"_cholesky_solve_helper", "(self, A, upper)", cholesky_solve},
    {"cholesky_inverse", "(self, upper)", cholesky_inverse},
    {"triangular_solve", "(self, A, upper, transpose, unitriangular)", triangular_solve},
    {"linalg_lstsq", "(self, b, rcond, driver)", least_squares},
    {"linalg_qr", "(A, mode)"},
    {"geqrf", "(self)"},
    {"linalg_householder_product", "(input, tau)"},
    {"ormqr", "(self, input2, input3, left, transpose)", ormqr},
    {"_linalg_svd", "(A, full_matrices, compute_uv | driver)", svd},
    {"_linalg_eigh", "(A, UPLO, compute_v)", eigh},
    {"linalg_eig", "(self)"},
    {"_linalg_eigvals linalg_eigvals", "linalg_eigvals(self)"},
    {"linalg_matrix_exp", "(self)"},
    {"linalg_matrix_sqrth", "(self)", root},
    {"linalg_polar", "(A)", polar_factors},
    {"linalg_cross", "(self, other, dim)", cross},
    {"vdot", "(self, other)", vdot},
    {"trace", "(self)", trace},
};

}  // namespace

std::span<const Row> linalg_rows() { return kLinalgRows; }

}  // namespace teletensor::torch
