// Rows of operators that depend on the order of elements: searches, sets, the most frequent
// elements, histograms.

#include <algorithm>
#include <cmath>

#include "clients/torch/compose.h"

namespace teletensor::torch {
namespace {

using core::Attribute;
using core::Dims;
using core::Number;

// ---- Searches

void search(Call& c) {
  const bool buckets = c.name() == "bucketize";
  auto [sorted, values] =
      promoted(c, c.var(buckets ? "boundaries" : "sorted_sequence"), c.var("self"));
  if (sorted.absent() || values.absent()) return;
  const std::string_view side = c.text("side");
  if (side == "left" && c.flag("right")) {
    return c.fail(core::invalid(
        "torch.searchsorted(): side and right can't be set to opposites, got side of left while "
        "right was True"));
  }
  if (const Var sorter = c.var("sorter"); !sorter.absent()) {
    sorted = gather(sorted, sorter, sorted.rank() - 1);
  }
  c.give(made(
      "searchsorted", {sorted, values},
      {Attribute::of(c.flag("out_int32")), Attribute::of(c.flag("right") || side == "right")}));
}

void is_in(Call& c) {
  const std::string_view first = c.absent("elements") ? "element" : "elements";
  const std::string_view second = c.absent("test_elements") ? "test_element" : "test_elements";
  auto [x, tests] = promoted(c, c.var(first), c.var(second));
  if (x.absent() || tests.absent()) return;
  const bool inverts = c.flag("invert");
  if (tests.layout().geometry.numel() == 0) {
    return c.give(filled(c, x.shape(), Number::of_bool(inverts), DType::kBool));
  }
  if (tests.dtype() == DType::kBool)
    x = ops::cast(x, DType::kU8), tests = ops::cast(tests, DType::kU8);
  Var ordered = made("sort", {flat(tests)});
  if (core::is_floating(tests.dtype())) {
    // NaN equals no element, so the smallest test element replaces each NaN.
    ordered =
        made("sort", {ops::where(ops::unary("isnan", ordered), select(ordered, 0, 0), ordered)});
  }
  const Var place = clamped(made("searchsorted", {ordered, x}), 0,
                            Number::of_int(tests.layout().geometry.numel() - 1));
  c.give(ops::binary(inverts ? "ne" : "eq", made("take", {ordered, place}), x));
}

void running_extreme(Call& c) {
  const Var x = c.var("self");
  const ops::Vars found = all_made(c.name() == "_cummax_helper" ? "cummax" : "cummin", {x},
                                   {Attribute::of(c.integer("dim"))});
  c.write(c.var("values"), found[0]);
  c.write(c.var("indices"), found[1]);
}

// ---- Sets

struct Distinct {
  Var found, inverse, counts;
};
// With dimension `from` at place `to`; the other dimensions keep their order.
Var moved_dim(const Var& x, int from, int to) {
  if (x.absent()) return x;
  std::vector<std::int64_t> order;
  for (int i = 0; i < x.rank(); ++i) {
    if (i != from) order.push_back(i);
  }
  order.insert(order.begin() + to, from);
  return ops::permute(x, Dims(std::span<const std::int64_t>(order)));
}
// True where a row differs from the preceding row.
Var starts_of(Call& c, const Var& rows) {
  const std::int64_t n = size_of(rows, 0);
  Var differs = ops::binary("ne", slice(rows, 0, 1, n - 1), slice(rows, 0, 0, n - 1));
  if (rows.rank() == 2) differs = made("any", {differs}, {Attribute::of(Dims{1})});
  return cat({filled(c, Dims{1}, Number::of_bool(true), DType::kBool), differs}, 0);
}
// The distinct rows (elements, where `rows` is a vector). Waits for their number.
Distinct distinct(Call& c, const Var& rows, bool in_order) {
  const std::int64_t n = size_of(rows, 0);
  if (rows.absent()) return {};
  if (n == 0) {
    const Var none = filled(c, Dims{0}, Number::of_int(0), DType::kI64);
    return {rows, none, none};
  }
  Var ordered = rows, order;
  if (!in_order && rows.rank() == 1) {
    const ops::Vars sorted =
        all_made("sort", {rows}, {Attribute::of(0), Attribute::of(false), Attribute::of(true)});
    ordered = sorted[0], order = sorted[1];
  } else if (!in_order) {
    order = made("argsort_rows", {rows});
    ordered = rows_at(rows, order);
  }
  const Var first = starts_of(c, ordered);
  const Var group = made("cumsum", {first}, {Attribute::of(0)}) - 1;
  const Var number = made("count_nonzero", {first});
  if (number.absent()) return {};
  const auto count = c.integer_of(number);
  if (!count.ok()) return c.fail(count.status()), Distinct{};
  const Var starts = flat(made("nonzero", {first}, {Attribute::of(*count)}));
  const Var ends =
      cat({slice(starts, 0, 1, *count - 1), filled(c, Dims{1}, Number::of_int(n), DType::kI64)}, 0);
  const Var inverse =
      order.absent() ? group : made("scatter", {group, order, group}, {Attribute::of(0)});
  return {rows_at(ordered, starts), inverse, ends - starts};
}
void give_asked(Call& c, const Distinct& set, bool inverse, bool counts) {
  c.give(set.found);
  inverse ? c.give(set.inverse) : give_empty(c, DType::kI64);
  if (c.name() == "_unique") return;
  counts ? c.give(set.counts) : give_empty(c, DType::kI64);
}

void unique_elements(Call& c) {
  const Var x = c.var("self");
  if (x.absent()) return;
  Distinct set = distinct(c, flat(x), c.name() == "unique_consecutive");
  if (set.found.absent()) return;
  set.inverse = ops::reshape(set.inverse, x.shape());
  give_asked(c, set, c.flag("return_inverse"), c.flag("return_counts"));
}
void unique_slices(Call& c) {
  if (c.absent("dim")) return unique_elements(c);
  const Var x = c.var("self");
  const auto dim = dim_of(c, c.integer("dim"), x.rank());
  if (x.absent() || !dim) return;
  const Var moved = x.rank() == 0 ? flat(x) : moved_dim(x, *dim, 0);
  const std::int64_t n = size_of(moved, 0), all = x.layout().geometry.numel();
  if (n == 0 || all == 0) return c.fail(core::unimplemented("slices without elements"));
  const bool in_order = c.name().ends_with("consecutive");
  Distinct set = distinct(c, ops::reshape(moved, Dims{n, all / n}), in_order);
  if (set.found.absent()) return;
  Dims shape = moved.shape();
  shape[0] = size_of(set.found, 0);
  set.found = ops::reshape(set.found, shape);
  if (x.rank() > 0) set.found = moved_dim(set.found, 0, *dim);
  give_asked(c, set, c.flag("return_inverse"), c.flag("return_counts"));
}

// Each index as often as `repeats` says. Waits for the sum unless `output_size` gives it.
void repeated(Call& c) {
  const Var repeats = c.var("repeats");
  if (repeats.rank() != 1) return c.fail(core::unimplemented("these repeats"));
  const Var ends = made("cumsum", {repeats}, {Attribute::of(0)});
  std::int64_t count = c.integer("output_size", 0);
  if (c.absent("output_size") && size_of(repeats, 0) > 0) {
    const Var low = made("min", {repeats});
    // A negative number among the repeats makes the total negative.
    const Var total = ops::where(ops::binary("lt", low, 0), -1, made("sum", {repeats}));
    if (total.absent()) return;
    const auto found = c.integer_of(ops::cast(total, DType::kI64));
    if (!found.ok()) return c.fail(found.status());
    if (*found < 0) return c.fail(core::invalid("repeats can not be negative"));
    count = *found;
  }
  const Var places =
      made("searchsorted", {ends, range(c, count)}, {Attribute::of(false), Attribute::of(true)});
  c.give(ops::cast(places, repeats.dtype()));
}

// ---- The commonest and the middle element

// The sorted elements and their indices at a place along `dim`. A scalar was sorted as a vector.
void give_at(Call& c, const ops::Vars& sorted, const Var& place, int dim, bool scalar) {
  for (const Var& each : sorted) {
    const Var found = gather(each, place, dim);
    const bool keeps = !scalar && c.flag("keepdim");
    c.give(keeps || found.absent() ? found : ops::squeeze(found, dim));
  }
}
ops::Vars ascending(const Var& x, int dim) {
  return all_made("sort", {x}, {Attribute::of(dim), Attribute::of(false), Attribute::of(true)});
}

void mode(Call& c) {
  const bool scalar = c.var("self").rank() == 0;
  const Var x = scalar ? flat(c.var("self")) : c.var("self");
  const auto dim = dim_of(c, c.integer("dim", -1), x.rank());
  if (!dim || size_of(x, *dim) == 0) return c.fail(core::unimplemented("no elements"));
  const std::int64_t n = size_of(x, *dim);
  const ops::Vars sorted = ascending(x, *dim);
  Dims line(x.rank(), 1), head = x.shape();
  line[*dim] = n, head[*dim] = 1;
  const Var places = ops::reshape(range(c, n), line);
  const Var differs =
      ops::binary("ne", slice(sorted[0], *dim, 1, n - 1), slice(sorted[0], *dim, 0, n - 1));
  const Var first = cat({filled(c, head, Number::of_bool(true), DType::kBool), differs}, *dim);
  // How many elements there are since the run of equal ones began: the longest run ends there.
  const Var since = places - made("cummax", {ops::where(first, places, 0)}, {Attribute::of(*dim)});
  give_at(c, sorted, made("argmax", {since}, {Attribute::of(*dim), Attribute::of(true)}), *dim,
          scalar);
}

Var middle_of(const Var& x, int dim) {
  const Var known = made("sum", {ops::unary("logical_not", ops::unary("isnan", x))},
                         {Attribute::of(Dims{dim}), Attribute::of(true)});
  return clamped(ops::binary("floor_divide", known - 1, 2), 0, {});
}
void nanmedian_of_all(Call& c) {
  const Var x = flat(c.var("self"));
  if (size_of(x, 0) == 0) return c.give(made("median", {x}));
  const Var found = gather(ascending(x, 0)[0], middle_of(x, 0), 0);
  if (!found.absent()) c.give(ops::reshape(found, Dims()));
}
void nanmedian(Call& c) {
  const bool scalar = c.var("self").rank() == 0;
  const Var x = scalar ? flat(c.var("self")) : c.var("self");
  const auto dim = dim_of(c, c.integer("dim"), x.rank());
  if (!dim || size_of(x, *dim) == 0) return c.fail(core::unimplemented("no elements"));
  give_at(c, ascending(x, *dim), middle_of(x, *dim), *dim, scalar);
}

// ---- Histograms

// Waits for the largest element.
void bincount(Call& c) {
  const Var x = c.var("self"), weights = c.var("weights");
  if (x.rank() != 1 || core::is_inexact(x.dtype()) || x.dtype() == DType::kBool) {
    return c.fail(core::unimplemented("these elements"));
  }
  const DType dtype = weights.absent()                 ? DType::kI64
                      : weights.dtype() == DType::kF32 ? DType::kF32
                                                       : DType::kF64;
  std::int64_t size = c.integer("minlength");
  const Var places = ops::cast(x, DType::kI64);
  if (size_of(x, 0) > 0) {
    const Var low = made("min", {places});
    const Var high = ops::where(ops::binary("lt", low, 0), -1, made("max", {places}));
    if (high.absent()) return;
    const auto largest = c.integer_of(high);
    if (!largest.ok()) return c.fail(largest.status());
    if (*largest < 0) {
      return c.fail(core::invalid("bincount only supports 1-d non-negative integral inputs."));
    }
    size = std::max(size, *largest + 1);
  }
  const Var source =
      weights.absent() ? filled(c, x.shape(), Number::of_int(1), dtype) : ops::cast(weights, dtype);
  c.give(made("index_add", {filled(c, Dims{size}, Number::of_int(0), dtype), places, source},
              {Attribute::of(0)}));
}

// The number of occurrences of each index below `size`, counted as integers, because float32
// numbers stop growing at 2^24.
Var occurrences(Call& c, const Var& index, std::int64_t size, DType dtype) {
  const Var zeros = filled(c, Dims{size}, Number::of_int(0), DType::kI64);
  const Var ones = filled(c, index.shape(), Number::of_int(1), DType::kI64);
  return ops::cast(made("index_add", {zeros, index, ones}, {Attribute::of(0)}), dtype);
}

void histc(Call& c) {
  const Var x = flat(c.var("self"));
  if (x.absent()) return;
  const std::int64_t bins = c.integer("bins");
  const double least = c.real("min"), most = c.real("max");
  if (!core::is_floating(x.dtype()) || bins < 1 || !(least <= most)) {
    return c.fail(core::unimplemented("these bins"));
  }
  if (size_of(x, 0) == 0) return c.give(filled(c, Dims{bins}, Number::of_int(0), x.dtype()));
  const bool given = least != most;
  Var low = given ? filled(c, Dims(), Number::of_float(least), x.dtype()) : made("min", {x});
  Var high = given ? filled(c, Dims(), Number::of_float(most), x.dtype()) : made("max", {x});
  const Var same = equal_to(low, high);
  low = ops::where(same, low - 1, low), high = ops::where(same, high + 1, high);
  const Var inside = both(ops::binary("ge", x, low), ops::binary("le", x, high));
  const Number count = Number::of_int(bins);
  const Var place =
      clamped(ops::unary("floor", (x - low) * count / (high - low)), 0, Number::of_int(bins - 1));
  const Var index = ops::cast(ops::where(inside, place, count), DType::kI64);
  if (index.absent()) return;
  c.give(slice(occurrences(c, index, bins + 1, x.dtype()), 0, 0, bins));
}

// The ends of `bins` bins of a column, between the limits that are given or its extremes.
Var edges_of(Call& c, const Var& column, std::int64_t bins, const double* limits) {
  const DType dtype = column.dtype();
  Var low, high;
  if (limits != nullptr) {
    const double half = limits[0] == limits[1] ? 0.5 : 0;
    low = filled(c, Dims(), Number::of_float(limits[0] - half), dtype);
    high = filled(c, Dims(), Number::of_float(limits[1] + half), dtype);
  } else if (size_of(column, 0) == 0) {
    low = filled(c, Dims(), Number::of_float(0), dtype);
    high = filled(c, Dims(), Number::of_float(1), dtype);
  } else {
    low = made("min", {column}), high = made("max", {column});
    const Var same = equal_to(low, high);
    low = ops::where(same, low - 0.5, low), high = ops::where(same, high + 0.5, high);
  }
  // Each end is counted from the nearer limit, as in linspace.
  const Var at = range(c, bins + 1, dtype);
  const Var step = (high - low) * (1 / static_cast<double>(bins));
  return ops::where(ops::binary("lt", at, Number::of_int((bins + 1) / 2)), low + at * step,
                    high - (at * -1.0 + static_cast<double>(bins)) * step);
}
// The bin of each element; the number of bins for an element outside of all.
Var bin_of(const Var& column, const Var& edges) {
  const std::int64_t bins = size_of(edges, 0) - 1;
  const Var found = made("searchsorted", {edges, made("contiguous", {column})},
                         {Attribute::of(false), Attribute::of(true)}) -
                    1;
  const Var last = slice(edges, 0, bins, 1);
  const Var place = ops::where(equal_to(column, last), Number::of_int(bins - 1), found);
  const Var inside = both(ops::binary("ge", place, 0), ops::binary("le", column, last));
  return ops::where(inside, place, Number::of_int(bins));
}

// Points as rows, and the ends of the bins of each of their columns.
struct Grid {
  Var points;
  std::vector<Var> columns, edges;
};
Grid grid_of(Call& c, const Var& x, int width) {
  Grid grid;
  if (width < 1 || !core::is_floating(x.dtype()))
    return c.fail(core::unimplemented("these points")), grid;
  grid.points = ops::reshape(x, Dims{x.layout().geometry.numel() / width, width});
  const tt_value& given = c.value("range");
  const std::vector<Var> edges =
      c.value("bins").kind == TT_TENSOR ? std::vector<Var>{c.var("bins")} : c.vars("bins");
  const Dims bins = c.ints("bins");
  if (bins.size() != width && static_cast<int>(edges.size()) != width) {
    return c.fail(core::unimplemented("another number of bins than of columns")), Grid{};
  }
  for (int d = 0; d < width; ++d) {
    const auto at = static_cast<std::size_t>(d);
    const double* const limits =
        given.kind == TT_REALS && given.count >= 2 * at + 2 ? given.reals + 2 * at : nullptr;
    grid.columns.push_back(select(grid.points, 1, d));
    grid.edges.push_back(at < edges.size() ? edges[at]
                                           : edges_of(c, grid.columns[at], bins[d], limits));
  }
  return grid;
}
Var counts_of(Call& c, const Grid& grid) {
  Dims shape;
  Var place, outside;
  for (std::size_t d = 0; d < grid.columns.size(); ++d) {
    const Var at = bin_of(grid.columns[d], grid.edges[d]);
    shape.push_back(size_of(grid.edges[d], 0) - 1);
    const Var beyond = equal_to(at, Number::of_int(shape.back()));
    place = d == 0 ? at : place * Number::of_int(shape.back()) + at;
    outside = d == 0 ? beyond : ops::binary("logical_or", outside, beyond);
  }
  const std::int64_t total = core::numel(shape);
  const Var index = ops::where(outside, Number::of_int(total), place);
  if (index.absent()) return {};
  const DType dtype = grid.points.dtype();
  const Var weight = c.var("weight");
  Var counts;
  if (weight.absent()) {
    counts = occurrences(c, index, total + 1, dtype);
  } else {
    const Var zeros = filled(c, Dims{total + 1}, Number::of_int(0), dtype);
    const Var source = ops::cast(flat(weight), dtype);
    counts = made("index_add", {zeros, index, source}, {Attribute::of(0)});
  }
  Var histogram = ops::reshape(slice(counts, 0, 0, total), shape);
  if (!c.flag("density")) return histogram;
  histogram = histogram / made("sum", {histogram});
  for (int d = 0; d < shape.size(); ++d) {
    Dims line(shape.size(), 1);
    line[d] = shape[d];
    const Var& edges = grid.edges[static_cast<std::size_t>(d)];
    const Var widths = slice(edges, 0, 1, shape[d]) - slice(edges, 0, 0, shape[d]);
    histogram = histogram / ops::reshape(widths, line);
  }
  return histogram;
}
void histogram(Call& c) {
  const Var x = c.var("self");
  const Grid grid = grid_of(c, x, 1);
  if (!c.session.status().ok()) return;
  c.give(counts_of(c, grid));
  c.give(grid.edges[0]);
}
void histogram_of_points(Call& c) {
  const Var x = c.var("self");
  const Grid grid = grid_of(c, x, static_cast<int>(size_of(x, -1)));
  if (c.session.status().ok()) c.give(counts_of(c, grid));
}
void edges_of_points(Call& c) {
  const Var x = c.var("self");
  const Grid grid = grid_of(c, x, static_cast<int>(size_of(x, -1)));
  if (!c.session.status().ok()) return;
  for (const Var& each : grid.edges) c.give(each);
}

constexpr Row kOrderRows[] = {
    {"searchsorted", "(sorted_sequence, self, out_int32, right, side, sorter)", search},
    {"bucketize", "(self, boundaries, out_int32, right)", search},
    {"isin", "(elements, test_elements, invert | assume_unique)", is_in},
    {"isin", "(elements, test_element, invert | assume_unique)", is_in},
    {"isin", "(element, test_elements, invert | assume_unique)", is_in},
    {"_cummax_helper _cummin_helper", "(self, values, indices, dim)", running_extreme},
    {"_unique2 _unique", "(self, return_inverse, return_counts? | sorted)", unique_elements},
    {"unique_dim", "(self, dim, return_inverse, return_counts | sorted)", unique_slices},
    {"unique_consecutive unique_dim_consecutive", "(self, return_inverse, return_counts, dim)",
     unique_slices},
    {"repeat_interleave", "(repeats, output_size)", repeated},
    {"mode", "(self, dim, keepdim)", mode},
    {"nanmedian", "(self)", nanmedian_of_all},
    {"nanmedian", "(self, dim, keepdim)", nanmedian},
    {"bincount", "(self, weights, minlength)", bincount},
    {"histc", "(self, bins, min, max)", histc},
    {"histogram", "(self, bins, range?, weight, density)", histogram},
    {"_histogramdd_from_bin_cts _histogramdd_from_bin_tensors",
     "(self, bins, range?, weight, density)", histogram_of_points},
    {"_histogramdd_bin_edges", "(self, bins, range | weight, density)", edges_of_points},
};

}  // namespace

std::span<const Row> order_rows() { return kOrderRows; }

}  // namespace teletensor::torch
