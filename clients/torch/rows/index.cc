#include <algorithm>

#include "clients/torch/compose.h"

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
        c.fail(Status(core::Code::kOutOfRange,
                      "The shape of the mask " + core::to_string(all[i].shape()) + " at index " +
                          std::to_string(k) + " does not match the shape of the indexed tensor " +
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

// The mask and the tensor broadcast to one shape.
void masked_scatter(Call& c) {
  const Var x = c.var("self"), mask = c.var("mask");
  if (x.absent() || mask.absent()) return;
  const auto shape = core::broadcast_shapes(x.shape(), mask.shape(), "masked_scatter");
  if (!shape.ok()) return c.fail(shape.status());
  c.give(
      made("masked_scatter", {ops::expand(x, *shape), ops::expand(mask, *shape), c.var("source")}));
}
// The index of each element; the ops have no uint8 for it.
Var places_of(Call& c) {
  const Var index = c.var("index");
  return index.dtype() == DType::kU8 ? ops::cast(index, DType::kI64) : index;
}
bool is_empty(const Var& x) { return x.layout().geometry.numel() == 0; }

// An index without elements may have another rank than the tensor.
void gather_elements(Call& c) {
  const Var x = c.var("self"), index = places_of(c);
  if (x.absent() || index.absent() || !dim_of(c, c.integer("dim"), x.rank())) return;
  if (is_empty(index)) {
    return c.give(filled(c, index.shape(), core::Number::of_int(0), x.dtype()));
  }
  c.give(gather(x, index, c.integer("dim")));
}
void scatter_add(Call& c) {
  const Var x = c.var("self"), index = places_of(c);
  if (x.absent() || index.absent() || !dim_of(c, c.integer("dim"), x.rank())) return;
  if (is_empty(index)) return c.give(made("clone", {x}));
  if (c.var("index").dtype() != DType::kU8) return c.run_row();
  c.give(made("scatter_add", {x, index, c.var("src")}, {Attribute::of(c.integer("dim"))}));
}

// The index of each element of a source whose slices along `dim` go to the places of `index`.
Var spread_index(const Var& index, const Var& source, int dim) {
  Dims column(source.rank(), 1);
  if (source.rank() > 0) column[dim] = index.layout().geometry.numel();
  return ops::expand(ops::reshape(index, column), source.shape());
}
void index_reduce(Call& c) {
  const Var x = c.var("self"), index = c.var("index"), source = c.var("source");
  const auto dim = dim_of(c, c.integer("dim"), x.rank());
  if (!dim || x.absent() || index.absent() || source.absent()) return;
  if (source.rank() != x.rank() ||
      (x.rank() > 0 && size_of(source, *dim) != index.layout().geometry.numel())) {
    return c.fail(core::unimplemented("this source"));
  }
  c.give(made("scatter_reduce",
              {x, spread_index(ops::cast(index, DType::kI64), source, *dim), source},
              {Attribute::of(*dim), Attribute::of(c.text("reduce")),
               Attribute::of(c.integer("include_self", 1) != 0)}));
}
// The older names of reductions.
void scatter_by(Call& c) {
  const Var x = c.var("self"), index = c.var("index");
  if (x.absent() || index.absent()) return;
  Var source = c.absent("src") ? c.var("value") : c.var("src");
  if (source.is_number()) source = filled(c, index.shape(), source.number(), x.dtype());
  const char* const how = c.text("reduce") == "add" ? "sum" : "prod";
  c.give(made("scatter_reduce", {x, index, source},
              {Attribute::of(c.integer("dim")), Attribute::of(how), Attribute::of(true)}));
}
// Writes to places in the row-major order of the elements.
void put(Call& c) {
  static const ops::OpRef index_put("index_put");
  const Var x = c.var("self"), index = c.var("index"), source = c.var("source");
  if (x.absent() || index.absent() || source.absent()) return;
  const Var arguments[] = {flat(x), flat(source), flat(index)};
  const std::uint32_t counts[] = {1};
  const Var changed =
      c.run_all(index_put, arguments, {Attribute::of(Dims{0}), Attribute::of(c.flag("accumulate"))},
                counts)[0];
  c.give(changed.absent() ? changed : ops::reshape(changed, x.shape()));
}

void channel_shuffle(Call& c) {
  const Var x = c.var("self");
  const std::int64_t groups = c.integer("groups");
  if (x.rank() < 3 || groups < 1 || size_of(x, 1) % groups != 0) {
    return c.fail(core::unimplemented("these groups"));
  }
  Dims split = x.shape();
  split[1] = size_of(x, 1) / groups;
  split.insert(1, groups);
  c.give(ops::reshape(ops::transpose(ops::reshape(x, split), 1, 2), x.shape()));
}
// Each element of the input gets the sum of what its windows have for it.
void unfold_backward(Call& c) {
  const Var g = c.var("grad_in");
  const Dims sizes = c.ints("input_sizes");
  const auto dim = dim_of(c, c.integer("dim"), sizes.size());
  if (!dim || g.absent()) return;
  if (sizes.empty()) return c.give(made("sum", {g}));  // a number has one window, or an empty one
  const std::int64_t windows = size_of(g, *dim), size = c.integer("size"), step = c.integer("step");
  Dims order, lines = sizes;
  for (int i = 0; i < g.rank() - 1; ++i) {
    order.push_back(i);
    if (i == *dim) order.push_back(g.rank() - 1);
  }
  lines[*dim] = windows * size;
  const Var starts = ops::unsqueeze(range(c, windows) * core::Number::of_int(step), 1);
  const Var places = flat(starts + range(c, size));
  const Var zeros = filled(c, sizes, core::Number::of_int(0), g.dtype());
  c.give(made("index_add", {zeros, places, ops::reshape(ops::permute(g, order), lines)},
              {Attribute::of(*dim)}));
}

constexpr Row kIndexRows[] = {
    {"nonzero", "(self)", nonzero},
    {"nonzero_static", "(self, size, fill_value)"},
    {"index_reduce", "(self, dim, index, source, reduce, include_self)", index_reduce},
    {"put_", "(self, index, source, accumulate)", put},
    {"channel_shuffle native_channel_shuffle", "(self, groups)", channel_shuffle},
    {"unfold_backward", "(grad_in, input_sizes, dim, size, step)", unfold_backward},
    {"index", "(self, indices)", index},
    {"_index_put_impl", "(self, indices, values, accumulate | unsafe)", index_put},
    {"masked_select", "(self, mask)", masked_select},
    {"masked_scatter", "(self, mask, source)", masked_scatter},
    {"gather", "(self, index, dim | sparse_grad)", gather_elements},
    {"scatter", "scatter(self, index, src, dim)"},
    {"scatter", "scatter(self, index, value, dim)"},
    {"scatter", "(self, dim, index, src, reduce)", scatter_by},
    {"scatter", "(self, dim, index, value, reduce)", scatter_by},
    {"scatter_add", "scatter_add(self, index, src, dim)", scatter_add},
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
