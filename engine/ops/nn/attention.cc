// Scaled dot-product attention, whose score matrix is never stored, and its derivatives.
#include <limits>
#include <string>

#include "engine/ops/families.h"
#include "engine/ops/functions.h"

namespace teletensor::ops {
namespace {

using core::Attribute;
using core::Dims;
using core::DType;
using core::Status;

// The dtype of scores, their logarithms and the mask; heads of 16-bit floats are summed in float32.
DType score_dtype(DType heads) { return heads == DType::kF64 ? heads : DType::kF32; }

// Checks query [..., L, E], key [..., S, E] and value [..., S, V], which are the operands from
// `first` on.
Status check_heads(InferContext& c, std::size_t first) {
  const Dims &q = c.shape(first), &k = c.shape(first + 1), &v = c.shape(first + 2);
  const std::string shapes =
      core::to_string(q) + ", " + core::to_string(k) + ", " + core::to_string(v);
  const int rank = q.size();
  if (rank < 2 || k.size() != rank || v.size() != rank) {
    return c.fail("query, key and value need equal ranks of at least 2: " + shapes);
  }
  bool fits = q[rank - 1] == k[rank - 1] && k[rank - 2] == v[rank - 2];
  for (int d = 0; d + 2 < rank; ++d) fits = fits && q[d] == k[d] && k[d] == v[d];
  if (!fits) return c.fail("sizes do not fit: " + shapes);
  const DType dtype = c.dtype(first);
  if (!core::is_floating(dtype)) return c.not_defined_for(dtype);
  if (c.dtype(first + 1) != dtype || c.dtype(first + 2) != dtype) {
    return c.fail("query, key and value have different dtypes");
  }
  return {};
}

// Checks a mask of the query's rank, whose sizes are those of the scores [..., L, S] or 1.
Status check_mask(InferContext& c, std::size_t i, std::size_t query) {
  if (c.operands[i].absent()) return {};
  Dims scores = c.shape(query);
  scores[scores.size() - 1] = c.shape(query + 2)[scores.size() - 2];
  const Dims& mask = c.shape(i);
  bool fits = mask.size() == scores.size();
  for (int d = 0; fits && d < mask.size(); ++d) fits = mask[d] == scores[d] || mask[d] == 1;
  if (!fits) {
    return c.fail("a mask of shape " + core::to_string(mask) + " for scores of shape " +
                  core::to_string(scores));
  }
  const DType dtype = score_dtype(c.dtype(query));
  if (c.dtype(i) != dtype) {
    return c.fail("the mask must have the scores' dtype, " + std::string(core::name_of(dtype)) +
                  ", it has " + std::string(core::name_of(c.dtype(i))));
  }
  return {};
}

Status infer_attention(InferContext& c) {
  TT_RETURN_IF_ERROR(check_heads(c, 0));
  TT_RETURN_IF_ERROR(check_mask(c, 3, 0));
  Dims out = c.shape(0), rows = c.shape(0);
  out[out.size() - 1] = c.shape(2).back();
  rows.erase(rows.size() - 1);
  // The result has the query's order of strides, so that heads which are views of one product are
  // adjacent again without a copy. The elements of a row are always adjacent.
  core::Geometry result(out);
  const core::Geometry order(out, c.geometry(0).strides);
  const core::Geometry* const inputs[] = {&order};
  if (core::checked_numel(out.span()).ok()) {
    const core::Geometry ordered = core::elementwise_layout(out, inputs);
    if (ordered.strides.back() == 1) result = ordered;
  }
  c.add_result(c.dtype(0), result);
  c.add_result(score_dtype(c.dtype(0)), rows);
  return {};
}

Status infer_attention_backward(InferContext& c) {
  TT_RETURN_IF_ERROR(check_heads(c, 1));
  TT_RETURN_IF_ERROR(check_mask(c, 6, 1));
  Dims out = c.shape(1), rows = c.shape(1);
  out[out.size() - 1] = c.shape(3).back();
  rows.erase(rows.size() - 1);
  if (c.shape(0) != out || c.shape(4) != out || c.shape(5) != rows) {
    return c.fail("the gradient has shape " + core::to_string(c.shape(0)) + ", the result " +
                  core::to_string(out));
  }
  if (c.dtype(0) != c.dtype(1) || c.dtype(4) != c.dtype(1) ||
      c.dtype(5) != score_dtype(c.dtype(1))) {
    return c.fail("dtypes differ");
  }
  for (std::size_t i = 1; i < 4; ++i) c.add_result(c.dtype(i), c.shape(i));
  return {};
}

// An operand in the dtype of the scores.
Var wide(const Var& x) {
  const DType dtype = score_dtype(x.dtype());
  return x.dtype() == dtype ? x : cast(x, dtype);
}
Var as(const Var& x, DType dtype) { return x.dtype() == dtype ? x : cast(x, dtype); }

Var turned(const Var& x) { return transpose(x, x.rank() - 2, x.rank() - 1); }
Var row_sum(const Var& x) { return sum(x, {x.rank() - 1}, true); }

// The whole matrix scale * q k^T + mask; -infinity where a query may not see a key.
Var scores_of(VjpContext& c, std::size_t query, const Var& q, const Var& k, const Var& mask) {
  static const OpRef tril("tril");
  Var scores = matmul(q, turned(k)) * Var(c.attributes().real(1));
  if (c.attributes().boolean(0)) {
    const core::Layout& layout = c.operand_layout(query);
    const Dims square{q.shape()[q.rank() - 2], k.shape()[k.rank() - 2]};
    const Var all =
        full(c.builder(), square, core::Number::of_float(1), scores.dtype(), layout.device);
    const Var seen = binary("gt", apply(tril, {all}, {Attribute::of(0)}), Var(0.5));
    scores = where(seen, scores, Var(-std::numeric_limits<double>::infinity()));
  }
  return mask.absent() ? scores : scores + mask;
}

// softmax(scores), with 0 in rows that see no key; only a mask can cause such rows.
Var weights_of(const Var& scores, const Var& mask, const Var& logsumexp) {
  static const OpRef softmax("softmax");
  if (mask.absent()) return apply(softmax, {scores}, {Attribute::of(-1)});
  const Var logs = unsqueeze(logsumexp, logsumexp.rank());
  const Var blind = binary("eq", logs, Var(-std::numeric_limits<double>::infinity()));
  const Var finite = where(blind, Var(0.0), scores);
  return where(blind, Var(0.0), apply(softmax, {finite}, {Attribute::of(-1)}));
}

void attention_vjp(VjpContext& c) {
  static const OpRef op("attention_backward");
  const Var g = c.gradient(), q = c.operand(0), k = c.operand(1), v = c.operand(2),
            mask = c.operand(3), y = c.result(0), logs = c.result(1);
  if (c.needs(0) || c.needs(1) || c.needs(2)) {
    const Var arguments[] = {g, q, k, v, y, logs, mask};
    const Vars given = apply_all(op, arguments, c.attributes());
    for (int i = 0; i < 3; ++i) {
      if (c.needs(i)) c.give(i, given[static_cast<std::size_t>(i)]);
    }
  }
  if (c.needs(3)) {  // the gradient of the mask is dS (see below), computed as a whole
    const Var p = weights_of(scores_of(c, 0, wide(q), wide(k), mask), mask, logs);
    const Var gw = wide(g);
    c.give(3, sum_to(p * (matmul(gw, turned(wide(v))) - row_sum(gw * wide(y))), mask.shape()));
  }
}

// With the weights P = softmax(scale * q k^T + mask), dP = g v^T and dS = P (dP - sum(P dP)), the
// backward gives dq = scale dS k, dk = scale dS^T q, dv = P^T g. This function computes the whole
// matrix of weights.
void attention_backward_vjp(VjpContext& c) {
  const DType dtype = c.operand(1).dtype();
  const Var g = wide(c.operand(0)), q = wide(c.operand(1)), k = wide(c.operand(2)),
            v = wide(c.operand(3)), mask = c.operand(6);
  const Var scale(c.attributes().real(1));
  const Var p = weights_of(scores_of(c, 1, q, k, mask), mask, c.operand(5));
  const Var dp = matmul(g, turned(v));
  const Var centred = dp - row_sum(p * dp);
  const Var ds = p * centred;
  const Var a = wide(c.gradient(0)), b = wide(c.gradient(1)), e = wide(c.gradient(2));
  const Var x = (matmul(a, turned(k)) + matmul(q, turned(b))) * scale;  // cotangent of dS
  const Var px = row_sum(p * x);
  const Var y = p * (x - px);  // cotangent of dP
  const Var of_p = x * centred - px * dp + matmul(g, turned(e));
  const Var of_mask = p * (of_p - row_sum(p * of_p));
  const Var of_scores = of_mask * scale;
  if (c.needs(0)) c.give(0, as(matmul(p, e) + matmul(y, v), dtype));
  if (c.needs(1)) c.give(1, as(matmul(ds * scale, b) + matmul(of_scores, k), dtype));
  if (c.needs(2)) {
    c.give(2, as(matmul(turned(ds * scale), a) + matmul(turned(of_scores), q), dtype));
  }
  if (c.needs(3)) c.give(3, as(matmul(turned(y), g), dtype));
  if (c.needs(6)) c.give(6, sum_to(of_mask, mask.shape()));
}

}  // namespace

std::vector<OpDef> attention_ops() {
  return {
      {.signature = "attention(Tensor query, Tensor key, Tensor value, Tensor? mask, bool "
                    "is_causal, float scale) -> (Tensor y, Tensor logsumexp)",
       .doc = "softmax(query @ key.T * scale + mask) @ value of each head, and the logarithms of "
              "the softmax's denominators. With is_causal row i sees the columns up to i. Rows "
              "that see nothing are 0. Heads of 16 bits have scores, mask and logarithms of "
              "float32.",
       .infer = infer_attention,
       .vjp = attention_vjp,
       .saves = {{.slot = 0},
                 {.slot = 1},
                 {.slot = 2},
                 {.slot = 3},
                 {.slot = kResult},
                 {.slot = kResult + 1}},
       .internal = true,
       .revision = 2},
      {.signature = "attention_backward(Tensor gradient, Tensor query, Tensor key, Tensor value, "
                    "Tensor y, Tensor logsumexp, Tensor? mask, bool is_causal, float scale) -> "
                    "(Tensor dquery, Tensor dkey, Tensor dvalue)",
       .doc = "The derivatives of attention by query, key and value.",
       .infer = infer_attention_backward,
       .vjp = attention_backward_vjp,
       .saves = {{.slot = 0}, {.slot = 1}, {.slot = 2}, {.slot = 3}, {.slot = 5}, {.slot = 6}},
       .internal = true,
       .revision = 2},
  };
}

}  // namespace teletensor::ops
