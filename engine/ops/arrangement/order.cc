// Ops that sort or scan along a dimension: sort, argsort, topk, kthvalue, median, cumsum, cumprod.
// Kernels: backends/cpu/order.cc and reductions_scan.cc.
#include "engine/ops/families.h"
#include "engine/ops/functions.h"
#include "engine/ops/reduction/recurrences.h"
#include "engine/ops/reduction/reduce_dims.h"

namespace teletensor::ops {
namespace {

using core::Attribute;
using core::Dims;
using core::DType;
using core::Status;

// ---------------------------------------------------------------- inference

Status scan_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(core::normalize_dim(c.attributes.integer(0), c.rank(0), c.op).status());
  const DType own = core::is_inexact(c.dtype(0)) ? c.dtype(0) : DType::kI64;
  const DType dtype = c.attributes.size() > 1 && c.attributes.has(1) ? c.attributes.dtype(1) : own;
  if (dtype == DType::kBool && c.dtype(0) != DType::kBool) {
    return c.unimplemented("dtype bool for a tensor of " + std::string(core::name_of(c.dtype(0))) +
                           "; cast the tensor to bool");
  }
  c.add_result(dtype, c.shape(0));
  return {};
}

Status cumprod_backward_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(core::normalize_dim(c.attributes.integer(0), c.rank(0), c.op).status());
  if (c.shape(0) != c.shape(1)) {
    return c.fail("shapes differ: " + core::to_string(c.shape(0)) + " and " +
                  core::to_string(c.shape(1)));
  }
  if (!core::is_inexact(c.dtype(0)) || !core::is_inexact(c.dtype(1))) {
    return c.fail("expected floating point tensors");
  }
  c.add_result(c.dtype(1), c.shape(1));
  return {};
}

Status sort_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(c.not_complex());
  TT_RETURN_IF_ERROR(core::normalize_dim(c.attributes.integer(0), c.rank(0), c.op).status());
  c.add_result(c.dtype(0), c.shape(0));
  c.add_result(DType::kI64, c.shape(0));
  return {};
}

Status argsort_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(c.not_complex());
  TT_RETURN_IF_ERROR(core::normalize_dim(c.attributes.integer(0), c.rank(0), c.op).status());
  c.add_result(DType::kI64, c.shape(0));
  return {};
}

Status topk_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(c.not_complex());
  const auto dim = core::normalize_dim(c.attributes.integer(1), c.rank(0), c.op);
  if (!dim.ok()) return dim.status();
  const std::int64_t k = c.attributes.integer(0), size = c.rank(0) ? c.shape(0)[*dim] : 1;
  if (k < 0 || k > size) {
    return c.fail("k is " + std::to_string(k) + ", the dimension has " + std::to_string(size) +
                  " elements, shape " + core::to_string(c.shape(0)));
  }
  Dims shape = c.shape(0);
  if (!shape.empty()) shape[*dim] = k;
  if (shape.empty() && k == 0) return c.fail("k is 0 for a 0-d tensor");
  c.add_result(c.dtype(0), shape);
  c.add_result(DType::kI64, shape);
  return {};
}

// For ops that pick one element of each line (kthvalue, median).
Status pick_infer(InferContext& c, std::int64_t dim, std::size_t keepdim) {
  TT_RETURN_IF_ERROR(c.not_complex());
  const auto at = core::normalize_dim(dim, c.rank(0), c.op);
  if (!at.ok()) return at.status();
  if (c.rank(0) && c.shape(0)[*at] == 0) {
    return Status(core::Code::kOutOfRange,
                  std::string(c.op) + ": expected dim " + std::to_string(*at) +
                      " to have non-zero size, shape " + core::to_string(c.shape(0)));
  }
  if (c.dtype(0) == DType::kBool) return c.fail("not implemented for bool");
  const std::uint32_t mask = c.rank(0) ? 1u << *at : 0;
  const Dims shape = reduced_shape(c.shape(0), mask, c.attributes.boolean(keepdim));
  c.add_result(c.dtype(0), shape);
  c.add_result(DType::kI64, shape);
  return {};
}

Status kthvalue_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(pick_infer(c, c.attributes.integer(1), 2));
  const int dim = *core::normalize_dim(c.attributes.integer(1), c.rank(0), c.op);
  const std::int64_t k = c.attributes.integer(0), size = c.rank(0) ? c.shape(0)[dim] : 1;
  if (k < 1 || k > size) {
    return c.fail("k is " + std::to_string(k) + ", the dimension has " + std::to_string(size) +
                  " elements, shape " + core::to_string(c.shape(0)));
  }
  return {};
}

Status median_dim_infer(InferContext& c) { return pick_infer(c, c.attributes.integer(0), 1); }

Status median_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(c.not_complex());
  if (c.dtype(0) == DType::kBool) return c.fail("not implemented for bool");
  c.add_result(c.dtype(0), Dims());
  return {};
}

// There is one sorted vector for all values, or one for each vector along the last dimension.
Status searchsorted_infer(InferContext& c) {
  const Dims &sorted = c.shape(0), &values = c.shape(1);
  if (c.dtype(0) != c.dtype(1)) {
    return c.fail("boundaries and values must have one dtype, they have " +
                  std::string(core::name_of(c.dtype(0))) + " and " +
                  std::string(core::name_of(c.dtype(1))));
  }
  if (core::is_complex(c.dtype(0))) return c.fail("complex numbers have no order");
  if (sorted.empty()) return c.fail("the sorted sequence must have at least one dimension");
  bool fits = sorted.size() == 1 || sorted.size() == values.size();
  for (int d = 0; fits && d + 1 < sorted.size(); ++d) fits = sorted[d] == values[d];
  if (!fits) {
    return c.fail(
        "boundaries must be a vector, or agree with the values but in the last "
        "dimension; their shapes are " +
        core::to_string(sorted) + " and " + core::to_string(values));
  }
  c.add_result(c.attributes.boolean(0) ? DType::kI32 : DType::kI64, values);
  return {};
}

Status argsort_rows_infer(InferContext& c) {
  if (c.rank(0) != 2) return c.fail("takes a matrix, got shape " + core::to_string(c.shape(0)));
  if (core::is_complex(c.dtype(0))) return c.fail("complex numbers have no order");
  c.add_result(DType::kI64, Dims{c.shape(0)[0]});
  return {};
}

// ---------------------------------------------------------------- derivatives

// Scatters the gradient to the positions that the indices (saved result 1) give.
void give_scattered(VjpContext& c, std::int64_t dim, bool squeezed) {
  static const OpRef scatter("scatter_add");
  Var g = c.gradient(), index = c.result(1);
  const core::Layout& x = c.operand_layout(0);
  if (squeezed && g.rank() < x.geometry.rank()) {
    const int at = static_cast<int>(dim < 0 ? dim + x.geometry.rank() : dim);
    g = unsqueeze(g, at);
    index = unsqueeze(index, at);
  }
  c.give(0, apply(scatter, {zeros(c.builder(), x), index, g}, {Attribute::of(dim)}));
}

void cumsum_vjp(VjpContext& c) {
  static const OpRef reverse("reverse_cumsum");
  c.give(0, apply(reverse, {c.gradient()}, {c.attributes().at(0)}));
}

void reverse_cumsum_vjp(VjpContext& c) {
  static const OpRef cumsum("cumsum");
  c.give(0, apply(cumsum, {c.gradient()}, {c.attributes().at(0)}));
}

void cumprod_vjp(VjpContext& c) {
  static const OpRef backward("cumprod_backward");
  c.give(0, apply(backward, {c.gradient(), conj(c.operand(0))}, {c.attributes().at(0)}));
}

// dx = before * rest: the exclusive running product, and the sum over i >= j of g_i times the x
// between j and i. Both are recurrences.
void cumprod_backward_vjp(VjpContext& c) {
  const Var x = conj(c.operand(1)), h = c.gradient();
  const Var g = cast(conj(c.operand(0)), x.dtype());
  const int rank = x.rank();
  if (rank == 0) {
    if (c.needs(0)) c.give(0, h);
    if (c.needs(1)) c.give(1, zeros(c.builder(), c.operand_layout(1)));
    return;
  }
  if (core::numel(x.shape()) == 0) {
    for (std::size_t i : {0u, 1u}) c.give(i, zeros(c.builder(), c.operand_layout(i)));
    return;
  }
  const int dim = *core::normalize_dim(c.attributes().integer(0), rank, "");
  const Var before = recurrence(x, one_at_end(x, dim, false), dim, Direction::kForward, false);
  const Var of_rest = recurrence(x, h * before, dim, Direction::kForward, true);
  if (c.needs(0)) c.give(0, of_rest);
  if (!c.needs(1)) return;
  const Var rest = recurrence(x, g, dim, Direction::kBackward, false);
  const Var of_before = recurrence(x, h * rest, dim, Direction::kBackward, true);
  c.give(1, shifted(of_rest, dim, Direction::kForward) * rest +
                shifted(of_before, dim, Direction::kBackward) * before);
}

void median_vjp(VjpContext& c) {
  const Var equal = binary("eq", c.operand(0), c.result());
  const Var count = sum(equal, Dims(), false);
  c.give(0, where(equal, c.gradient() / count, Var(0)));
}

constexpr std::string_view kIndices = "the result holds indices";

}  // namespace

std::vector<OpDef> scan_ops();  // scans.cc

std::vector<OpDef> order_ops() {
  const std::vector<Save> indices = {{.slot = kResult + 1}};
  std::vector<OpDef> all = {
      {.signature = "sort(Tensor x, int dim=-1, bool descending=False, bool stable=False) -> "
                    "(Tensor values, Tensor indices)",
       .doc =
           "Sorted along dim, with the indices (int64) of the sorted elements. NaN counts as the "
           "largest. Equal elements keep their order, also without stable.",
       .infer = sort_infer,
       .vjp = [](VjpContext& c) { give_scattered(c, c.attributes().integer(0), false); },
       .saves = indices},
      {.signature =
           "argsort(Tensor x, int dim=-1, bool descending=False, bool stable=False) -> Tensor",
       .doc = "The indices (int64) that sort along dim. Equal elements keep their order.",
       .infer = argsort_infer,
       .not_differentiable = kIndices},
      {.signature =
           "searchsorted(Tensor sorted_sequence, Tensor values, bool out_int32=False, bool "
           "right=False) -> Tensor",
       .doc = "Where each value would go in its ascending row, before equal elements (after them "
              "with right), as int64 or int32. NaN goes to the end.",
       .infer = searchsorted_infer,
       .not_differentiable = kIndices},
      {.signature = "argsort_rows(Tensor x) -> Tensor",
       .doc = "The indices (int64) that sort the rows of a matrix lexicographically, NaN last. "
              "Equal rows keep their order.",
       .infer = argsort_rows_infer,
       .not_differentiable = kIndices},
      {.signature = "topk(Tensor x, int k, int dim=-1, bool largest=True, bool sorted=True) -> "
                    "(Tensor values, Tensor indices)",
       .doc =
           "The k largest (or smallest) elements along dim in order, with their indices (int64). "
           "NaN counts as the largest; of equal elements the first are taken.",
       .infer = topk_infer,
       .vjp = [](VjpContext& c) { give_scattered(c, c.attributes().integer(1), false); },
       .saves = indices},
      {.signature = "kthvalue(Tensor x, int k, int dim=-1, bool keepdim=False) -> "
                    "(Tensor values, Tensor indices)",
       .doc = "The k-th smallest element along dim (k counts from 1) and its index (int64).",
       .infer = kthvalue_infer,
       .vjp = [](VjpContext& c) { give_scattered(c, c.attributes().integer(1), true); },
       .saves = indices},
      {.signature = "median(Tensor x) -> Tensor",
       .doc =
           "The median of all elements, the lower one of two; NaN if there is a NaN or no element.",
       .infer = median_infer,
       .vjp = median_vjp,
       .saves = {{.slot = 0}, {.slot = kResult}}},
      {.signature = "median_dim(Tensor x, int dim=-1, bool keepdim=False) -> "
                    "(Tensor values, Tensor indices)",
       .doc = "The median along dim, the lower one of two, and its index (int64); NaN if there is "
              "one.",
       .infer = median_dim_infer,
       .vjp = [](VjpContext& c) { give_scattered(c, c.attributes().integer(0), true); },
       .saves = indices},
      {.signature = "cumsum(Tensor x, int dim, dtype? dtype=None) -> Tensor",
       .doc = "Running sum along dim. Integers and bools are summed as int64.",
       .infer = scan_infer,
       .vjp = cumsum_vjp},
      {.signature = "reverse_cumsum(Tensor x, int dim) -> Tensor",
       .doc = "Running sum from the end of dim: the derivative of cumsum.",
       .infer = scan_infer,
       .vjp = reverse_cumsum_vjp,
       .internal = true},
      {.signature = "cumprod(Tensor x, int dim, dtype? dtype=None) -> Tensor",
       .doc = "Running product along dim. Integers and bools are multiplied as int64.",
       .infer = scan_infer,
       .vjp = cumprod_vjp,
       .saves = {{.slot = 0}}},
      {.signature = "cumprod_backward(Tensor gradient, Tensor x, int dim) -> Tensor",
       .doc = "The derivative of cumprod, right where x has zeros too.",
       .infer = cumprod_backward_infer,
       .vjp = cumprod_backward_vjp,
       .saves = {{.slot = 0, .when = bit(1)}, {.slot = 1}},
       .internal = true},
  };
  for (OpDef& op : scan_ops()) all.push_back(std::move(op));
  return all;
}

}  // namespace teletensor::ops
