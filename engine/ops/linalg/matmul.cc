// Matrix products: matmul of all ranks, its named special cases, linear and addmm.

#include "engine/ops/families.h"
#include "engine/ops/functions.h"

namespace teletensor::ops {
namespace {

using core::Attribute;
using core::Dims;
using core::Status;

std::string pair_text(InferContext& c, std::size_t a, std::size_t b) {
  return core::to_string(c.shape(a)) + " x " + core::to_string(c.shape(b));
}

Status check_dtypes(InferContext& c, std::size_t a, std::size_t b) {
  if (c.dtype(a) != c.dtype(b)) {
    return c.fail("dtypes differ: " + std::string(core::name_of(c.dtype(a))) + " and " +
                  std::string(core::name_of(c.dtype(b))));
  }
  if (c.dtype(a) == core::DType::kBool) return c.not_defined_for(core::DType::kBool);
  return {};
}

// The shape of the product of operands a and a + 1, by NumPy's rules for matmul.
Status product(InferContext& c, std::size_t a, Dims& out) {
  const Dims &x = c.shape(a), &y = c.shape(a + 1);
  if (x.empty() || y.empty()) {
    return c.fail("both arguments need at least 1 dimension: " + pair_text(c, a, a + 1));
  }
  TT_RETURN_IF_ERROR(check_dtypes(c, a, a + 1));
  const std::int64_t inner = y.size() == 1 ? y[0] : y[y.size() - 2];
  if (x.back() != inner) return c.fail("inner sizes differ: " + pair_text(c, a, a + 1));
  Dims lead_x, lead_y;
  for (int i = 0; i + 2 < x.size(); ++i) lead_x.push_back(x[i]);
  for (int i = 0; i + 2 < y.size(); ++i) lead_y.push_back(y[i]);
  auto lead = core::broadcast_shapes(lead_x, lead_y, c.op);
  if (!lead.ok()) return c.fail("batch sizes do not broadcast: " + pair_text(c, a, a + 1));
  out = *lead;
  if (x.size() > 1) out.push_back(x[x.size() - 2]);
  if (y.size() > 1) out.push_back(y.back());
  return {};
}

Status infer_matmul(InferContext& c) {
  Dims out;
  TT_RETURN_IF_ERROR(product(c, 0, out));
  c.add_result(c.dtype(0), out);
  return {};
}

template <int kRankX, int kRankY>
Status infer_ranks(InferContext& c) {
  if (c.rank(0) != kRankX || c.rank(1) != kRankY) {
    return c.fail("takes tensors of rank " + std::to_string(kRankX) + " and " +
                  std::to_string(kRankY) + ", got " + pair_text(c, 0, 1));
  }
  if constexpr (kRankX == 3) {
    if (c.shape(0)[0] != c.shape(1)[0]) return c.fail("batch sizes differ: " + pair_text(c, 0, 1));
  }
  return infer_matmul(c);
}

Status infer_linear(InferContext& c) {
  const Dims &x = c.shape(0), &weight = c.shape(1);
  if (x.empty() || weight.size() != 2 || x.back() != weight[1]) {
    return c.fail("inner sizes differ: " + core::to_string(x) + " x " + core::to_string(weight) +
                  " (transposed)");
  }
  TT_RETURN_IF_ERROR(check_dtypes(c, 0, 1));
  if (c.operands[2].tensor()) {
    TT_RETURN_IF_ERROR(check_dtypes(c, 0, 2));
    if (!(c.shape(2) == Dims{weight[0]})) {
      return c.fail("bias must have shape " + core::to_string(Dims{weight[0]}) + ", it has " +
                    core::to_string(c.shape(2)));
    }
  }
  Dims out = x;
  out[out.size() - 1] = weight[0];
  c.add_result(c.dtype(0), out);
  return {};
}

Status infer_addmm(InferContext& c) {
  if (c.rank(1) != 2 || c.rank(2) != 2) return c.fail("takes two matrices: " + pair_text(c, 1, 2));
  Dims out;
  TT_RETURN_IF_ERROR(product(c, 1, out));
  TT_RETURN_IF_ERROR(check_dtypes(c, 0, 1));
  auto broad = core::broadcast_shapes(c.shape(0), out, c.op);
  if (!broad.ok() || !(*broad == out)) {
    return c.fail("shape " + core::to_string(c.shape(0)) + " does not expand to " +
                  core::to_string(out));
  }
  if (!core::is_inexact(c.dtype(1))) {
    for (std::size_t i = 0; i < 2; ++i) {
      const double factor = c.attributes.real(i);
      if (!(factor >= -0x1p53 && factor <= 0x1p53) ||
          factor != static_cast<double>(static_cast<std::int64_t>(factor))) {
        return c.fail("alpha and beta must be whole numbers for integer tensors");
      }
    }
  }
  c.add_result(c.dtype(1), out);
  return {};
}

Status infer_outer(InferContext& c) {
  if (c.rank(0) != 1 || c.rank(1) != 1) return c.fail("takes two vectors: " + pair_text(c, 0, 1));
  TT_RETURN_IF_ERROR(check_dtypes(c, 0, 1));
  c.add_result(c.dtype(0), Dims{c.shape(0)[0], c.shape(1)[0]});
  return {};
}

Var last_two_swapped(const Var& x) { return transpose(x, -2, -1); }

// x of rank 2 or more as a matrix: all dimensions but the last are merged.
Var flat(const Var& x) {
  if (!x.is_tensor() || x.rank() == 2) return x;
  std::int64_t rows = 1;
  for (int i = 0; i + 1 < x.rank(); ++i) rows *= x.shape()[i];
  return reshape(x, {rows, x.shape().back()});
}

// In the derivatives of products the gradient of the second factor comes first. That factor is
// usually a weight, and the first factor, which its gradient reads, can be freed before the
// gradient of the first factor takes memory.

void matmul_vjp(VjpContext& c) {
  const Var g = c.gradient();
  const bool tf32 = flag(c.attributes(), 0);
  const Var x = conj(c.operand(0)), y = conj(c.operand(1));
  const int rank_x = c.operand_layout(0).geometry.rank();
  const int rank_y = c.operand_layout(1).geometry.rank();
  if (rank_x == 1 && rank_y == 1) {
    if (c.needs(0)) c.give(0, g * y);
    if (c.needs(1)) c.give(1, g * x);
    return;
  }
  // A vector counts as a matrix of one row (left) or one column (right); its gradient does too.
  Var grad = g;
  if (rank_x == 1) grad = unsqueeze(grad, -2);
  if (rank_y == 1) grad = unsqueeze(grad, -1);
  if (c.needs(1)) {
    const Var matrix = rank_x == 1 ? unsqueeze(x, 0) : x;
    if (rank_y == 2) {
      c.give_product(1, flat(matrix), flat(grad), tf32);
    } else if (rank_y == 1) {
      c.give(1, squeeze(matmul(transpose(flat(matrix), 0, 1), flat(grad), tf32), -1));
    } else {
      c.give(1, matmul(last_two_swapped(matrix), grad, tf32));
    }
  }
  if (c.needs(0)) {
    const Var matrix = rank_y == 1 ? unsqueeze(y, -1) : y;
    Var out = matmul(grad, last_two_swapped(matrix), tf32);
    if (rank_x == 1) out = squeeze(out, -2);
    c.give(0, out);
  }
}

void linear_vjp(VjpContext& c) {
  const Var g = c.gradient();
  const bool tf32 = flag(c.attributes(), 0);
  if (c.needs(1)) {
    const Var x = conj(c.operand(0));
    const auto rows = [](const Var& v) { return v.rank() == 1 ? unsqueeze(v, 0) : flat(v); };
    c.give_product(1, rows(g), rows(x), tf32);
  }
  if (c.needs(0)) c.give(0, matmul(g, conj(c.operand(1)), tf32));
  if (c.operands() > 2 && c.needs(2)) c.give(2, g);
}

void addmm_vjp(VjpContext& c) {
  const Var g = c.gradient();
  const double beta = c.attributes().real(0), alpha = c.attributes().real(1);
  const bool tf32 = flag(c.attributes(), 2);
  const auto scaled = [](const Var& v, double factor) { return factor == 1 ? v : v * Var(factor); };
  if (c.needs(0)) c.give(0, scaled(g, beta));
  if (c.needs(2)) c.give_product(2, conj(c.operand(1)), scaled(g, alpha), tf32);
  if (c.needs(1)) c.give(1, scaled(matmul(g, transpose(conj(c.operand(2)), 0, 1), tf32), alpha));
}

void outer_vjp(VjpContext& c) {
  const Var g = c.gradient();
  if (c.needs(0)) c.give(0, matmul(g, conj(c.operand(1))));
  if (c.needs(1)) c.give(1, matmul(conj(c.operand(0)), g));
}

const std::vector<Save> kBothFactors = {{0, bit(1)}, {1, bit(0)}};

}  // namespace

std::vector<OpDef> matmul_ops() {
  return {
      {.signature = "matmul(Tensor x, Tensor y, bool? tf32=None) -> Tensor",
       .doc =
           "Matrix product over the last two dimensions; leading ones broadcast, a vector is a row "
           "on the left and a column on the right. With tf32 a GPU rounds float32 factors to 11 "
           "bits of mantissa.",
       .infer = infer_matmul,
       .vjp = matmul_vjp,
       .saves = kBothFactors},
      {.signature = "mm(Tensor x, Tensor y, bool? tf32=None) -> Tensor",
       .doc = "Product of two matrices.",
       .infer = infer_ranks<2, 2>,
       .vjp = matmul_vjp,
       .saves = kBothFactors},
      {.signature = "bmm(Tensor x, Tensor y, bool? tf32=None) -> Tensor",
       .doc = "Products of two stacks of matrices, [b, n, k] x [b, k, m].",
       .infer = infer_ranks<3, 3>,
       .vjp = matmul_vjp,
       .saves = kBothFactors},
      {.signature = "mv(Tensor x, Tensor y) -> Tensor",
       .doc = "Product of a matrix and a vector.",
       .infer = infer_ranks<2, 1>,
       .vjp = matmul_vjp,
       .saves = kBothFactors},
      {.signature = "dot(Tensor x, Tensor y) -> Tensor",
       .doc = "Inner product of two vectors, a 0-d tensor.",
       .infer = infer_ranks<1, 1>,
       .vjp = matmul_vjp,
       .saves = kBothFactors},
      {.signature = "outer(Tensor x, Tensor y) -> Tensor",
       .doc = "Matrix of the products of every element of x with every element of y.",
       .infer = infer_outer,
       .vjp = outer_vjp,
       .saves = kBothFactors},
      {.signature =
           "addmm(Tensor x, Tensor a, Tensor b, float beta=1, float alpha=1, bool? tf32=None) -> "
           "Tensor",
       .doc = "beta * x + alpha * (a @ b); x broadcasts and is not read when beta is 0.",
       .infer = infer_addmm,
       .vjp = addmm_vjp,
       .saves = {{1, bit(2)}, {2, bit(1)}}},
      {.signature = "linear(Tensor x, Tensor weight, Tensor? bias=None, bool? tf32=None) -> Tensor",
       .doc = "x @ weight.T + bias over the last dimension; weight is [out, in].",
       .infer = infer_linear,
       .vjp = linear_vjp,
       .saves = kBothFactors},
  };
}

}  // namespace teletensor::ops
