// Distances, losses that compare many elements, and reductions of bags and segments.

#include <algorithm>
#include <cmath>
#include <limits>

#include "clients/torch/compose.h"

namespace teletensor::torch {
namespace {

using core::Attribute;
using core::Dims;
using core::Number;

// ---- Distances

core::Attributes norm_attributes(double p) {
  return {Attribute::of(p), Attribute::of(Dims{-1}), Attribute::of(false), Attribute::none()};
}
Var norm_of(const Var& differences, double p) {
  return made("norm", {differences}, norm_attributes(p));
}
Var norm_gradient(Call& c, const Var& differences, double p, const Var& g) {
  if (differences.absent() || g.absent()) return {};
  const Var operands[] = {differences}, gradients[] = {g};
  return c.gradients("norm", operands, norm_attributes(p), gradients, 1)[0];
}
Var all_differences(const Var& x, const Var& y) {
  return x.absent() || y.absent()
             ? Var()
             : ops::unsqueeze(x, x.rank() - 1) - ops::unsqueeze(y, y.rank() - 2);
}

// sqrt(|a|^2 + |b|^2 - 2 a b)
Var by_products(const Var& x, const Var& y) {
  const auto squares = [](const Var& each) {
    return made("sum", {each * each}, {Attribute::of(Dims{-1}), Attribute::of(true)});
  };
  const Var sums = squares(x) + transposed(squares(y));
  return ops::unary("sqrt", clamped(sums - ops::matmul(x, transposed(y)) * 2.0, 0, {}));
}
void cdist(Call& c) {
  const Var x = c.var("x1"), y = c.var("x2");
  if (x.rank() < 2 || y.rank() < 2) return c.fail(core::unimplemented("these rows"));
  const double p = c.real("p");
  const std::int64_t mode = c.integer("compute_mode", 0);
  const bool many = size_of(x, -2) > 25 || size_of(y, -2) > 25;
  const bool multiplies = p == 2 && (mode == 1 || (mode == 0 && many));
  c.give(multiplies ? by_products(x, y) : norm_of(all_differences(x, y), p));
}
void cdist_backward(Call& c) {
  const Var x = c.var("x1");
  const Var d =
      norm_gradient(c, all_differences(x, c.var("x2")), c.real("p"), c.var("grad_output"));
  if (!d.absent()) c.give(ops::sum_to(ops::sum(d, Dims{d.rank() - 2}, false), x.shape()));
}

// The rows i < j of each pair of n rows.
std::pair<Var, Var> pairs_of(Call& c, std::int64_t n) {
  const Var above =
      made("triu", {filled(c, Dims{n, n}, Number::of_int(1), DType::kI64)}, {Attribute::of(1)});
  const Var places = made("nonzero", {above}, {Attribute::of(n * (n - 1) / 2)});
  return {select(places, 1, 0), select(places, 1, 1)};
}
void pdist(Call& c) {
  const Var x = c.var("self");
  if (x.rank() != 2) return c.fail(core::unimplemented("not a matrix"));
  const auto [first, second] = pairs_of(c, size_of(x, 0));
  c.give(norm_of(rows_at(x, first) - rows_at(x, second), c.real("p")));
}
void pdist_backward(Call& c) {
  const Var x = c.var("self"), g = c.var("grad_output");
  if (x.rank() != 2) return c.fail(core::unimplemented("not a matrix"));
  const auto [first, second] = pairs_of(c, size_of(x, 0));
  const Var d = norm_gradient(c, rows_at(x, first) - rows_at(x, second), c.real("p"), g);
  const Var zeros = ops::zeros(c.session, x.layout());
  const Var added = made("index_add", {zeros, first, d}, {Attribute::of(0)});
  c.give(made("index_add", {added, second, d}, {Attribute::of(0), Attribute::of(-1.0)}));
}

// ---- Margins. Rows of the input are samples; a vector or a number is one sample.

struct Margin {
  Var x, target;
  core::Dims given;  // the sizes of the input before it became a matrix
  std::int64_t classes = 0;
};
Margin margin_of(Call& c, bool many) {
  Margin found{c.var("self"), c.var("target"), {}};
  if (found.x.absent() || found.target.absent()) return found;
  found.given = found.x.shape();
  const std::int64_t all = found.x.layout().geometry.numel();
  if (found.given.size() > 2 || all == 0 || found.target.dtype() != DType::kI64) {
    return c.fail(core::unimplemented("these operands")), Margin{};
  }
  found.classes = found.given.empty() ? 1 : found.given.back();
  const std::int64_t samples = all / found.classes;
  found.x = ops::reshape(found.x, Dims{samples, found.classes});
  const Dims wanted = many ? found.x.shape() : Dims{samples};
  if (found.target.layout().geometry.numel() != core::numel(wanted)) {
    return c.fail(core::unimplemented("this target")), Margin{};
  }
  found.target = ops::reshape(found.target, wanted);
  return found;
}
// The losses of the samples as torch wants them: one sample gives a number.
Var result_of(Call& c, const Margin& m, const Var& losses) {
  const Var result = reduced(c, losses);
  return m.given.size() < 2 && result.rank() == 1 ? ops::squeeze(result, 0) : result;
}

// The distances of the other classes to the target's, times the target's weight, and the places
// where they count: p = 1 or 2 is applied afterwards.
struct OfTarget {
  Var distance, index, counts, weight;
};
OfTarget distances_of(Call& c, const Margin& m) {
  OfTarget found;
  found.index = ops::unsqueeze(m.target, 1);
  found.distance = gather(m.x, found.index, 1) * -1.0 + c.real("margin") + m.x;
  const Var others = ops::binary("ne", range(c, m.classes), found.index);
  found.counts = both(others, ops::binary("gt", found.distance, 0));
  if (const Var weight = c.var("weight"); !weight.absent()) {
    found.weight = ops::unsqueeze(rows_at(weight, m.target), 1);
  }
  return found;
}
Var weighted(const Var& x, const OfTarget& of) { return of.weight.absent() ? x : x * of.weight; }

void multi_margin(Call& c) {
  const Margin m = margin_of(c, false);
  if (m.x.absent()) return;
  const OfTarget of = distances_of(c, m);
  const Var powers = c.real("p") == 2 ? of.distance * of.distance : of.distance;
  const Var terms = ops::where(of.counts, weighted(powers, of), 0);
  const Var losses = ops::sum(terms, Dims{1}, false) * (1 / static_cast<double>(m.classes));
  c.give(result_of(c, m, losses));
}
void multi_margin_backward(Call& c) {
  const Margin m = margin_of(c, false);
  const Var g = c.var("grad_output");
  if (m.x.absent() || g.absent()) return;
  const OfTarget of = distances_of(c, m);
  const Var slope =
      c.real("p") == 2 ? of.distance * 2.0 : filled(c, m.x.shape(), Number::of_int(1), m.x.dtype());
  const std::int64_t samples = size_of(m.x, 0);
  const Var each = spread(c, g, Dims{samples});
  const Var by_other = ops::where(of.counts, weighted(slope, of), 0) *
                       ops::unsqueeze(each * (1 / static_cast<double>(m.classes)), 1);
  const Var by_target = -ops::sum(by_other, Dims{1}, true);
  const Var dx = made("scatter_add", {by_other, of.index, by_target}, {Attribute::of(1)});
  if (!dx.absent()) c.give(ops::reshape(dx, m.given));
}

// Classes of the target, up to its first -1: `marks` is above 0 for them. `terms` [N, C, C] are
// the distances of every class of the target to every other class.
struct OfTargets {
  Var safe, marks, distance, counts;
};
OfTargets many_distances(Call& c, const Margin& m) {
  OfTargets found;
  const Var ends = ops::cast(ops::binary("lt", m.target, 0), DType::kI64);
  const Var valid = equal_to(made("cumsum", {ends}, {Attribute::of(1)}), 0);
  found.safe = ops::where(valid, m.target, 0);
  const Var none = filled(c, m.x.shape(), Number::of_int(0), DType::kI64);
  found.marks =
      made("scatter_add", {none, found.safe, ops::cast(valid, DType::kI64)}, {Attribute::of(1)});
  found.distance =
      ops::unsqueeze(gather(m.x, found.safe, 1), 2) * -1.0 + 1.0 + ops::unsqueeze(m.x, 1);
  found.counts = both(both(ops::unsqueeze(valid, 2), ops::unsqueeze(equal_to(found.marks, 0), 1)),
                      ops::binary("gt", found.distance, 0));
  return found;
}
void multilabel_margin(Call& c) {
  const Margin m = margin_of(c, true);
  if (m.x.absent()) return;
  const OfTargets of = many_distances(c, m);
  const Var losses = ops::sum(ops::where(of.counts, of.distance, 0), Dims{1, 2}, false) *
                     (1 / static_cast<double>(m.classes));
  const Var is_target = ops::cast(ops::binary("gt", of.marks, 0), m.x.dtype());
  c.give(result_of(c, m, losses));
  if (!is_target.absent()) c.give(ops::reshape(is_target, m.given));
}
void multilabel_margin_backward(Call& c) {
  const Margin m = margin_of(c, true);
  const Var g = c.var("grad_output");
  if (m.x.absent() || g.absent()) return;
  const OfTargets of = many_distances(c, m);
  const std::int64_t samples = size_of(m.x, 0);
  const Var each = spread(c, g, Dims{samples});
  const Var scale = ops::reshape(each * (1 / static_cast<double>(m.classes)), Dims{samples, 1, 1});
  const Var terms = ops::cast(of.counts, m.x.dtype()) * scale;
  const Var by_other = ops::sum(terms, Dims{1}, false);
  const Var by_target = -ops::sum(terms, Dims{2}, false);
  const Var dx = made("scatter_add", {by_other, of.safe, by_target}, {Attribute::of(1)});
  if (!dx.absent()) c.give(ops::reshape(dx, m.given));
}

// ---- CTC

struct Alignment {
  Var log_probs, targets, inputs, lengths;
  bool single = false;
};
Var lengths_of(Call& c, std::string_view name) {
  const tt_value& given = c.value(name);
  if (given.kind == TT_INTS) return constant(c, {given.ints, given.count});
  return flat(ops::cast(c.var(given), DType::kI64));
}
Alignment alignment_of(Call& c) {
  Alignment found;
  found.inputs = lengths_of(c, "input_lengths");
  found.lengths = lengths_of(c, "target_lengths");
  found.log_probs = c.var("log_probs");
  const Var targets = c.var("targets");
  if (found.log_probs.absent() || targets.absent()) return found;
  found.targets = ops::cast(targets, DType::kI64);
  found.single = found.log_probs.rank() == 2;
  if (!found.single) return found;
  found.log_probs = ops::unsqueeze(found.log_probs, 1);
  if (targets.rank() == 1) found.targets = ops::unsqueeze(found.targets, 0);
  return found;
}
void ctc_loss(Call& c) {
  const Alignment a = alignment_of(c);
  Var loss = made("ctc_loss", {a.log_probs, a.targets, a.inputs, a.lengths},
                  {Attribute::of(c.integer("blank"))});
  const double infinity = std::numeric_limits<double>::infinity();
  if (c.flag("zero_infinity")) loss = ops::where(equal_to(loss, infinity), 0, loss);
  if (loss.absent()) return;
  c.give(a.single ? ops::squeeze(loss, 0) : loss);
  c.give_blank(a.log_probs.dtype());  // what torch's own derivative reads
}
void ctc_loss_backward(Call& c) {
  const Alignment a = alignment_of(c);
  Var g = c.var("grad");
  const Var loss = flat(c.var("neg_log_likelihood"));
  if (g.absent() || loss.absent()) return;
  g = flat(ops::expand(g, c.var("neg_log_likelihood").shape()));
  Var dx = made("ctc_loss_backward", {g, a.log_probs, a.targets, a.inputs, a.lengths},
                {Attribute::of(c.integer("blank"))});
  if (dx.absent()) return;
  if (c.flag("zero_infinity")) {
    // Without an alignment there is no gradient: the loss is given as 0 or as an infinity.
    dx = ops::where(ops::unary("isfinite", dx), dx, 0);
  }
  c.give(a.single ? ops::squeeze(dx, 1) : dx);
}

// ---- Bags of rows

enum BagMode { kSum = 0, kMean = 1, kMax = 2 };

// The bag of each index, and which of them count.
struct Bags {
  Var indices, bag, kept;
  std::int64_t count = 0;
};
Bags bags_of(Call& c) {
  Bags found;
  const Var indices = c.var("indices"), offsets = c.var("offsets");
  if (indices.rank() != 1 || offsets.rank() != 1) {
    return c.fail(core::unimplemented("these bags")), found;
  }
  found.indices = ops::cast(indices, DType::kI64);
  found.count = size_of(offsets, 0) - (c.flag("include_last_offset") ? 1 : 0);
  const std::int64_t n = size_of(indices, 0);
  const Var starts = slice(ops::cast(offsets, DType::kI64), 0, 0, found.count);
  const Var none = filled(c, Dims{n + 1}, Number::of_int(0), DType::kI64);
  const Var ones = filled(c, Dims{found.count}, Number::of_int(1), DType::kI64);
  const Var marks = made("index_add", {none, starts, ones}, {Attribute::of(0)});
  found.bag = slice(made("cumsum", {marks}, {Attribute::of(0)}), 0, 0, n) - 1;
  const std::int64_t padding = c.integer("padding_idx", -1);
  if (padding >= 0) found.kept = ops::binary("ne", found.indices, Number::of_int(padding));
  return found;
}
Var sizes_of_bags(Call& c, const Bags& bags) {
  const Var none = filled(c, Dims{bags.count}, Number::of_int(0), DType::kI64);
  const Var ones = bags.kept.absent() ? filled(c, bags.bag.shape(), Number::of_int(1), DType::kI64)
                                      : ops::cast(bags.kept, DType::kI64);
  return made("index_add", {none, bags.bag, ones}, {Attribute::of(0)});
}
// The largest element of each column of the rows of a bag, and the row of the weight that has it
// first; 0 for a bag without rows.
void maxima_of_bags(Call& c, const Bags& bags, const Var& taken) {
  const Dims shape{bags.count, size_of(taken, 1)};
  const std::int64_t n = size_of(taken, 0);
  const auto by = [](const char* how) -> core::Attributes {
    return {Attribute::of(0), Attribute::of(std::string_view(how)), Attribute::of(true)};
  };
  const Number lowest = Number::of_float(-std::numeric_limits<double>::infinity());
  const Var kept = bags.kept.absent() ? Var() : ops::unsqueeze(bags.kept, 1);
  const Var values = kept.absent() ? taken : ops::where(kept, taken, lowest);
  const Var bag = ops::expand(ops::unsqueeze(bags.bag, 1), taken.shape());
  const Var largest =
      made("scatter_reduce", {filled(c, shape, lowest, taken.dtype()), bag, values}, by("amax"));
  Var is_largest = equal_to(values, gather(largest, bag, 0));
  if (!kept.absent()) is_largest = both(is_largest, kept);
  const Var place = ops::where(is_largest, ops::unsqueeze(range(c, n), 1), Number::of_int(n));
  const Var first = made(
      "scatter_reduce", {filled(c, shape, Number::of_int(n), DType::kI64), bag, place}, by("amin"));
  const Var none = filled(c, Dims{1}, Number::of_int(0), DType::kI64);
  const Var sizes = sizes_of_bags(c, bags);
  if (sizes.absent()) return;
  c.give(ops::cast(ops::where(equal_to(ops::unsqueeze(sizes, 1), 0), 0, largest),
                   c.var("weight").dtype()));
  c.give(bags.bag);
  c.give(sizes);
  c.give(made("take", {cat({bags.indices, none}, 0), first}));
}
void embedding_bag(Call& c) {
  const Var weight = c.var("weight");
  const Bags bags = bags_of(c);
  const std::int64_t mode = c.integer("mode");
  if (weight.rank() != 2) return c.fail(core::unimplemented("a weight of this rank"));
  Var taken = rows_at(weight, bags.indices);
  if (taken.absent()) return;
  if (mode == kMax) return maxima_of_bags(c, bags, taken);
  if (is_half(weight.dtype())) taken = ops::cast(taken, DType::kF32);
  if (const Var scale = c.var("per_sample_weights"); !scale.absent()) {
    taken = taken * ops::cast(ops::unsqueeze(scale, 1), taken.dtype());
  }
  if (!bags.kept.absent()) taken = ops::where(ops::unsqueeze(bags.kept, 1), taken, 0);
  const Var none =
      filled(c, Dims{bags.count, size_of(weight, 1)}, Number::of_int(0), taken.dtype());
  Var total = made("index_add", {none, bags.bag, taken}, {Attribute::of(0)});
  const Var sizes = sizes_of_bags(c, bags);
  if (mode == kMean) {
    const Var divisor = ops::unsqueeze(clamped(sizes, 1, {}), 1);
    total = total / ops::cast(divisor, taken.dtype());
  }
  c.give(ops::cast(total, weight.dtype()));
  c.give(bags.bag);
  c.give(sizes);
  give_empty(c, DType::kI64);
}
// The gradient of each row that was taken, of a sum or a mean.
Var gradient_of_rows(Call& c, const Var& g, const Var& bag, const Var& sizes) {
  const Var rows = rows_at(g, bag);
  if (c.integer("mode") != kMean || rows.absent()) return rows;
  const Var divisor = ops::unsqueeze(rows_at(clamped(sizes, 1, {}), bag), 1);
  return rows / ops::cast(divisor, rows.dtype());
}
void embedding_bag_backward(Call& c) {
  const Var g = c.var("grad"), indices = c.var("indices"), bag = c.var("offset2bag");
  const std::int64_t count = c.integer("num_weights");
  if (c.flag("sparse")) return c.fail(core::unimplemented("a sparse gradient"));
  if (g.absent()) return;
  if (c.integer("mode") == kMax) {
    const Var none = filled(c, Dims{count, size_of(g, 1)}, Number::of_int(0), g.dtype());
    const Var empty = equal_to(ops::unsqueeze(c.var("bag_size"), 1), 0);
    const Var found = ops::where(empty, 0, g);
    return c.give(made("scatter_add", {none, c.var("maximum_indices"), found}, {Attribute::of(0)}));
  }
  Var rows = gradient_of_rows(c, g, bag, c.var("bag_size"));
  if (c.flag("scale_grad_by_freq")) rows = per_occurrence(c, rows, indices, count);
  if (rows.absent() || indices.absent()) return;
  if (const Var scale = c.var("per_sample_weights"); !scale.absent()) {
    rows = rows * ops::unsqueeze(scale, 1);
  }
  c.give(made("embedding_backward", {rows, ops::cast(indices, DType::kI64)},
              {Attribute::of(count), Attribute::of(c.integer("padding_idx", -1))}));
}
void bag_weights_backward(Call& c) {
  const Var g = c.var("grad"), weight = c.var("weight"), bag = c.var("offset2bag");
  const Var indices = c.var("indices");
  if (indices.absent() || weight.absent()) return;
  const Var products = rows_at(g, bag) * rows_at(weight, ops::cast(indices, DType::kI64));
  Var found = made("sum", {products}, {Attribute::of(Dims{1})});
  const std::int64_t padding = c.integer("padding_idx", -1);
  if (padding >= 0)
    found = ops::where(ops::binary("ne", indices, Number::of_int(padding)), found, 0);
  c.give(found);
}

// ---- Segments of consecutive elements

// A reduction of segments as one of scattered elements.
struct Segments {
  Var start, index, x;     // the operands of scatter_reduce
  core::Attributes how;    // and its attributes
  Var lengths;             // broadcasts with the result
  std::int64_t count = 0;  // of segments
  int dim = 0;
  bool means = false;
};
Segments segments_of(Call& c) {
  Segments found;
  found.x = c.var("data");
  Var lengths = c.var("lengths");
  if (const Var offsets = c.var("offsets"); lengths.absent() && !offsets.absent()) {
    const std::int64_t n = size_of(offsets, -1);
    lengths = slice(offsets, -1, 1, n - 1) - slice(offsets, -1, 0, n - 1);
  }
  const auto dim = dim_of(c, c.integer("axis"), found.x.rank());
  if (!dim || !c.absent("indices") || !core::is_floating(found.x.dtype()) ||
      lengths.rank() != *dim + 1) {
    return c.fail(core::unimplemented("these segments")), found;
  }
  const std::string_view how = c.text("reduce");
  const double infinity = std::numeric_limits<double>::infinity();
  found.means = how == "mean";
  found.dim = *dim;
  const bool sums = found.means || how == "sum";
  const double neutral = sums ? 0 : how == "prod" ? 1 : how == "max" ? -infinity : infinity;
  const char* const by = sums ? "sum" : how == "prod" ? "prod" : how == "max" ? "amax" : "amin";
  const std::int64_t size = size_of(found.x, *dim);
  found.count = size_of(lengths, -1);
  const Var ends = made("cumsum", {ops::cast(lengths, DType::kI64)}, {Attribute::of(-1)});
  Dims lead = lengths.shape(), shape = found.x.shape();
  lead[*dim] = size;
  const Var places = made("contiguous", {ops::expand(range(c, size), lead)});
  const Var segments =
      made("searchsorted", {ends, places}, {Attribute::of(false), Attribute::of(true)});
  Dims column = lead, wide = lengths.shape();
  for (int i = *dim + 1; i < found.x.rank(); ++i) column.push_back(1), wide.push_back(1);
  shape[*dim] = found.count + 1;  // the last entry takes the elements after all segments
  found.index = ops::expand(ops::reshape(segments, column), found.x.shape());
  found.start = filled(c, shape, Number::of_float(c.real("initial", neutral)), found.x.dtype());
  found.how = {Attribute::of(*dim), Attribute::of(by), Attribute::of(true)};
  found.lengths = ops::reshape(ops::cast(lengths, found.x.dtype()), wide);
  if (!c.absent("initial")) found.lengths = clamped(found.lengths, 1, {});
  return found;
}
void segment_reduce(Call& c) {
  const Segments s = segments_of(c);
  if (!c.session.status().ok()) return;
  const Var found =
      slice(made("scatter_reduce", {s.start, s.index, s.x}, s.how), s.dim, 0, s.count);
  c.give(s.means ? found / s.lengths : found);
}
void segment_reduce_backward(Call& c) {
  const Segments s = segments_of(c);
  const Var given = c.var("grad");
  if (!c.session.status().ok() || given.absent()) return;
  const Var g = s.means ? given / s.lengths : given;
  const Var rest = ops::zeros(c.session, slice(s.start, s.dim, 0, 1).layout());
  const Var operands[] = {s.start, s.index, s.x}, gradients[] = {cat({g, rest}, s.dim)};
  if (!gradients[0].absent())
    c.give(c.gradients("scatter_reduce", operands, s.how, gradients, 4)[2]);
}

constexpr Row kLossRows[] = {
    {"_cdist_forward", "(x1, x2, p, compute_mode)", cdist},
    {"_cdist_backward", "(grad_output, x1, x2, p | cdist)", cdist_backward},
    {"_pdist_forward", "(self, p)", pdist},
    {"_pdist_backward", "(grad_output, self, p | pdist)", pdist_backward},
    {"multi_margin_loss", "(self, target, p, margin, weight, reduction)", multi_margin},
    {"multi_margin_loss_backward", "(grad_output, self, target, p, margin, weight, reduction)",
     multi_margin_backward},
    {"multilabel_margin_loss_forward", "(self, target, reduction)", multilabel_margin},
    {"multilabel_margin_loss_backward", "(grad_output, self, target, reduction | is_target)",
     multilabel_margin_backward},
    {"_ctc_loss", "(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity)",
     ctc_loss},
    {"_ctc_loss_backward",
     "(grad, log_probs, targets, input_lengths, target_lengths, neg_log_likelihood, blank, "
     "zero_infinity | log_alpha)",
     ctc_loss_backward},
    {"_embedding_bag _embedding_bag_forward_only",
     "(weight, indices, offsets, mode, per_sample_weights, include_last_offset, padding_idx | "
     "scale_grad_by_freq, sparse)",
     embedding_bag},
    {"_embedding_bag_backward",
     "(grad, indices, offset2bag, bag_size, num_weights, scale_grad_by_freq, mode, sparse, "
     "per_sample_weights, padding_idx, maximum_indices | offsets)",
     embedding_bag_backward},
    {"_embedding_bag_per_sample_weights_backward",
     "(grad, weight, indices, offset2bag, padding_idx | offsets, mode)", bag_weights_backward},
    {"segment_reduce", "(data, reduce, lengths, indices, offsets, axis, initial | unsafe)",
     segment_reduce},
    {"_segment_reduce_backward", "(grad, data, reduce, lengths, offsets, axis, initial | output)",
     segment_reduce_backward},
};

}  // namespace

std::span<const Row> loss_rows() { return kLossRows; }

}  // namespace teletensor::torch
