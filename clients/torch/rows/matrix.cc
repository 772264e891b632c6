#include "clients/torch/compose.h"

namespace teletensor::torch {
namespace {

// Whether an argument is this number.
bool is(const Call& c, std::string_view name, double number) {
  return c.is_real(name) && c.real(name, 1) == number;
}
// The factor of a product with this name. PyTorch takes the whole part of it for integer tensors.
Var factor(Call& c, std::string_view name, const Var& of) {
  if (!c.is_real(name) && !core::is_complex(of.dtype())) {
    c.fail(core::invalid("For non-complex input tensors, argument " + std::string(name) +
                         " must not be a complex number."));
  }
  if (core::is_inexact(of.dtype())) return c.var(name);
  return core::Number::of_int(static_cast<std::int64_t>(c.real(name, 1)));
}
// beta self + alpha product; self is not read where beta is 0.
void add_product(Call& c, const Var& product) {
  const Var self = c.var("self");
  if (product.absent() || self.absent()) return;
  const Var alpha = factor(c, "alpha", product), beta = factor(c, "beta", product);
  const Var scaled = is(c, "alpha", 1) ? product : product * alpha;
  if (is(c, "beta", 0)) return c.give(scaled);
  c.give(is(c, "beta", 1) ? self + scaled : self * beta + scaled);
}

// The op has real factors only.
void addmm(Call& c) {
  static const ops::OpRef mm("mm");
  if (c.is_real("beta") && c.is_real("alpha")) return c.run_row();
  add_product(c, c.run(mm, {c.var("mat1"), c.var("mat2")}, {core::Attribute::none()}));
}
void baddbmm(Call& c) {
  static const ops::OpRef bmm("bmm");
  add_product(c, c.run(bmm, {c.var("batch1"), c.var("batch2")}, {core::Attribute::none()}));
}
void addbmm(Call& c) {
  static const ops::OpRef bmm("bmm");
  const Var product = c.run(bmm, {c.var("batch1"), c.var("batch2")}, {core::Attribute::none()});
  if (product.absent()) return;
  // A sum of integers is int64, whatever they are.
  add_product(c, ops::cast(ops::sum(product, core::Dims{0}, false), product.dtype()));
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
  static const ops::OpRef fft("fft_r2c"), both_sides("fft_c2c"), complex("complex");
  if (!c.flag("onesided")) {
    const Var x = c.var("self");
    if (x.absent()) return;
    const Var parts = c.run(complex, {x, ops::zeros(c.session, x.layout())});
    return c.give(
        c.run(both_sides, {parts},
              {core::Attribute::of(c.ints("dim")), core::Attribute::of(c.integer("normalization")),
               core::Attribute::of(true)}));
  }
  c.give(
      c.run(fft, {c.var("self")},
            {core::Attribute::of(c.ints("dim")), core::Attribute::of(c.integer("normalization"))}));
}

constexpr Row kMatrixRows[] = {
    {"mm bmm", "(self, mat2, -)"},
    {"mv", "(self, vec)"},
    {"dot", "(self, tensor)"},
    {"addmm", "addmm(self, mat1, mat2, beta, alpha, -)", addmm},
    {"baddbmm", "(self, batch1, batch2, beta, alpha)", baddbmm},
    {"addbmm", "(self, batch1, batch2, beta, alpha)", addbmm},
    {"addmv", "(self, mat, vec, beta, alpha)", addmv},
    {"addr", "(self, vec1, vec2, beta, alpha)", addr},
    {"tril triu", "(self, diagonal)"},
    {"_fft_c2c", "fft_c2c(self, dim, normalization, forward)"},
    {"_fft_r2c", "(self, dim, normalization, onesided)", fft_r2c},
    {"_fft_c2r", "fft_c2r(self, dim, normalization, last_dim_size)"},
};

}  // namespace

std::span<const Row> matrix_rows() { return kMatrixRows; }

}  // namespace teletensor::torch
