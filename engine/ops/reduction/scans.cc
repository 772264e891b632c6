// Scans along one dimension: cummax, cummin, logcumsumexp, and linear recurrences. Kernels:
// backends/cpu/recurrences.cc.
#include "engine/ops/families.h"
#include "engine/ops/functions.h"
#include "engine/ops/reduction/recurrences.h"

namespace teletensor::ops {
namespace {

using core::Attribute;
using core::Dims;
using core::DType;
using core::Status;

// ---------------------------------------------------------------- inference

Status running_extremum_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(c.not_complex());
  TT_RETURN_IF_ERROR(core::normalize_dim(c.attributes.integer(0), c.rank(0), c.op).status());
  c.add_result(c.dtype(0), c.shape(0));
  c.add_result(DType::kI64, c.shape(0));
  return {};
}

// Checks floating (or complex) operands of one shape and dtype; the result is like the first.
Status alike(InferContext& c, bool complex) {
  TT_RETURN_IF_ERROR(core::normalize_dim(c.attributes.integer(0), c.rank(0), c.op).status());
  for (std::size_t i = 0; i < c.operands.size(); ++i) {
    if (!(core::is_floating(c.dtype(i)) || (complex && core::is_complex(c.dtype(i))))) {
      return c.not_defined_for(c.dtype(i));
    }
    if (c.shape(i) != c.shape(0) || c.dtype(i) != c.dtype(0)) {
      return c.fail("operands differ: " + core::to_string(c.shape(0)) + " and " +
                    core::to_string(c.shape(i)));
    }
  }
  c.add_result(c.dtype(0), c.shape(0));
  return {};
}

Status floating_infer(InferContext& c) { return alike(c, false); }
Status inexact_infer(InferContext& c) { return alike(c, true); }

// ---------------------------------------------------------------- derivatives

void running_extremum_vjp(VjpContext& c) {
  static const OpRef scatter("scatter_add");
  c.give(0, apply(scatter, {zeros(c.builder(), c.operand_layout(0)), c.result(1), c.gradient()},
                  {c.attributes().at(0)}));
}

// The sum over i >= j of g_i exp(x_j - y_i); without `reverse`, the sum over i <= j of g_i exp(x_i
// - y_j). It is a step of the derivative of y = logcumsumexp(x), and never exceeds the sum of the
// |g|.
Var weighted(const Var& g, const Var& x, const Var& y, const Attribute& dim, bool reverse) {
  static const OpRef op("logcumsumexp_weighted");
  return apply(op, {g, x, y}, {dim, Attribute::of(reverse)});
}

void logcumsumexp_vjp(VjpContext& c) {
  c.give(0, weighted(c.gradient(), c.operand(0), c.result(), c.attributes().at(0), true));
}

void weighted_vjp(VjpContext& c) {
  const Attribute& dim = c.attributes().at(0);
  const bool reverse = c.attributes().boolean(1);
  const Var g = c.operand(0), x = c.operand(1), y = c.operand(2), h = c.gradient();
  const Var other = weighted(h, x, y, dim, !reverse);
  if (c.needs(0)) c.give(0, other);
  if (c.needs(1)) c.give(1, reverse ? h * c.result() : g * other);
  if (c.needs(2)) c.give(2, -(reverse ? g * other : h * c.result()));
}

void recurrence_vjp(VjpContext& c) {
  const int dim = static_cast<int>(c.attributes().integer(0)),
            rank = c.operand_layout(0).geometry.rank();
  const bool backward = c.attributes().boolean(1), own = c.attributes().boolean(2);
  const Direction way = backward ? Direction::kBackward : Direction::kForward;
  const Direction back = backward ? Direction::kForward : Direction::kBackward;
  const Var a = conj(c.operand(0));
  if (rank == 0) {
    if (c.needs(0)) c.give(0, zeros(c.builder(), c.operand_layout(0)));
    if (c.needs(1)) c.give(1, c.gradient());
    return;
  }
  const Var r = recurrence(a, c.gradient(), dim, back, !own);
  if (c.needs(1)) c.give(1, r);
  if (!c.needs(0)) return;
  const Var s = conj(c.result());
  c.give(0, own ? r * shifted(s, dim, way) : shifted(r, dim, back) * s);
}

}  // namespace

Var recurrence(const Var& a, const Var& b, int dim, Direction direction, bool own) {
  static const OpRef op("linear_recurrence");
  return apply(
      op, {a, b},
      {Attribute::of(dim), Attribute::of(direction == Direction::kBackward), Attribute::of(own)});
}

namespace {

Var slice(const Var& x, int dim, std::int64_t start, std::int64_t length) {
  static const OpRef op("slice");
  return apply(op, {x}, {Attribute::of(dim), Attribute::of(start), Attribute::of(length)});
}

Var joined(const Var& first, const Var& second, int dim) {
  static const OpRef op("cat");
  const Var both[] = {first, second};
  const std::uint32_t count = 2;
  return apply_all(op, both, {Attribute::of(dim)}, std::span(&count, 1))[0];
}

Var filled(const Var& like, Dims shape, int dim, std::int64_t length, int value) {
  shape[dim] = length;
  return full(*like.builder(), shape, core::Number::of_int(value), like.dtype(),
              like.layout().device);
}

int from_front(int dim, int rank) { return dim < 0 ? dim + rank : dim; }

}  // namespace

Var shifted(const Var& x, int dim, Direction direction) {
  if (!x.is_tensor()) return x;
  dim = from_front(dim, x.rank());
  const std::int64_t n = x.shape()[dim];
  if (n == 0) return x;
  const Var zero = filled(x, x.shape(), dim, 1, 0);
  return direction == Direction::kForward ? joined(zero, slice(x, dim, 0, n - 1), dim)
                                          : joined(slice(x, dim, 1, n - 1), zero, dim);
}

Var one_at_end(const Var& x, int dim, bool last) {
  if (!x.is_tensor()) return x;
  dim = from_front(dim, x.rank());
  const Var one = filled(x, x.shape(), dim, 1, 1);
  const Var rest = filled(x, x.shape(), dim, x.shape()[dim] - 1, 0);
  return last ? joined(rest, one, dim) : joined(one, rest, dim);
}

std::vector<OpDef> scan_ops() {
  return {
      {.signature = "cummax(Tensor x, int dim) -> (Tensor values, Tensor indices)",
       .doc = "The largest element so far along dim and the index (int64) of its last occurrence, "
              "which gets the gradient; NaN from the first NaN on.",
       .infer = running_extremum_infer,
       .vjp = running_extremum_vjp,
       .saves = {{.slot = kResult + 1}},
       .batching = Batching::kFront},
      {.signature = "cummin(Tensor x, int dim) -> (Tensor values, Tensor indices)",
       .doc = "The smallest element so far along dim and the index (int64) of its last "
              "occurrence, which gets the gradient; NaN from the first NaN on.",
       .infer = running_extremum_infer,
       .vjp = running_extremum_vjp,
       .saves = {{.slot = kResult + 1}},
       .batching = Batching::kFront},
      {.signature = "logcumsumexp(Tensor x, int dim) -> Tensor",
       .doc = "log(cumsum(exp(x))) along dim, computed without overflow.",
       .infer = floating_infer,
       .vjp = logcumsumexp_vjp,
       .saves = {{.slot = 0}, {.slot = kResult}},
       .batching = Batching::kFront},
      {.signature =
           "logcumsumexp_weighted(Tensor g, Tensor x, Tensor y, int dim, bool reverse) -> Tensor",
       .doc = "The derivative of y = logcumsumexp(x): the running sum along dim of g, weighted by "
              "exp(x - y); from the end if reverse.",
       .infer = floating_infer,
       .vjp = weighted_vjp,
       .saves = {{.slot = 0}, {.slot = 1}, {.slot = 2}, {.slot = kResult}},
       .internal = true,
       .batching = Batching::kFront},
      {.signature =
           "linear_recurrence(Tensor a, Tensor b, int dim, bool reverse, bool own) -> Tensor",
       .doc = "s_i = f * s_p + b_i along dim, p the place before i (after it if reverse); f is a_i "
              "if own, else a_p.",
       .infer = inexact_infer,
       .vjp = recurrence_vjp,
       .saves = {{.slot = 0}, {.slot = kResult, .when = bit(0)}},
       .internal = true,
       .batching = Batching::kFront},
  };
}

}  // namespace teletensor::ops
