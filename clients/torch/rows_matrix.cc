#include "clients/torch/call.h"

namespace teletensor::torch {
namespace {

// beta self + alpha product; self is not read where beta is 0.
void add_product(Call& c, const Var& product) {
  const double beta = c.real("beta", 1), alpha = c.real("alpha", 1);
  const Var self = c.var("self");
  const Var scaled = alpha == 1 ? product : product * c.var("alpha");
  if (scaled.absent() || self.absent()) return;
  if (beta == 0) return c.give(scaled);
  c.give(beta == 1 ? self + scaled : self * c.var("beta") + scaled);
}

void baddbmm(Call& c) {
  static const ops::OpRef bmm("bmm");
  add_product(c, c.run(bmm, {c.var("batch1"), c.var("batch2")}, {core::Attribute::none()}));
}
void addbmm(Call& c) {
  static const ops::OpRef bmm("bmm");
  const Var product = c.run(bmm, {c.var("batch1"), c.var("batch2")}, {core::Attribute::none()});
  add_product(c, product.absent() ? product : ops::sum(product, core::Dims{0}, false));
}
void addmv(Call& c) {
  static const ops::OpRef mv("mv");
  add_product(c, c.run(mv, {c.var("mat"), c.var("vec")}));
}
void addr(Call& c) {
  static const ops::OpRef outer("outer");
  add_product(c, c.run(outer, {c.var("vec1"), c.var("vec2")}));
}

void fft_r2c(Call& c) {
  static const ops::OpRef fft("fft_r2c");
  if (!c.flag("onesided")) return c.fail(core::unimplemented("a two-sided real transform"));
  c.give(
      c.run(fft, {c.var("self")},
            {core::Attribute::of(c.ints("dim")), core::Attribute::of(c.integer("normalization"))}));
}

constexpr Row kMatrixRows[] = {
    {"mm bmm", "(self, mat2, -)"},
    {"mv", "(self, vec)"},
    {"dot", "(self, tensor)"},
    {"addmm", "(self, mat1, mat2, beta, alpha, -)"},
    {"baddbmm", "(self, batch1, batch2, beta, alpha)", baddbmm},
    {"addbmm", "(self, batch1, batch2, beta, alpha)", addbmm},
    {"addmv", "(self, mat, vec, beta, alpha)", addmv},
    {"addr", "(self, vec1, vec2, beta, alpha)", addr},
    {"tril triu", "(self, diagonal)"},
    {"linalg_cholesky_ex", "(self, upper, check_errors)"},
    {"linalg_inv_ex", "(A, check_errors)"},
    {"linalg_solve_triangular", "(self, B, upper, left, unitriangular)"},
    {"linalg_matrix_exp", "(self)"},
    {"_fft_c2c", "fft_c2c(self, dim, normalization, forward)"},
    {"_fft_r2c", "(self, dim, normalization, onesided)", fft_r2c},
    {"_fft_c2r", "fft_c2r(self, dim, normalization, last_dim_size)"},
};

}  // namespace

std::span<const Row> matrix_rows() { return kMatrixRows; }

}  // namespace teletensor::torch
