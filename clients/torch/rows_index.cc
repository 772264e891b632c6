#include <algorithm>

#include "clients/torch/call.h"

namespace teletensor::torch {
namespace {

using core::Attribute;
using core::Dims;

// The indices of elements that are not zero, [count, rank]. Waits for the count.
Var nonzero_of(Call& c, const Var& x) {
  static const ops::OpRef count_nonzero("count_nonzero"), nonzero("nonzero");
  const Var number = c.run(count_nonzero, {x}, {Attribute::none()});
  if (number.absent()) return {};
  const auto count = c.integer_of(number);
  if (!count.ok()) return c.fail(count.status()), Var();
  return c.run(nonzero, {x}, {Attribute::of(*count)});
}
void nonzero(Call& c) { c.give(nonzero_of(c, c.var("self"))); }

// The tensors that index, each for the dimension of `dims`; masks become the indices of what is
// set.
struct Indices {
  std::vector<Var> tensors;
  Dims dims;
  bool ok = false;
};
Indices indices_of(Call& c, const Var& x) {
  static const ops::OpRef select("select");
  Indices found;
  std::int64_t dim = 0;
  const tt_value& given = c.value("indices");
  const std::vector<Var> all = c.vars("indices");
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].absent()) {
      if (given.tensors[i].storage != nullptr) return found;
      ++dim;
      continue;
    }
    const DType dtype = all[i].dtype();
    if (dtype != DType::kBool && dtype != DType::kU8) {
      found.tensors.push_back(all[i]);
      found.dims.push_back(dim++);
      continue;
    }
    for (int k = 0; k < all[i].rank(); ++k) {
      const auto at = static_cast<int>(dim) + k;
      if (at >= x.rank() || x.shape()[at] != all[i].shape()[k]) {
        c.fail(core::invalid("The shape of the mask " + core::to_string(all[i].shape()) +
                             " at index " + std::to_string(k) +
                             " does not match the shape of the indexed tensor " +
                             core::to_string(x.shape()) + " at index " + std::to_string(at)));
        return found;
      }
    }
    const Var places = nonzero_of(c, all[i]);
    if (places.absent()) return found;
    for (int k = 0; k < all[i].rank(); ++k) {
      found.tensors.push_back(c.run(select, {places}, {Attribute::of(1), Attribute::of(k)}));
      found.dims.push_back(dim++);
    }
  }
  found.ok = c.session.status().ok();
  return found;
}

void index(Call& c) {
  static const ops::OpRef op("index");
  const Var x = c.var("self");
  if (x.absent()) return;
  const Indices indices = indices_of(c, x);
  if (!indices.ok) return;
  std::vector<Var> arguments{x};
  arguments.insert(arguments.end(), indices.tensors.begin(), indices.tensors.end());
  const std::uint32_t counts[] = {static_cast<std::uint32_t>(indices.tensors.size())};
  c.give(c.run_all(op, arguments, {Attribute::of(indices.dims)}, counts)[0]);
}
void index_put(Call& c) {
  static const ops::OpRef op("index_put");
  const Var x = c.var("self");
  if (x.absent()) return;
  const Indices indices = indices_of(c, x);
  if (!indices.ok) return;
  std::vector<Var> arguments{x, c.var("values")};
  arguments.insert(arguments.end(), indices.tensors.begin(), indices.tensors.end());
  const std::uint32_t counts[] = {static_cast<std::uint32_t>(indices.tensors.size())};
  c.give(c.run_all(op, arguments,
                   {Attribute::of(indices.dims), Attribute::of(c.flag("accumulate"))}, counts)[0]);
}

void masked_select(Call& c) {
  static const ops::OpRef pack("index");
  Var x = c.var("self"), mask = c.var("mask");
  if (x.absent() || mask.absent()) return;
  const auto shape = core::broadcast_shapes(x.shape(), mask.shape(), "masked_select");
  if (!shape.ok()) return c.fail(shape.status());
  x = ops::reshape(ops::expand(x, *shape), Dims{core::numel(*shape)});
  mask = ops::reshape(ops::expand(mask, *shape), Dims{core::numel(*shape)});
  const Var places = nonzero_of(c, mask);
  if (places.absent()) return;
  const Var arguments[] = {x, ops::reshape(places, Dims{places.shape()[0]})};
  const std::uint32_t counts[] = {1};
  c.give(c.run_all(pack, arguments, {Attribute::of(Dims{0})}, counts)[0]);
}

// The elements of dimension `dim` in this order of places.
Var reordered(Call& c, const Var& x, std::int64_t dim, std::int64_t start, std::int64_t end,
              std::int64_t step) {
  static const ops::OpRef arange("arange"), select("index_select");
  const Var places = c.run(
      arange, {core::Number::of_int(start), core::Number::of_int(end), core::Number::of_int(step)},
      {Attribute::of(DType::kI64), Attribute::of(c.device)});
  return c.run(select, {x, places}, {Attribute::of(dim)});
}
void flip(Call& c) {
  static const ops::OpRef clone("clone");
  Var x = c.var("self");
  if (x.absent()) return;
  bool moved = false;
  for (std::int64_t dim : c.ints("dims")) {
    if (x.absent() || x.rank() == 0) break;
    const int at = static_cast<int>(dim < 0 ? dim + x.rank() : dim);
    if (at < 0 || at >= x.rank()) return c.fail(core::invalid("flip: a dimension is out of range"));
    if (x.shape()[at] < 2) continue;
    x = reordered(c, x, dim, x.shape()[at] - 1, -1, -1);
    moved = true;
  }
  c.give(moved || x.absent() ? x : c.run(clone, {x}));
}

// Along each dimension the end comes before the beginning.
void roll(Call& c) {
  static const ops::OpRef slice("slice"), cat("cat"), clone("clone");
  Var x = c.var("self");
  if (x.absent()) return;
  const core::Dims shape = x.shape(), shifts = c.ints("shifts");
  core::Dims dims = c.ints("dims");
  const bool flat = dims.empty();
  if (flat) {
    x = ops::reshape(x, Dims{core::numel(shape)});
    dims = Dims{0};
  }
  if (dims.size() != shifts.size()) {
    return c.fail(
        core::invalid("shifts and dimensions must align. shifts: " + std::to_string(shifts.size()) +
                      ", dims:" + std::to_string(dims.size())));
  }
  bool moved = false;
  for (int i = 0; i < dims.size() && !x.absent() && x.rank() > 0; ++i) {
    const int dim = static_cast<int>(dims[i] < 0 ? dims[i] + x.rank() : dims[i]);
    if (dim < 0 || dim >= x.rank()) return c.fail(core::invalid("roll: no such dimension"));
    const std::int64_t size = x.shape()[dim];
    if (size == 0 || shifts[i] % size == 0) continue;
    const std::int64_t start = ((-shifts[i] % size) + size) % size;
    const auto part = [&](std::int64_t from, std::int64_t length) {
      return c.run(slice, {x},
                   {Attribute::of(dim), Attribute::of(from), Attribute::of(length),
                    Attribute::of(std::int64_t{1})});
    };
    const Var parts[] = {part(start, size - start), part(0, start)};
    const std::uint32_t counts[] = {2};
    x = c.run_all(cat, parts, {Attribute::of(dim)}, counts)[0];
    moved = true;
  }
  if (x.absent()) return;
  if (flat) x = ops::reshape(x, shape);
  c.give(moved ? x : c.run(clone, {x}));
}

constexpr Row kIndexRows[] = {
    {"nonzero", "(self)", nonzero},
    {"index", "(self, indices)", index},
    {"_index_put_impl", "(self, indices, values, accumulate | unsafe)", index_put},
    {"masked_select", "(self, mask)", masked_select},
    {"masked_scatter", "(self, mask, source)"},
    {"gather", "(self, index, dim | sparse_grad)"},
    {"scatter", "scatter(self, index, src, dim)"},
    {"scatter", "scatter(self, index, value, dim)"},
    {"scatter_add", "(self, index, src, dim)"},
    {"scatter_reduce", "(self, index, src, dim, reduce, include_self)"},
    {"index_select", "(self, index, dim)"},
    {"index_add", "(self, index, source, dim, alpha)"},
    {"index_copy", "(self, index, source, dim)"},
    {"index_fill", "(self, index, value, dim)"},
    {"take", "(self, index)"},
    {"cat", "(tensors, dim)"},
    {"stack", "(tensors, dim)"},
    {"flip", "(self, dims)", flip},
    {"roll", "(self, shifts, dims)", roll},
};

}  // namespace

std::span<const Row> index_rows() { return kIndexRows; }

}  // namespace teletensor::torch
