// Ops that join tensors: cat and stack.

#include "engine/ops/families.h"
#include "engine/ops/functions.h"

namespace teletensor::ops {
namespace {

using core::Attribute;
using core::Dims;
using core::Status;

// RULE (as in PyTorch): tensors of shape [0] can be joined with any tensors along any dimension and
// add nothing.
bool ignored(const Dims& shape) { return shape == Dims{0}; }

Status infer_cat(InferContext& c) {
  if (c.operands.empty()) return c.fail("needs at least one tensor");
  const Dims* first = nullptr;
  for (std::size_t i = 0; i < c.operands.size(); ++i) {
    if (c.rank(i) == 0) return c.fail("0-d tensor (number " + std::to_string(i) + ") cannot join");
    if (first == nullptr && !ignored(c.shape(i))) first = &c.shape(i);
  }
  const core::DType dtype = result_type(c.operands, c.default_dtype);
  const int rank = first ? first->size() : 1;
  const auto dim = core::normalize_dim(c.attributes.integer(0), rank, c.op);
  if (!dim.ok()) return dim.status();
  if (first == nullptr) {
    c.add_result(dtype, Dims{0});
    return {};
  }
  Dims out = *first;
  out[*dim] = 0;
  for (std::size_t i = 0; i < c.operands.size(); ++i) {
    const Dims& shape = c.shape(i);
    if (ignored(shape)) continue;
    bool fits = shape.size() == rank;
    for (int d = 0; fits && d < rank; ++d) fits = d == *dim || shape[d] == out[d];
    if (!fits || __builtin_add_overflow(out[*dim], shape[*dim], &out[*dim])) {
      return c.fail("sizes must match except in dim " + std::to_string(*dim) + ": " +
                    core::to_string(*first) + " and " + core::to_string(shape));
    }
  }
  c.add_result(dtype, out);
  return {};
}

Status infer_stack(InferContext& c) {
  if (c.operands.empty()) return c.fail("needs at least one tensor");
  for (std::size_t i = 1; i < c.operands.size(); ++i) {
    if (!(c.shape(i) == c.shape(0))) {
      return c.fail("shapes must be equal: " + core::to_string(c.shape(0)) + " and " +
                    core::to_string(c.shape(i)));
    }
  }
  if (c.rank(0) == core::kMaxRank) return c.fail("rank above the limit of 12");
  const auto dim = core::normalize_dim(c.attributes.integer(0), c.rank(0) + 1, c.op);
  if (!dim.ok()) return dim.status();
  Dims out = c.shape(0);
  out.insert(*dim, static_cast<std::int64_t>(c.operands.size()));
  c.add_result(result_type(c.operands, c.default_dtype), out);
  return {};
}

void cat_vjp(VjpContext& c) {
  static const OpRef slice("slice");
  const Var g = c.gradient();
  const std::int64_t given = c.attributes().integer(0);
  const std::int64_t dim = given < 0 ? given + g.rank() : given;
  std::int64_t start = 0;
  for (std::size_t i = 0; i < c.operands(); ++i) {
    const Dims& shape = c.operand_layout(i).geometry.shape;
    if (ignored(shape)) continue;
    const std::int64_t length = shape[static_cast<int>(dim)];
    if (c.needs(i)) {
      c.give(i,
             apply(slice, {g}, {Attribute::of(dim), Attribute::of(start), Attribute::of(length)}));
    }
    start += length;
  }
}

void stack_vjp(VjpContext& c) {
  static const OpRef select("select");
  const Var g = c.gradient();
  for (std::size_t i = 0; i < c.operands(); ++i) {
    if (!c.needs(i)) continue;
    c.give(i, apply(select, {g},
                    {Attribute::of(c.attributes().integer(0)),
                     Attribute::of(static_cast<std::int64_t>(i))}));
  }
}

}  // namespace

std::vector<OpDef> join_ops() {
  return {
      {.signature = "cat(Tensor[] tensors, int dim=0) -> Tensor",
       .doc = "The tensors one after another along dim; dtypes promote.",
       .infer = infer_cat,
       .vjp = cat_vjp},
      {.signature = "stack(Tensor[] tensors, int dim=0) -> Tensor",
       .doc = "Tensors of one shape along a new dimension; dtypes promote.",
       .infer = infer_stack,
       .vjp = stack_vjp},
  };
}

}  // namespace teletensor::ops
