// Views: another geometry on the same storage. No instruction runs; the front end only makes a
// handle.
//
// A view without a vjp is recorded as a region (regions.cc), which is correct for every view. Views
// with a vjp avoid the zero-filled base that the gradient of a region needs.

#include <algorithm>

#include "engine/ops/families.h"
#include "engine/ops/functions.h"

namespace teletensor::ops {
namespace {

using core::Attribute;
using core::Dims;
using core::Geometry;
using core::Status;
using Views = std::vector<Geometry>;

// The error for a 0-d operand, which PyTorch refuses by an IndexError.
Status no_dimension(const char* text) { return Status(core::Code::kOutOfRange, text); }

Status select(InferContext& c, Views& views) {
  const Geometry& g = c.geometry(0);
  if (g.rank() == 0) return no_dimension("select: a 0-d tensor has no dimension to select from");
  const auto dim = core::normalize_dim(c.attributes.integer(0), g.rank(), c.op);
  if (!dim.ok()) return dim.status();
  const std::int64_t index = c.attributes.integer(1), size = g.shape[*dim];
  if (index < -size || index >= size) {
    return Status(core::Code::kOutOfRange, "select: index " + std::to_string(index) +
                                               " is out of range for size " + std::to_string(size) +
                                               " (dim " + std::to_string(*dim) + ")");
  }
  views.push_back(g.select(*dim, index < 0 ? index + size : index));
  return {};
}

Status slice(InferContext& c, Views& views) {
  const Geometry& g = c.geometry(0);
  if (g.rank() == 0) return c.fail("a 0-d tensor has no dimension to slice");
  const auto dim = core::normalize_dim(c.attributes.integer(0), g.rank(), c.op);
  if (!dim.ok()) return dim.status();
  const std::int64_t start = c.attributes.integer(1), length = c.attributes.integer(2),
                     step = c.attributes.integer(3), size = g.shape[*dim];
  if (step < 1) return c.fail("step must be at least 1, it is " + std::to_string(step));
  std::int64_t last = 0;
  const bool fits =
      start >= 0 && start <= size && length >= 0 &&
      (length == 0 || (!__builtin_mul_overflow(length - 1, step, &last) && last < size - start));
  if (!fits) {
    return c.fail("start " + std::to_string(start) + ", length " + std::to_string(length) +
                  ", step " + std::to_string(step) + " leave dim " + std::to_string(*dim) +
                  " of size " + std::to_string(size));
  }
  std::int64_t stride;
  if (__builtin_mul_overflow(g.strides[*dim], step, &stride)) return c.fail("step is too large");
  views.push_back(g.slice(*dim, start, length, step));
  return {};
}

Status transpose(InferContext& c, Views& views) {
  const Geometry& g = c.geometry(0);
  const auto a = core::normalize_dim(c.attributes.integer(0), g.rank(), c.op);
  if (!a.ok()) return a.status();
  const auto b = core::normalize_dim(c.attributes.integer(1), g.rank(), c.op);
  if (!b.ok()) return b.status();
  views.push_back(g.transpose(*a, *b));
  return {};
}

// The order of dimensions, with negative ones normalised; refuses lists that are no permutation.
core::Result<Dims> permutation(InferContext& c) {
  const auto given = c.attributes.ints(0);
  const int rank = c.rank(0);
  if (given.size() != static_cast<std::size_t>(rank)) {
    return c.fail(std::to_string(given.size()) + " dims given for rank " + std::to_string(rank));
  }
  Dims order;
  for (std::int64_t d : given) {
    const auto dim = core::normalize_dim(d, rank, c.op);
    if (!dim.ok()) return dim.status();
    if (std::find(order.begin(), order.end(), *dim) != order.end()) {
      return c.fail("dim " + std::to_string(*dim) + " is given twice");
    }
    order.push_back(*dim);
  }
  return order;
}

Status permute(InferContext& c, Views& views) {
  const auto order = permutation(c);
  if (!order.ok()) return order.status();
  views.push_back(c.geometry(0).permute(*order));
  return {};
}

void permute_vjp(VjpContext& c) {
  const auto given = c.attributes().ints(0);
  const auto rank = static_cast<std::int64_t>(given.size());
  Dims inverse(static_cast<int>(rank), 0);
  for (int i = 0; i < rank; ++i) {
    const std::int64_t d = given[static_cast<std::size_t>(i)];
    inverse[static_cast<int>(d < 0 ? d + rank : d)] = i;
  }
  c.give(0, permute(c.gradient(), inverse));
}

Status expand(InferContext& c, Views& views) {
  const auto given = c.attributes.ints(0);
  const Geometry& g = c.geometry(0);
  if (given.size() > core::kMaxRank) return c.fail("rank above the limit of 12");
  Dims target(given);
  const int lead = target.size() - g.rank();
  if (lead < 0) {
    return c.fail("the number of sizes (" + std::to_string(target.size()) +
                  ") must be at least the rank of " + core::to_string(g.shape));
  }
  for (int d = 0; d < target.size(); ++d) {
    if (target[d] != -1) continue;
    if (d < lead) return c.fail("-1 is not allowed in a leading, new dimension");
    target[d] = g.shape[d - lead];
  }
  const auto count = core::checked_numel(target.span());
  if (!count.ok()) return c.fail(count.status().message());
  auto view = g.expand(target);
  if (!view.ok()) return view.status();
  views.push_back(*view);
  return {};
}

// A target shape, in which at most one -1 is replaced by the size that fits.
core::Result<Dims> resolve_sizes(InferContext& c) {
  const auto given = c.attributes.ints(0);
  if (given.size() > core::kMaxRank) return c.fail("rank above the limit of 12");
  Dims target(given);
  const std::int64_t count = c.geometry(0).numel();
  const auto refuse = [&] {
    return c.fail("shape " + core::to_string(Dims(given)) + " is invalid for input of shape " +
                  core::to_string(c.shape(0)));
  };
  int unknown = -1;
  Dims known;
  for (int d = 0; d < target.size(); ++d) {
    if (target[d] == -1) {
      if (unknown >= 0) return c.fail("only one dimension can be inferred");
      unknown = d;
    } else {
      known.push_back(target[d]);
    }
  }
  const auto product = core::checked_numel(known.span());
  if (!product.ok()) return refuse();
  if (unknown >= 0) {
    if (*product == 0) {
      if (count != 0) return refuse();
      return c.fail("cannot reshape a tensor of 0 elements into shape " +
                    core::to_string(Dims(given)) + " because the size -1 could be anything");
    }
    if (count % *product != 0) return refuse();
    target[unknown] = count / *product;
  } else if (*product != count) {
    return refuse();
  }
  return target;
}

Status view(InferContext& c, Views& views) {
  const auto target = resolve_sizes(c);
  if (!target.ok()) return target.status();
  const auto geometry = c.geometry(0).view(*target);
  if (!geometry) {
    return c.fail("view size is not compatible with the tensor's size and stride: " +
                  core::to_string(c.shape(0)) + " with strides " +
                  core::to_string(c.geometry(0).strides) + " as " + core::to_string(*target) +
                  " needs a copy; use reshape");
  }
  views.push_back(*geometry);
  return {};
}

// Like view; but if a copy is needed, the graph continues with infer and a kernel.
Status reshape_view(InferContext& c, Views& views) {
  const auto target = resolve_sizes(c);
  if (!target.ok()) return target.status();
  const auto geometry = c.geometry(0).view(*target);
  if (!geometry) return Status(core::Code::kFailedPrecondition, "reshape: needs a copy");
  views.push_back(*geometry);
  return {};
}

Status reshape_infer(InferContext& c) {
  const auto target = resolve_sizes(c);
  if (!target.ok()) return target.status();
  c.add_result(c.dtype(0), *target);
  return {};
}

void view_vjp(VjpContext& c) {
  c.give(0, reshape(c.gradient(), c.operand_layout(0).geometry.shape));
}

Status squeeze(InferContext& c, Views& views) {
  const Geometry& g = c.geometry(0);
  Dims drop(std::max(g.rank(), 1), c.attributes.has(0) ? 0 : 1);
  if (c.attributes.has(0)) {
    for (std::int64_t d : c.attributes.ints(0)) {
      const auto dim = core::normalize_dim(d, g.rank(), c.op);
      if (!dim.ok()) return dim.status();
      drop[*dim] = 1;
    }
  }
  Geometry out = g;
  for (int d = g.rank() - 1; d >= 0; --d) {
    if (drop[d] && g.shape[d] == 1) {
      out.shape.erase(d);
      out.strides.erase(d);
    }
  }
  views.push_back(out);
  return {};
}

Status unsqueeze(InferContext& c, Views& views) {
  const Geometry& g = c.geometry(0);
  if (g.rank() == core::kMaxRank) return c.fail("rank above the limit of 12");
  const auto dim = core::normalize_dim(c.attributes.integer(0), g.rank() + 1, c.op);
  if (!dim.ok()) return dim.status();
  Geometry out = g;
  const std::int64_t stride = *dim < g.rank() ? g.shape[*dim] * g.strides[*dim] : 1;
  out.shape.insert(*dim, 1);
  out.strides.insert(*dim, stride);
  views.push_back(out);
  return {};
}

Status diagonal(InferContext& c, Views& views) {
  const Geometry& g = c.geometry(0);
  if (g.rank() < 2) return c.fail("needs at least 2 dimensions, got " + core::to_string(g.shape));
  const std::int64_t offset = c.attributes.integer(0);
  const auto a = core::normalize_dim(c.attributes.integer(1), g.rank(), c.op);
  if (!a.ok()) return a.status();
  const auto b = core::normalize_dim(c.attributes.integer(2), g.rank(), c.op);
  if (!b.ok()) return b.status();
  if (*a == *b) return c.fail("the two dimensions must differ");
  // Compared before any subtraction, because `offset` may be any number.
  const std::int64_t rows = g.shape[*a], columns = g.shape[*b];
  std::int64_t length = 0, start = 0;
  if (offset >= 0 && offset < columns) {
    length = std::min(rows, columns - offset);
    start = offset * g.strides[*b];
  } else if (offset < 0 && offset > -rows) {
    length = std::min(rows + offset, columns);
    start = -offset * g.strides[*a];
  }
  Geometry out = g;
  const std::int64_t stride = g.strides[*a] + g.strides[*b];
  out.shape.erase(std::max(*a, *b));
  out.strides.erase(std::max(*a, *b));
  out.shape.erase(std::min(*a, *b));
  out.strides.erase(std::min(*a, *b));
  out.shape.push_back(length);
  out.strides.push_back(stride);
  if (length > 0) out.offset += start;
  views.push_back(out);
  return {};
}

Status same(InferContext& c, Views& views) {
  views.push_back(c.geometry(0));
  return {};
}

Status unbind(InferContext& c, Views& views) {
  const Geometry& g = c.geometry(0);
  if (g.rank() == 0) return no_dimension("unbind: a 0-d tensor has no dimension to unbind");
  const auto dim = core::normalize_dim(c.attributes.integer(0), g.rank(), c.op);
  if (!dim.ok()) return dim.status();
  if (g.shape[*dim] > 65536) return c.fail("more than 65536 results");
  for (std::int64_t i = 0; i < g.shape[*dim]; ++i) views.push_back(g.select(*dim, i));
  return {};
}

Status split(InferContext& c, Views& views) {
  const Geometry& g = c.geometry(0);
  if (g.rank() == 0) return c.fail("a 0-d tensor has no dimension to split");
  const auto dim = core::normalize_dim(c.attributes.integer(1), g.rank(), c.op);
  if (!dim.ok()) return dim.status();
  const auto sizes = c.attributes.ints(0);
  if (sizes.size() > 65536) return c.fail("more than 65536 results");
  std::int64_t start = 0;
  for (std::int64_t size : sizes) {
    if (size < 0 || size > g.shape[*dim] - start) {
      return c.fail(
          "sizes " +
          core::to_string(Dims(sizes.first(std::min<std::size_t>(sizes.size(), core::kMaxRank)))) +
          " do not add up to size " + std::to_string(g.shape[*dim]) + " of dim " +
          std::to_string(*dim));
    }
    views.push_back(g.slice(*dim, start, size, 1));
    start += size;
  }
  if (start != g.shape[*dim]) {
    return c.fail("sizes add up to " + std::to_string(start) + ", dim " + std::to_string(*dim) +
                  " has size " + std::to_string(g.shape[*dim]));
  }
  return {};
}

// Any geometry that stays between the first and the last element of x.
Status as_strided(InferContext& c, Views& views) {
  const Geometry& g = c.geometry(0);
  const auto sizes = c.attributes.ints(0), strides = c.attributes.ints(1);
  if (sizes.size() > core::kMaxRank) return c.fail("rank above the limit of 12");
  if (sizes.size() != strides.size()) {
    return c.fail("mismatch in length of size (" + std::to_string(sizes.size()) +
                  ") and strides (" + std::to_string(strides.size()) + ")");
  }
  const auto count = core::checked_numel(sizes);
  if (!count.ok()) return c.fail(count.status().message());
  const std::int64_t offset = c.attributes.has(2) ? c.attributes.integer(2) : g.offset;
  if (offset < 0) return c.fail("negative storage offset " + std::to_string(offset));
  std::int64_t last = offset;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (strides[d] < 0) return c.fail("negative strides are not supported");
    std::int64_t reach;
    if (*count > 0 && (__builtin_mul_overflow(sizes[d] - 1, strides[d], &reach) ||
                       __builtin_add_overflow(last, reach, &last))) {
      return c.fail("strides are too large");
    }
  }
  if (*count > 0 && (offset < g.offset || last >= g.storage_end())) {
    return c.fail("sizes " + core::to_string(Dims(sizes)) + ", strides " +
                  core::to_string(Dims(strides)) + " and offset " + std::to_string(offset) +
                  " are out of bounds for a tensor that shows elements " +
                  std::to_string(g.offset) + " to " + std::to_string(g.storage_end() - 1));
  }
  views.emplace_back(Dims(sizes), Dims(strides), *count > 0 ? offset : g.offset);
  return {};
}

// If several elements of x are at one position, they share the gradient of that position.
void as_strided_vjp(VjpContext& c) {
  static const OpRef scatter("scatter_region");
  const core::Layout& x = c.operand_layout(0);
  const Geometry& g = x.geometry;
  const Var gradient = c.gradient();
  const std::int64_t offset = c.attributes().has(2) ? c.attributes().integer(2) : g.offset;
  const Attribute shape = Attribute::of(g.shape), strides = Attribute::of(g.strides);
  Var out = apply(scatter, {gradient},
                  {shape, strides, c.attributes().at(0), c.attributes().at(1),
                   Attribute::of(gradient.layout().geometry.numel() > 0 ? offset - g.offset : 0)});
  if (g.overlaps_itself()) {
    const Var one = full(c.builder(), g.shape, core::Number::of_int(1), x.dtype, x.device);
    out = out / apply(scatter, {one}, {shape, strides, shape, strides, Attribute::of(0)});
  }
  c.give(0, out);
}

Status unfold(InferContext& c, Views& views) {
  const Geometry& g = c.geometry(0);
  const auto dim = core::normalize_dim(c.attributes.integer(0), g.rank(), c.op);
  if (!dim.ok()) return dim.status();
  const std::int64_t size = c.attributes.integer(1), step = c.attributes.integer(2),
                     whole = g.rank() == 0 ? 1 : g.shape[*dim];
  if (g.rank() == core::kMaxRank) return c.fail("rank above the limit of 12");
  if (size < 0) return c.fail("size is " + std::to_string(size) + " but must be >= 0");
  if (size > whole) {
    return c.fail("maximum size for tensor at dimension " + std::to_string(*dim) + " is " +
                  std::to_string(whole) + " but size is " + std::to_string(size));
  }
  if (step < 1) return c.fail("step is " + std::to_string(step) + " but must be > 0");
  Geometry out = g;
  if (g.rank() > 0) {
    const std::int64_t stride = g.strides[*dim];
    out.shape[*dim] = (whole - size) / step + 1;
    // If there is only one window, the step does not affect the stride.
    out.strides[*dim] = out.shape[*dim] > 1 ? stride * step : stride;
    out.strides.push_back(stride);
  } else {
    out.strides.push_back(1);
  }
  out.shape.push_back(size);
  const auto elements = core::checked_numel(out.shape.span());
  if (!elements.ok()) return c.fail(elements.status().message());
  views.push_back(out);
  return {};
}

}  // namespace

std::vector<OpDef> view_ops() {
  return {
      {.signature = "detach(Tensor x) -> Tensor",
       .doc = "The same memory without history: writes are seen by both, gradients do not flow.",
       .view = same,
       .not_differentiable = "it exists to cut the history"},
      {.signature = "data(Tensor x) -> Tensor",
       .doc = "As detach, and writes to it are not seen by checks of saved tensors.",
       .view = same,
       .not_differentiable = "it exists to cut the history"},
      refusing({.signature = "refuse_gradient(Tensor x, str name) -> Tensor",
                .doc = "A view of all of x for the function `name`, which is not differentiable.",
                .view = same,
                .internal = true,
                .batching = Batching::kFront}),
      {.signature = "alias(Tensor x) -> Tensor",
       .doc = "A view of all of x.",
       .view = same,
       .vjp = [](VjpContext& c) { c.give(0, c.gradient()); }},
      {.signature = "select(Tensor x, int dim, int index) -> Tensor",
       .doc = "The view of x at one index of dim, without that dimension.",
       .view = select},
      {.signature = "slice(Tensor x, int dim, int start, int length, int step=1) -> Tensor",
       .doc = "The view of `length` elements of dim from start on, every step-th.",
       .view = slice},
      {.signature = "transpose(Tensor x, int dim0, int dim1) -> Tensor",
       .doc = "The view of x with two dimensions swapped.",
       .view = transpose,
       .vjp =
           [](VjpContext& c) {
             c.give(0, transpose(c.gradient(), static_cast<int>(c.attributes().integer(0)),
                                 static_cast<int>(c.attributes().integer(1))));
           }},
      {.signature = "permute(Tensor x, int[] dims) -> Tensor",
       .doc = "The view of x with its dimensions in the order dims.",
       .view = permute,
       .vjp = permute_vjp},
      {.signature = "expand(Tensor x, int[] size) -> Tensor",
       .doc = "The view of x with dimensions of size 1 (and new leading ones) repeated; -1 keeps a "
              "size.",
       .view = expand,
       .vjp = [](VjpContext& c) { c.give(0, c.gradient()); }},
      {.signature = "view(Tensor x, int[] size) -> Tensor",
       .doc = "The same elements in row-major order under another shape, without a copy; one size "
              "may be -1.",
       .view = view,
       .vjp = view_vjp},
      {.signature = "reshape(Tensor x, int[] size) -> Tensor",
       .doc = "As view where that is possible, else a row-major copy.",
       .infer = reshape_infer,
       .view = reshape_view,
       .vjp = view_vjp},
      {.signature = "squeeze(Tensor x, int[]? dim=None) -> Tensor",
       .doc = "The view of x without its dimensions of size 1 (those in dim, or all).",
       .view = squeeze,
       .vjp = view_vjp},
      {.signature = "unsqueeze(Tensor x, int dim) -> Tensor",
       .doc = "The view of x with a dimension of size 1 inserted at dim.",
       .view = unsqueeze,
       .vjp = view_vjp},
      {.signature = "diagonal(Tensor x, int offset=0, int dim1=0, int dim2=1) -> Tensor",
       .doc = "The view of the diagonal elements of dims dim1 and dim2, as a new last dimension.",
       .view = diagonal},
      {.signature = "unbind(Tensor x, int dim=0) -> Tensor[]",
       .doc = "One view for each index of dim.",
       .view = unbind},
      {.signature = "split_with_sizes(Tensor x, int[] split_sizes, int dim=0) -> Tensor[]",
       .doc = "Consecutive views of the given sizes along dim.",
       .view = split},
      {.signature = "as_strided(Tensor x, int[] size, int[] stride, int? storage_offset=None) -> "
                    "Tensor",
       .doc = "The view with the given sizes, strides and offset (in elements of the storage), "
              "which must lie between the first and the last element of x.",
       .view = as_strided,
       .vjp = as_strided_vjp},
      {.signature = "unfold(Tensor x, int dimension, int size, int step) -> Tensor",
       .doc = "The view of all windows of `size` elements of a dimension, `step` apart; the "
              "elements of a window are the new last dimension.",
       .view = unfold},
  };
}

}  // namespace teletensor::ops
