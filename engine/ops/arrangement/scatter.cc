// scatter_reduce: several sources may go to one position, and a reduction combines them into one
// element.

#include <algorithm>

#include "engine/ops/families.h"
#include "engine/ops/functions.h"

namespace teletensor::ops {
namespace {

using core::Attribute;
using core::Dims;
using core::DType;
using core::Status;

constexpr std::string_view kModes[] = {"sum", "prod", "mean", "amax", "amin"};

Status infer_scatter_reduce(InferContext& c) {
  const std::string_view mode = c.attributes.text(1);
  if (std::find(std::begin(kModes), std::end(kModes), mode) == std::end(kModes)) {
    return c.fail("reduce must be one of sum, prod, mean, amax, amin, it is \"" +
                  std::string(mode.substr(0, 40)) + "\"");
  }
  if (c.dtype(1) != DType::kI32 && c.dtype(1) != DType::kI64) {
    return c.fail("indices must be int64 or int32, they are " +
                  std::string(core::name_of(c.dtype(1))));
  }
  if (c.dtype(0) != c.dtype(2)) {
    return c.fail("dtypes differ: " + std::string(core::name_of(c.dtype(0))) + " and " +
                  std::string(core::name_of(c.dtype(2))));
  }
  if (core::is_complex(c.dtype(0)) && (mode == "amax" || mode == "amin")) {
    return c.fail("complex numbers have no " + std::string(mode));
  }
  const Dims x = at_least_1d(c.shape(0)), at = at_least_1d(c.shape(1)),
             source = at_least_1d(c.shape(2));
  const auto dim = core::normalize_dim(c.attributes.integer(0), x.size(), c.op);
  if (!dim.ok()) return dim.status();
  bool fits = x.size() == at.size() && source.size() == at.size();
  if (core::numel(c.shape(1)) > 0) {
    for (int d = 0; fits && d < x.size(); ++d) {
      fits = (d == *dim || at[d] <= x[d]) && at[d] <= source[d];
    }
  }
  if (!fits) {
    return c.fail("index of shape " + core::to_string(c.shape(1)) + " does not fit " +
                  core::to_string(c.shape(0)) + " and source " + core::to_string(c.shape(2)) +
                  " (dim " + std::to_string(*dim) + ")");
  }
  c.add_result(c.dtype(0), c.shape(0));
  return {};
}

Var scatter(const Var& x, const Var& index, const Var& source, const Attribute& dim) {
  static const OpRef op("scatter");
  return apply(op, {x, index, source}, {dim});
}
Var scatter_add(const Var& x, const Var& index, const Var& source, const Attribute& dim) {
  static const OpRef op("scatter_add");
  return apply(op, {x, index, source}, {dim});
}
Var gather(const Var& x, const Var& index, const Attribute& dim) {
  static const OpRef op("gather");
  return apply(op, {x, index}, {dim});
}
Var constant(VjpContext& c, const Dims& shape, int value) {
  return full(c.builder(), shape, core::Number::of_int(value), c.operand_layout(0).dtype,
              c.operand_layout(0).device);
}

// The part of the source that the shape of the index covers.
Var covered(const Var& source, const Dims& shape) {
  static const OpRef slice("slice");
  Var part = source;
  for (int d = 0; d < shape.size() && part.is_tensor() && part.rank() == shape.size(); ++d) {
    if (part.shape()[d] == shape[d]) continue;
    part = apply(slice, {part},
                 {Attribute::of(d), Attribute::of(0), Attribute::of(shape[d]), Attribute::of(1)});
  }
  return part.is_tensor() && part.rank() != shape.size() ? reshape(part, shape) : part;
}

// Gives the gradient of the covered part as the gradient of the source.
void give_source(VjpContext& c, const Var& part) {
  static const OpRef update("update_region");
  const core::Layout& source = c.operand_layout(2);
  const Dims& whole = source.geometry.shape;
  if (part.absent() || part.shape() == whole) return c.give(2, part);
  if (part.rank() != whole.size()) return c.give(2, reshape(part, whole));
  const Dims strides = core::contiguous_strides(whole);
  c.give(2, apply(update, {zeros(c.builder(), source), part},
                  {Attribute::of(whole), Attribute::of(strides), Attribute::of(part.shape()),
                   Attribute::of(strides), Attribute::of(0)}));
}

struct Gradients {
  Var x, source;  // source: the gradient of the part that is covered
};

Gradients of_mean(VjpContext& c, const Var& g, const Var& index, const Attribute& dim,
                  bool include_self) {
  const Dims& shape = c.operand_layout(0).geometry.shape;
  Var count =
      scatter_add(constant(c, shape, include_self), index, constant(c, index.shape(), 1), dim);
  count = where(binary("eq", count, Var(0)), Var(1), count);
  const Var each = g / count;
  return {each, gather(each, index, dim)};
}

// Equal extrema share the gradient.
Gradients of_extreme(VjpContext& c, const Var& g, const Var& index, const Attribute& dim,
                     bool include_self) {
  const DType dtype = c.operand_layout(0).dtype;
  const Var result = c.result(), source = covered(c.operand(2), index.shape());
  Var own = cast(binary("eq", c.operand(0), result), dtype);
  if (!include_self) own = scatter(own, index, Var(0), dim);
  const Var hit = cast(binary("eq", source, gather(result, index, dim)), dtype);
  const Var count = scatter_add(own, index, hit, dim);
  const Var each = where(binary("eq", count, Var(0)), Var(0), g / count);
  return {own * each, hit * gather(each, index, dim)};
}

// Uses the product of the other factors: result / factor, where a single zero among the factors is
// handled separately.
Gradients of_product(VjpContext& c, const Var& g, const Var& index, const Attribute& dim) {
  static const OpRef reduce("scatter_reduce");
  const Var x = c.operand(0), result = c.result(), source = c.operand(2);
  const core::Attributes same{dim, c.attributes().at(1), c.attributes().at(2)};
  const Var filled = where(binary("eq", x, Var(0)), Var(1), x);
  const Var others = apply(reduce, {filled, index, source}, same);
  const Var part = covered(source, index.shape());
  const Var zero = binary("eq", part, Var(0));
  const Var zeros_there = gather(scatter_add(zeros(c.builder(), c.operand_layout(0)), index,
                                             cast(zero, c.operand_layout(0).dtype), dim),
                                 index, dim);
  const Var single = binary("logical_and", zero, binary("eq", zeros_there, Var(1)));
  const Var without = apply(reduce, {x, index, where(single, Var(1), part)}, same);
  const Var usual = gather(g * result, index, dim) / where(zero, Var(1), part);
  return {g * others / filled, where(single, gather(g * without, index, dim), usual)};
}

void scatter_reduce_vjp(VjpContext& c) {
  const std::string_view mode = c.attributes().text(1);
  const bool include_self = c.attributes().boolean(2);
  const Attribute dim = c.attributes().at(0);
  const Var g = c.gradient(), index = c.operand(1);
  Gradients out;
  if (mode == "sum") {
    out = {g, c.needs(2) ? gather(g, index, dim) : Var()};
  } else if (mode == "mean") {
    out = of_mean(c, g, index, dim, include_self);
  } else if (mode == "prod") {
    out = of_product(c, g, index, dim);
  } else {
    out = of_extreme(c, g, index, dim, include_self);
  }
  if (c.needs(0)) c.give(0, include_self ? out.x : scatter(out.x, index, Var(0), dim));
  if (c.needs(2)) give_source(c, out.source);
}

}  // namespace

std::vector<OpDef> scatter_ops() {
  return {
      {.signature = "scatter_reduce(Tensor x, Tensor index, Tensor src, int dim, str reduce, bool "
                    "include_self=True) -> Tensor",
       .doc =
           "x with, for dim 0, all src[i][j] of equal [index[i][j]][j] and x's own element (with "
           "include_self) there made one by sum, prod, mean, amax or amin. Elements that no "
           "index names stay.",
       .infer = infer_scatter_reduce,
       .vjp = scatter_reduce_vjp,
       .saves = {{0}, {1}, {2}, {kResult}},
       .inplace = Inplace::kRegion},
  };
}

}  // namespace teletensor::ops
