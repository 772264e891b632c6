// The ops that the tape records for views and for writes through views. A region is a strided view
// on the memory of a base. All of these ops have the attributes base shape, base strides, view
// shape, view strides, and view offset relative to the base's offset. The elements of the base are
// numbered in its own row-major order; the strides only tell which base element a view element is.
// Users never call these ops.

#include "engine/ops/families.h"
#include "engine/ops/functions.h"

namespace teletensor::ops {
namespace {

using core::Attribute;
using core::Dims;
using core::Geometry;
using core::Status;

struct Region {
  Geometry base, view;
};

// Refuses ranks and sizes that our clients never send, and checks that the view is inside the base.
Status read_region(InferContext& c, Region& region) {
  const auto& a = c.attributes;
  for (std::size_t i = 0; i < 4; ++i) {
    if (a.ints(i).size() > core::kMaxRank) return c.fail("rank above the limit");
  }
  if (a.ints(0).size() != a.ints(1).size() || a.ints(2).size() != a.ints(3).size()) {
    return c.fail("shape and strides have different lengths");
  }
  for (std::size_t i = 0; i < 4; ++i) {
    for (std::int64_t n : a.ints(i)) {
      if (n < 0) return c.fail("a size or a stride is negative");
    }
  }
  if (a.integer(4) < 0) return c.fail("negative offset");
  region.base = Geometry(Dims(a.ints(0)), Dims(a.ints(1)));
  region.view = Geometry(Dims(a.ints(2)), Dims(a.ints(3)), a.integer(4));
  for (std::size_t i = 0; i < 4; i += 2) {
    const auto count = core::checked_numel(a.ints(i));
    if (!count.ok()) return c.fail("shape is too large");
    std::int64_t end = i == 0 ? 0 : a.integer(4);
    for (std::size_t d = 0; d < a.ints(i).size(); ++d) {
      std::int64_t reach;
      if (*count > 0 && (__builtin_mul_overflow(a.ints(i)[d] - 1, a.ints(i + 1)[d], &reach) ||
                         __builtin_add_overflow(end, reach, &end))) {
        return c.fail("region is too large");
      }
    }
    if (end == INT64_MAX) return c.fail("region is too large");
  }
  if (region.view.numel() > 0 && region.view.storage_end() > region.base.storage_end()) {
    return c.fail("region lies outside its base");
  }
  return {};
}

Status infer_region_index(InferContext& c) {
  Region region;
  TT_RETURN_IF_ERROR(read_region(c, region));
  if (!(c.shape(0) == region.base.shape)) {
    return c.fail("the operand has another shape than the base");
  }
  c.add_result(c.dtype(0), region.view.shape);
  return {};
}

Status infer_region_scatter(InferContext& c) {
  Region region;
  TT_RETURN_IF_ERROR(read_region(c, region));
  if (!(c.shape(0) == region.view.shape)) {
    return c.fail("the operand has another shape than the view");
  }
  c.add_result(c.dtype(0), region.base.shape);
  return {};
}

Status infer_update(InferContext& c) {
  Region region;
  TT_RETURN_IF_ERROR(read_region(c, region));
  if (!(c.shape(0) == region.base.shape)) {
    return c.fail("operand 0 has another shape than the base");
  }
  if (c.operands[1].tensor() && !(c.shape(1) == region.view.shape)) {
    return c.fail("operand 1 has another shape than the view");
  }
  c.add_result(c.dtype(0), region.base.shape);
  return {};
}

Status infer_relayout(InferContext& c) {
  if (c.attributes.ints(0).size() != static_cast<std::size_t>(c.rank(0))) {
    return c.fail("the number of strides differs from the number of dimensions");
  }
  const Geometry geometry(c.shape(0), Dims(c.attributes.ints(0)));
  for (std::int64_t stride : geometry.strides) {
    if (stride < 0) return c.fail("negative stride");
  }
  if (!geometry.dense()) return c.fail("the strides are not those of a dense tensor");
  c.add_result(c.dtype(0), geometry);
  return {};
}

}  // namespace

std::vector<OpDef> region_ops() {
  constexpr std::string_view kRegion =
      "(Tensor x, int[] base, int[] base_strides, int[] view, int[] view_strides, int offset) -> "
      "Tensor";
  static const std::string index = "index_region" + std::string(kRegion);
  static const std::string scatter = "scatter_region" + std::string(kRegion);
  static const std::string add =
      "add_region(Tensor x, Tensor y, int[] base, int[] base_strides, int[] view, "
      "int[] view_strides, int offset) -> Tensor";
  return {
      {.signature = index,
       .doc = "The elements of x, seen as the base, that the view shows.",
       .infer = infer_region_index,
       .vjp =
           [](VjpContext& c) {
             static const OpRef op("scatter_region");
             c.give(0, apply(op, {c.gradient()}, c.attributes()));
           },
       .internal = true},
      {.signature = scatter,
       .doc = "A base of zeros to which the elements of x, seen as the view, are added.",
       .infer = infer_region_scatter,
       .vjp =
           [](VjpContext& c) {
             static const OpRef op("index_region");
             c.give(0, apply(op, {c.gradient()}, c.attributes()));
           },
       .internal = true},
      {.signature = add,
       .doc = "x, seen as the base, with the elements of y, seen as the view, added.",
       .infer = infer_update,
       .vjp =
           [](VjpContext& c) {
             static const OpRef op("index_region");
             c.give(0, c.gradient());
             if (c.needs(1)) c.give(1, apply(op, {c.gradient()}, c.attributes()));
           },
       .inplace = Inplace::kRegion,
       .internal = true},
      {.signature =
           "update_region(Tensor x, Operand y, int[] base, int[] base_strides, int[] view, "
           "int[] view_strides, int offset) -> Tensor",
       .doc = "x, seen as the base, with the view's elements replaced by y.",
       .infer = infer_update,
       .vjp =
           [](VjpContext& c) {
             static const OpRef update("update_region");
             static const OpRef index("index_region");
             const Var g = c.gradient();
             if (c.needs(1)) c.give(1, apply(index, {g}, c.attributes()));
             if (c.needs(0)) c.give(0, apply(update, {g, Var(0.0)}, c.attributes()));
           },
       .inplace = Inplace::kRegion,
       .internal = true},
      {.signature = "relayout(Tensor x, int[] strides) -> Tensor",
       .doc = "A copy of x with the given dense strides.",
       .infer = infer_relayout,
       .vjp = [](VjpContext& c) { c.give(0, c.gradient()); },
       .internal = true},
  };
}

}  // namespace teletensor::ops
