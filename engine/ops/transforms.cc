// Forward-mode and vmap rules of the ops in one table: which rule each op follows (op.h), and the
// rules that need code. An op without a row keeps the rules of its OpDef. Elementwise ops need no
// row; other ops are correct without one, only slower (the transpose of the vjp; one call per
// slice).

#include "engine/ops/transforms.h"

#include <algorithm>

#include "engine/ops/functions.h"

namespace teletensor::ops {
namespace {

using core::Attribute;
using core::Attributes;
using core::Dims;

// ---------------------------------------------------------------- helpers

Attributes with(const Attributes& all, std::size_t at, Attribute value) {
  Attributes out;
  for (std::size_t i = 0; i < all.size(); ++i) out.push_back(i == at ? value : all.at(i));
  return out;
}

std::int64_t wrapped(std::int64_t dim, int rank) { return dim < 0 ? dim + rank : dim; }

// x has the batch and then its own dimensions: inserts 1s after the batch until it has `wanted` own
// dimensions.
Var padded(Var x, int wanted) {
  if (!x.is_tensor() || x.rank() - 1 >= wanted) return x;
  Dims shape{x.shape()[0]};
  for (int i = x.rank() - 1; i < wanted; ++i) shape.push_back(1);
  for (int i = 1; i < x.rank(); ++i) shape.push_back(x.shape()[i]);
  return reshape(x, shape);
}

Dims dims_behind(int rank) {
  Dims dims;
  for (int d = 1; d <= rank; ++d) dims.push_back(d);
  return dims;
}

bool absent(BatchContext& c, std::size_t i) { return c.own(i).absent(); }

// ---------------------------------------------------------------- tangents

// For ops that return (values, indices), like sort: the tangent's elements at the same positions.
template <std::size_t kDim, int kKeepdim>
void picked_jvp(JvpContext& c) {
  static const OpRef gather("gather");
  const Var t = c.tangent(0);
  Var at = c.result(1);
  if (!t.is_tensor() || !at.is_tensor()) return;
  const int dim = static_cast<int>(wrapped(c.attributes().integer(kDim), t.rank()));
  if (t.rank() == 0) return c.give(0, t);
  const bool drops = kKeepdim >= 0 && !c.attributes().boolean(static_cast<std::size_t>(kKeepdim));
  if (drops) at = unsqueeze(at, dim);
  const Var out = apply(gather, {t, at}, {Attribute::of(dim)});
  c.give(0, drops ? squeeze(out, dim) : out);
}

void log_softmax_jvp(JvpContext& c) {
  const Var t = cast(c.tangent(0), c.result().dtype()), y = c.result();
  const Dims dim{c.attributes().integer(0)};
  c.give(0, t - sum(unary("exp", y) * t, dim, true));
}

Var sum_of(const Var& a, const Var& b) { return a.absent() ? b : b.absent() ? a : a + b; }

void linear_jvp(JvpContext& c) {
  static const OpRef linear("linear");
  const auto& a = c.attributes();
  Var out;
  if (c.tangent(0).is_tensor()) out = apply(linear, {c.tangent(0), c.operand(1), Var()}, a);
  if (c.tangent(1).is_tensor()) {
    out = sum_of(out, apply(linear, {c.operand(0), c.tangent(1), Var()}, a));
  }
  if (c.tangent(2).is_tensor()) out = sum_of(out, expand(c.tangent(2), c.result().shape()));
  c.give(0, out);
}

void addmm_jvp(JvpContext& c) {
  const Var beta(c.attributes().real(0)), alpha(c.attributes().real(1));
  const bool tf32 = flag(c.attributes(), 2);
  Var out;
  if (c.tangent(0).is_tensor()) out = expand(c.tangent(0) * beta, c.result().shape());
  if (c.tangent(1).is_tensor()) out = sum_of(out, matmul(c.tangent(1), c.operand(2), tf32) * alpha);
  if (c.tangent(2).is_tensor()) out = sum_of(out, matmul(c.operand(1), c.tangent(2), tf32) * alpha);
  c.give(0, out);
}

// ---------------------------------------------------------------- batches: structure

void batch_permute(BatchContext& c) {
  Dims order{0};
  for (std::int64_t d : c.attributes().ints(0)) order.push_back(wrapped(d, c.rank(0)) + 1);
  c.give(permute(c.front(0), order));
}

void batch_expand(BatchContext& c) {
  static const OpRef expand("expand");
  const auto sizes = c.attributes().ints(0);
  Dims target{c.size()};
  for (std::int64_t n : sizes) target.push_back(n);
  c.give(
      apply(expand, {padded(c.front(0), static_cast<int>(sizes.size()))}, {Attribute::of(target)}));
}

// The geometries of the region with the batch in front; the storages of the samples follow each
// other.
void batch_region(BatchContext& c, std::string_view op) {
  const OpRef id(op);
  const Attributes& a = c.attributes();
  const core::Geometry base(Dims(a.ints(0)), Dims(a.ints(1)));
  const std::int64_t storage = std::max<std::int64_t>(base.storage_end(), 1);
  Attributes attributes;
  for (std::size_t i = 0; i < 4; ++i) {
    Dims each{i % 2 == 0 ? c.size() : storage};
    for (std::int64_t n : a.ints(i)) each.push_back(n);
    attributes.push_back(Attribute::of(each));
  }
  attributes.push_back(a.at(4));
  InlineVars arguments{c.front(0)};
  if (c.operands() > 1) arguments.push_back(c.own(1).is_number() ? c.own(1) : c.front(1));
  c.give(apply_all(id, {arguments.data(), arguments.size()}, attributes)[0]);
}

void batch_relayout(BatchContext& c) {
  static const OpRef relayout("relayout");
  const Var x = c.front(0);
  Dims strides{core::numel(x.shape()) / std::max<std::int64_t>(c.size(), 1)};
  for (std::int64_t n : c.attributes().ints(0)) strides.push_back(n);
  c.give(apply(relayout, {x}, {Attribute::of(strides)}));
}

// x is filled with, or overwritten by, a value that may be batched even if x is not.
void batch_overwrite(BatchContext& c) {
  static const OpRef copy("copy");
  const Var value = c.own(1);
  c.give(apply(copy, {c.front(0), c.batched(1) ? padded(value, c.rank(0)) : value}));
}

void batch_masked_fill(BatchContext& c) {
  const int rank = std::max(c.rank(0), c.rank(1));
  const Var x = padded(c.front(0), rank), mask = padded(c.front(1), rank);
  const Var value = c.batched(2) ? padded(c.own(2), rank) : c.own(2);
  c.give(cast(where(mask, value, x), x.dtype()));
}

void batch_full(BatchContext& c) {
  Dims shape{c.size()};
  for (std::int64_t n : c.attributes().ints(0)) shape.push_back(n);
  Var value = padded(c.front(0), shape.size() - 1);
  if (c.attributes().has(1)) value = cast(value, c.attributes().dtype(1));
  static const OpRef clone("clone");
  c.give(apply(clone, {expand(value, shape)}));
}

// The memory of each sample begins at a multiple of the batch's stride.
void batch_as_strided(BatchContext& c) {
  static const OpRef as_strided("as_strided");
  Var x = c.front(0);
  if (!x.is_tensor()) return c.give({});
  if (x.layout().geometry.strides[0] == 0 && c.size() > 1) {
    // All samples show the same memory, so a gradient of one of them would reach the others.
    static const OpRef clone("clone"), relayout("relayout");
    Dims strides{core::numel(x.shape()) / c.size()};
    for (int d = 1; d < x.rank(); ++d) {
      strides.push_back(x.layout().geometry.strides[d]);
    }
    x = apply(relayout, {apply(clone, {x})}, {Attribute::of(strides)});
    if (!x.is_tensor()) return c.give({});
  }
  const core::Geometry& g = x.layout().geometry;
  Dims sizes{c.size()}, strides{g.strides[0]};
  for (const std::int64_t n : c.attributes().ints(0)) sizes.push_back(n);
  for (const std::int64_t n : c.attributes().ints(1)) strides.push_back(n);
  const Attributes& a = c.attributes();
  c.give(apply(as_strided, {x}, with(with(a, 0, Attribute::of(sizes)), 1, Attribute::of(strides))));
}

// A number has one window, without a dimension of windows.
void batch_unfold(BatchContext& c) {
  static const OpRef unfold("unfold"), slice("slice");
  const Attributes& a = c.attributes();
  if (c.rank(0) == 0)
    return c.give(
        apply(slice, {padded(c.front(0), 1)}, {Attribute::of(1), Attribute::of(0), a.at(1)}));
  const std::int64_t dim = wrapped(a.integer(0), c.rank(0)) + 1;
  c.give(apply(unfold, {c.front(0)}, with(a, 0, Attribute::of(dim))));
}

// ---------------------------------------------------------------- batches: reductions

Var flat(BatchContext& c) {
  const Var x = c.front(0);
  return reshape(x, {c.size(), core::numel(x.shape()) / std::max<std::int64_t>(c.size(), 1)});
}

// dim=None flattens. `dim` and `keepdim` are attributes 0 and 1.
void batch_flattening(BatchContext& c, std::string_view op) {
  const OpRef id(op);
  const Attributes& a = c.attributes();
  if (a.has(0) && c.rank(0) > 0) {
    const std::int64_t dim = wrapped(a.integer(0), c.rank(0)) + 1;
    return c.give(apply(id, {c.front(0)}, with(a, 0, Attribute::of(dim))));
  }
  const Attributes flattened = with(with(a, 0, Attribute::of(1)), 1, Attribute::of(false));
  Var out = apply(id, {flat(c)}, flattened);
  if (a.boolean(1) && c.rank(0) > 0) out = padded(out, c.rank(0));
  c.give(out);
}

void batch_whole(BatchContext& c, std::string_view op) {
  const OpRef id(op);
  c.give(apply(id, {flat(c)}, {Attribute::of(Dims{1}), Attribute::of(false)}));
}

void batch_median(BatchContext& c) {
  static const OpRef median("median_dim");
  const Var x = flat(c);
  c.give(apply(median, {x}, {Attribute::of(1), Attribute::of(false)}));
}

void batch_layer_norm(BatchContext& c) {
  static const OpRef norm("layer_norm");
  const int rank = c.rank(0);
  const bool plain = !c.batched(1) && !c.batched(2);
  const Var arguments[] = {c.front(0), plain ? c.own(1) : Var(), plain ? c.own(2) : Var()};
  const Vars results = apply_all(norm, arguments, c.attributes());
  Var y = results.empty() ? Var() : results[0];
  if (!plain && !absent(c, 1)) y = y * (c.batched(1) ? padded(c.own(1), rank) : c.own(1));
  if (!plain && !absent(c, 2)) y = y + (c.batched(2) ? padded(c.own(2), rank) : c.own(2));
  c.give(y);
  for (std::size_t i = 1; i < 3; ++i) c.give(i < results.size() ? results[i] : Var());
}

// ---------------------------------------------------------------- batches: products

// Operand i, whose logical rank is 2 or more after a vector has become a row or a column.
Var matrix(BatchContext& c, std::size_t i, bool row) {
  const Var x = c.own(i);
  return c.rank(i) == 1 ? unsqueeze(x, row ? -2 : -1) : x;
}

// `flagged` is the index of the attribute tf32.
Var batched_product(BatchContext& c, std::size_t a, std::size_t b, std::size_t flagged) {
  Var x = matrix(c, a, true), y = matrix(c, b, false);
  const int rank_x = std::max(c.rank(a), 2), rank_y = std::max(c.rank(b), 2);
  const int rank = std::max(rank_x, rank_y);
  if (c.batched(a) && (c.batched(b) || rank_y > 2)) x = padded(x, rank);
  if (c.batched(b) && (c.batched(a) || rank_x > 2)) y = padded(y, rank);
  Var out = matmul(x, y, flag(c.attributes(), flagged));
  if (c.rank(a) == 1) out = squeeze(out, -2);
  if (c.rank(b) == 1) out = squeeze(out, -1);
  return out;
}

void batch_matmul(BatchContext& c) { c.give(batched_product(c, 0, 1, 0)); }

void batch_outer(BatchContext& c) { c.give(unsqueeze(c.front(0), -1) * unsqueeze(c.front(1), -2)); }

void batch_linear(BatchContext& c) {
  static const OpRef linear("linear");
  if (!c.batched(1) && !c.batched(2)) {
    return c.give(apply(linear, {c.front(0), c.own(1), c.own(2)}, c.attributes()));
  }
  Var out;
  if (c.batched(1)) {
    const Var weight = transpose(c.own(1), -2, -1);
    Var x = c.own(0);
    const bool vector = c.rank(0) == 1;
    if (vector) x = unsqueeze(x, -2);
    const int rank = std::max(c.rank(0), 2);
    out = matmul(x, c.batched(0) || rank > 2 ? padded(weight, rank) : weight,
                 flag(c.attributes(), 0));
    if (vector) out = squeeze(out, -2);
  } else {
    out = apply(linear, {c.front(0), c.own(1), Var()}, c.attributes());
  }
  if (!absent(c, 2)) out = out + (c.batched(2) ? padded(c.own(2), c.rank(0)) : c.own(2));
  c.give(out);
}

void batch_addmm(BatchContext& c) {
  const Var product = batched_product(c, 1, 2, 2) * Var(c.attributes().real(1));
  const Var x = c.batched(0) ? padded(c.own(0), 2) : c.own(0);
  c.give(cast(x * Var(c.attributes().real(0)) + product, c.own(0).dtype()));
}

// ---------------------------------------------------------------- batches: indexing

// One index per sample: becomes a gather (or scatter) along dim, with the index repeated over the
// other dimensions.
Var spread_index(BatchContext& c, const Var& like, int dim) {
  Var index = c.front(1);
  if (c.rank(1) == 0) index = unsqueeze(index, -1);
  Dims view, full = like.shape();
  for (int d = 0; d < full.size(); ++d) view.push_back(d == 0 || d == dim ? full[d] : 1);
  view[dim] = full[dim] = index.shape()[1];
  return expand(reshape(index, view), full);
}

void batch_index_select(BatchContext& c) {
  static const OpRef select("index_select");
  static const OpRef gather("gather");
  if (c.rank(0) == 0) return c.slices();
  const std::int64_t dim = wrapped(c.attributes().integer(0), c.rank(0)) + 1;
  const Var x = c.front(0);
  if (!c.batched(1)) return c.give(apply(select, {x, c.own(1)}, {Attribute::of(dim)}));
  c.give(apply(gather, {x, spread_index(c, x, static_cast<int>(dim))}, {Attribute::of(dim)}));
}

// index_add, index_copy and index_fill with one index for all samples.
void batch_index_write(BatchContext& c, std::string_view op) {
  const OpRef id(op);
  if (c.batched(1) || c.rank(0) == 0) return c.slices();
  const std::int64_t dim = wrapped(c.attributes().integer(0), c.rank(0)) + 1;
  const Var source = c.own(2).is_number() ? c.own(2) : c.front(2);
  c.give(apply(id, {c.front(0), c.own(1), source}, with(c.attributes(), 0, Attribute::of(dim))));
}

void batch_index_fill(BatchContext& c) {
  if (c.batched(2)) return c.slices();
  static const OpRef fill("index_fill");
  if (c.batched(1) || c.rank(0) == 0) return c.slices();
  const std::int64_t dim = wrapped(c.attributes().integer(0), c.rank(0)) + 1;
  c.give(apply(fill, {c.front(0), c.own(1), c.own(2)}, {Attribute::of(dim)}));
}

void batch_take(BatchContext& c) {
  static const OpRef take("take");
  static const OpRef gather("gather");
  if (!c.batched(0)) return c.give(apply(take, {c.own(0), c.front(1)}));
  const Var index = c.front(1);
  const std::int64_t each = core::numel(index.shape()) / std::max<std::int64_t>(c.size(), 1);
  const Var x = flat(c);
  if (!x.is_tensor() || !index.is_tensor()) return c.give({});
  const Var from_end = index + Var(core::Number::of_int(x.shape()[1]));
  const Var place = where(binary("lt", index, Var(0)), from_end, index);
  const Var out = apply(gather, {x, reshape(place, {c.size(), each})}, {Attribute::of(1)});
  c.give(reshape(out, index.shape()));
}

// One table per sample is treated as one long table, and the indices are shifted accordingly.
Var shifted(BatchContext& c, const Var& indices, std::int64_t rows) {
  static const OpRef arange("arange");
  const Var numbers[] = {Var(core::Number::of_int(0)), Var(core::Number::of_int(c.size() * rows)),
                         Var(core::Number::of_int(std::max<std::int64_t>(rows, 1)))};
  const Vars first = c.builder().call(
      arange, numbers, {Attribute::of(indices.dtype()), Attribute::of(indices.layout().device)},
      {});
  Dims shape(indices.rank(), 1);
  shape[0] = c.size();
  return indices + reshape(first[0], shape);
}

void batch_embedding(BatchContext& c) {
  static const OpRef embedding("embedding");
  if (!c.batched(0)) return c.give(apply(embedding, {c.own(0), c.front(1)}, c.attributes()));
  const Var table = c.own(0);
  const std::int64_t rows = table.shape()[1];
  if (c.attributes().integer(0) >= 0 || rows == 0) return c.slices();
  const Var all = reshape(table, {c.size() * rows, table.shape()[2]});
  c.give(apply(embedding, {all, shifted(c, c.front(1), rows)}, c.attributes()));
}

void batch_embedding_backward(BatchContext& c) {
  static const OpRef backward("embedding_backward");
  const std::int64_t rows = c.attributes().integer(0);
  if (c.attributes().integer(1) >= 0 || rows == 0) return c.slices();
  const Var g = c.front(0);
  const Var all = apply(backward, {g, shifted(c, c.front(1), rows)},
                        with(c.attributes(), 0, Attribute::of(rows * c.size())));
  c.give(reshape(all, {c.size(), rows, g.shape().back()}));
}

bool neighbours(std::span<const std::int64_t> dims) {
  return dims.back() - dims.front() + 1 == static_cast<std::int64_t>(dims.size());
}

// The operands from 1 on are the indices. If one of them is batched, the number of the sample
// becomes an additional first index.
void batch_index(BatchContext& c) {
  static const OpRef index("index");
  static const OpRef arange("arange");
  const auto dims = c.attributes().ints(0);
  const std::size_t count = c.operands() - 1;
  int rank = 0;
  bool any = false;
  for (std::size_t i = 1; i <= count; ++i) {
    rank = std::max(rank, c.rank(i));
    any = any || c.batched(i);
  }
  const Var x = c.front(0);
  InlineVars arguments{x};
  Dims shifted_dims;
  if (any) {
    const Var numbers[] = {Var(core::Number::of_int(0)), Var(core::Number::of_int(c.size())),
                           Var(core::Number::of_int(1))};
    const Vars each = c.builder().call(
        arange, numbers, {Attribute::of(core::DType::kI64), Attribute::of(x.layout().device)}, {});
    Dims shape(rank + 1, 1);
    shape[0] = c.size();
    arguments.push_back(reshape(each[0], shape));
    shifted_dims.push_back(0);
  }
  for (std::size_t i = 1; i <= count; ++i) {
    arguments.push_back(any && c.batched(i) ? padded(c.own(i), rank) : c.own(i));
    shifted_dims.push_back(dims[i - 1] + 1);
  }
  const auto counts = static_cast<std::uint32_t>(arguments.size() - 1);
  const Var out = apply_all(index, {arguments.data(), arguments.size()},
                            {Attribute::of(shifted_dims)}, std::span(&counts, 1))[0];
  if (!out.is_tensor()) return c.give(out);
  // Moves the indexed dimensions from the position that NumPy's rule gives them to the wanted one.
  const bool together = neighbours(dims);
  Dims order;
  if (any) {  // now [batch, indices..., the rest]
    const int before = together ? static_cast<int>(dims[0]) : 0;
    if (before == 0) return c.give(out);
    order.push_back(0);
    for (int d = 0; d < before; ++d) order.push_back(1 + rank + d);
    for (int d = 0; d < rank; ++d) order.push_back(1 + d);
    for (int d = 1 + rank + before; d < out.rank(); ++d) order.push_back(d);
  } else {
    if (together) return c.give(out);
    order.push_back(rank);  // now [indices..., batch, the rest]
    for (int d = 0; d < out.rank(); ++d) {
      if (d != rank) order.push_back(d);
    }
  }
  c.give(permute(out, order));
}

void batch_index_put(BatchContext& c) {
  static const OpRef put("index_put");
  const auto dims = c.attributes().ints(0);
  int rank = 0;
  for (std::size_t i = 2; i < c.operands(); ++i) {
    if (c.batched(i)) return c.slices();
    rank = std::max(rank, c.rank(i));
  }
  if (!neighbours(dims)) return c.slices();
  const int target = c.rank(0) - static_cast<int>(dims.size()) + rank;
  InlineVars arguments{c.front(0), c.batched(1) ? padded(c.own(1), target) : c.own(1)};
  Dims shifted_dims;
  for (std::size_t i = 2; i < c.operands(); ++i) {
    arguments.push_back(c.own(i));
    shifted_dims.push_back(dims[i - 2] + 1);
  }
  const auto counts = static_cast<std::uint32_t>(c.operands() - 2);
  c.give(apply_all(put, {arguments.data(), arguments.size()},
                   with(c.attributes(), 0, Attribute::of(shifted_dims)), std::span(&counts, 1))[0]);
}

// ---------------------------------------------------------------- batches: losses

Var reduced(BatchContext& c, const Var& loss, std::string_view how, int rank) {
  static const OpRef mean("mean");
  if (rank == 0 || how == "none") return loss;
  if (how == "mean") return apply(mean, {loss}, {Attribute::of(dims_behind(rank))});
  const Var total = sum(loss, dims_behind(rank), false);
  if (how != "batchmean") return total;
  return total / Var(static_cast<double>(c.front(0).shape()[1]));
}

// Attribute 0 is the reduction; the operands broadcast.
void batch_loss(BatchContext& c, std::string_view op, std::size_t reduction) {
  const OpRef id(op);
  const int rank = std::max(c.rank(0), c.rank(1));
  InlineVars arguments;
  for (std::size_t i = 0; i < c.operands(); ++i) {
    arguments.push_back(absent(c, i)   ? Var()
                        : i < 2        ? padded(c.front(i), rank)
                        : c.batched(i) ? padded(c.own(i), rank)
                                       : c.own(i));
  }
  const Var loss = apply_all(id, {arguments.data(), arguments.size()},
                             with(c.attributes(), reduction, Attribute::of("none")))[0];
  c.give(reduced(c, loss, c.attributes().text(reduction), rank));
}

Var merged(const Var& x) {  // reshapes [b, n, ...] to [b * n, ...]
  Dims shape{x.shape()[0] * x.shape()[1]};
  for (int d = 2; d < x.rank(); ++d) shape.push_back(x.shape()[d]);
  return reshape(x, shape);
}

// cross_entropy and nll_loss: attributes 0 and 1 are ignore_index and reduction.
void batch_class_loss(BatchContext& c, std::string_view op) {
  const OpRef id(op);
  if (c.batched(2)) return c.slices();
  const bool lines = c.rank(0) > 1;
  Var x = c.front(0), target = c.front(1);
  if (lines) x = merged(x), target = merged(target);
  const Var weight = c.own(2);
  Var loss = apply(id, {x, target, weight}, with(c.attributes(), 1, Attribute::of("none")));
  const std::string_view how = c.attributes().text(1);
  if (!loss.is_tensor()) return c.give(loss);
  Dims shape{c.size()};
  if (lines) {
    shape.push_back(c.size() == 0 ? 0 : loss.shape()[0] / c.size());
    for (int d = 1; d < loss.rank(); ++d) shape.push_back(loss.shape()[d]);
  }
  loss = reshape(loss, shape);
  const int rank = shape.size() - 1;
  if (how != "mean") return c.give(reduced(c, loss, how, rank));
  if (core::is_floating(target.dtype())) return c.give(reduced(c, loss, how, rank));
  static const OpRef take("take");
  const Var ignored = Var(core::Number::of_int(c.attributes().integer(0)));
  const Var keep = binary("ne", target, ignored);
  Var share = cast(keep, loss.dtype());
  if (weight.is_tensor()) {
    share = share * apply(take, {weight, where(keep, target, Var(core::Number::of_int(0)))});
  }
  share = reshape(share, shape);
  if (rank == 0) return c.give(loss / share);
  c.give(sum(loss, dims_behind(rank), false) / sum(share, dims_behind(rank), false));
}

// ---------------------------------------------------------------- the table

struct Row {
  std::string_view op;
  Tangent tangent = Tangent::kAuto;
  Batching batching = Batching::kAuto;
  BatchRule batch = nullptr;
  Jvp jvp = nullptr;
};

constexpr auto kFront = Batching::kFront;
constexpr auto kLinear = Tangent::kLinear;
constexpr auto kMulti = Tangent::kMultilinear;
constexpr auto kAuto = Tangent::kAuto;
constexpr auto kSlices = Batching::kAuto;

std::vector<Row> rows() {
  return {
      {"detach", kAuto, kFront},
      {"data", kAuto, kFront},
      {"alias", kLinear, kFront},
      {"select", kLinear, kFront},
      {"slice", kLinear, kFront},
      {"transpose", kLinear, kFront},
      {"permute", kLinear, kSlices, batch_permute},
      {"expand", kLinear, kSlices, batch_expand},
      {"view", kLinear, kFront},
      {"reshape", kLinear, kFront},
      {"squeeze", kLinear, kFront},
      {"unsqueeze", kLinear, kFront},
      {"diagonal", kLinear, kFront},
      {"unbind", kLinear, kFront},
      {"unfold", kLinear, kSlices, batch_unfold},
      {"split_with_sizes", kLinear, kFront},
      {"index_region", kLinear, kSlices, [](BatchContext& c) { batch_region(c, "index_region"); }},
      {"scatter_region", kLinear, kSlices,
       [](BatchContext& c) { batch_region(c, "scatter_region"); }},
      {"add_region", kLinear, kSlices, [](BatchContext& c) { batch_region(c, "add_region"); }},
      {"update_region", kLinear, kSlices,
       [](BatchContext& c) { batch_region(c, "update_region"); }},
      {"relayout", kLinear, kSlices, batch_relayout},
      {"to_device", kLinear, kFront},
      {"copy", kAuto, kSlices, batch_overwrite},
      {"fill", kAuto, kSlices, batch_overwrite},
      {"masked_fill", kAuto, kSlices, batch_masked_fill},
      {"full", kLinear, kSlices, batch_full},
      {"tril", kLinear, kFront},
      {"triu", kLinear, kFront},
      {"diag", kLinear},
      {"one_hot", kAuto, kFront},
      {"cat", kLinear, kFront},
      {"stack", kLinear, kFront},

      {"sum", kLinear, kFront},
      {"nan_sum", kAuto, kFront},
      {"mean", kLinear, kFront},
      {"prod", kAuto, kSlices, [](BatchContext& c) { batch_flattening(c, "prod"); }},
      {"argmax", kAuto, kSlices, [](BatchContext& c) { batch_flattening(c, "argmax"); }},
      {"argmin", kAuto, kSlices, [](BatchContext& c) { batch_flattening(c, "argmin"); }},
      {"product_of_others", kAuto, kFront},
      {"max", kAuto, kSlices, [](BatchContext& c) { batch_whole(c, "amax"); }},
      {"min", kAuto, kSlices, [](BatchContext& c) { batch_whole(c, "amin"); }},
      {"median", kAuto, kSlices, batch_median},
      {"max_dim", kAuto, kFront, nullptr, picked_jvp<0, 1>},
      {"min_dim", kAuto, kFront, nullptr, picked_jvp<0, 1>},
      {"amax", kAuto, kFront},
      {"amin", kAuto, kFront},
      {"any", kAuto, kFront},
      {"all", kAuto, kFront},
      {"count_nonzero", kAuto, kFront},
      {"var", kAuto, kFront},
      {"std", kAuto, kFront},
      {"norm", kAuto, kFront},
      {"logsumexp", kAuto, kFront},
      {"softmax", Tangent::kDiagonal, kFront},  // its Jacobian is symmetric
      {"log_softmax", kAuto, kFront, nullptr, log_softmax_jvp},
      {"softmax_backward", kAuto, kFront},
      {"log_softmax_backward", kAuto, kFront},
      {"layer_norm", kAuto, kSlices, batch_layer_norm},
      {"attention", kAuto, kFront},
      {"attention_backward", kAuto, kFront},
      {"sort", kAuto, kFront, nullptr, picked_jvp<0, -1>},
      {"argsort", kAuto, kFront},
      {"topk", kAuto, kFront, nullptr, picked_jvp<1, -1>},
      {"kthvalue", kAuto, kFront, nullptr, picked_jvp<1, 2>},
      {"median_dim", kAuto, kFront, nullptr, picked_jvp<0, 1>},
      {"cumsum", kLinear, kFront},
      {"reverse_cumsum", kLinear, kFront},
      {"cumprod", kAuto, kFront},
      {"cumprod_backward", kAuto, kFront},

      {"matmul", kMulti, kSlices, batch_matmul},
      {"mm", kMulti, kSlices, batch_matmul},
      {"bmm", kMulti, kSlices, batch_matmul},
      {"mv", kMulti, kSlices, batch_matmul},
      {"dot", kMulti, kSlices, batch_matmul},
      {"outer", kMulti, kSlices, batch_outer},
      {"linear", kAuto, kSlices, batch_linear, linear_jvp},
      {"addmm", kAuto, kSlices, batch_addmm, addmm_jvp},

      {"index", kLinear, kSlices, batch_index},
      {"index_put", kLinear, kSlices, batch_index_put},
      {"masked_scatter", kLinear},
      {"masked_pack", kLinear},
      {"gather", kLinear, kFront},
      {"scatter", kLinear, kFront},
      {"scatter_add", kLinear, kFront},
      {"index_select", kLinear, kSlices, batch_index_select},
      {"index_add", kLinear, kSlices, [](BatchContext& c) { batch_index_write(c, "index_add"); }},
      {"index_copy", kLinear, kSlices, [](BatchContext& c) { batch_index_write(c, "index_copy"); }},
      {"index_fill", kLinear, kSlices, batch_index_fill},
      {"take", kLinear, kSlices, batch_take},
      {"embedding", kLinear, kSlices, batch_embedding},
      {"embedding_backward", kLinear, kSlices, batch_embedding_backward},

      {"mse_loss", kAuto, kSlices, [](BatchContext& c) { batch_loss(c, "mse_loss", 0); }},
      {"l1_loss", kAuto, kSlices, [](BatchContext& c) { batch_loss(c, "l1_loss", 0); }},
      {"smooth_l1_loss", kAuto, kSlices,
       [](BatchContext& c) { batch_loss(c, "smooth_l1_loss", 0); }},
      {"huber_loss", kAuto, kSlices, [](BatchContext& c) { batch_loss(c, "huber_loss", 0); }},
      {"binary_cross_entropy", kAuto, kSlices,
       [](BatchContext& c) { batch_loss(c, "binary_cross_entropy", 0); }},
      {"binary_cross_entropy_with_logits", kAuto, kSlices,
       [](BatchContext& c) { batch_loss(c, "binary_cross_entropy_with_logits", 0); }},
      {"kl_div", kAuto, kSlices, [](BatchContext& c) { batch_loss(c, "kl_div", 0); }},
      {"cross_entropy", kAuto, kSlices,
       [](BatchContext& c) { batch_class_loss(c, "cross_entropy"); }},
      {"nll_loss", kAuto, kSlices, [](BatchContext& c) { batch_class_loss(c, "nll_loss"); }},

      {"as_strided", kAuto, kSlices, batch_as_strided},
      {"uniform", kAuto, kFront},
      {"normal", kAuto, kFront},
      {"random_from", kAuto, kFront},
      {"bernoulli", kAuto, kFront},
      {"bernoulli_p", kAuto, kFront},
      {"dropout", Tangent::kDiagonal, kFront},
      {"randint", kAuto, kFront},
  };
}

}  // namespace

std::string_view add_transform_rules(std::vector<OpDef>& all) {
  for (const Row& row : rows()) {
    const auto at = std::find_if(all.begin(), all.end(), [&](const OpDef& op) {
      return op.signature.size() > row.op.size() && op.signature.starts_with(row.op) &&
             op.signature[row.op.size()] == '(';
    });
    if (at == all.end()) return row.op;
    if (at->tangent == Tangent::kAuto) at->tangent = row.tangent;
    if (at->batching == Batching::kAuto) at->batching = row.batching;
    if (at->jvp == nullptr) at->jvp = row.jvp;
    if (at->batch == nullptr) at->batch = row.batch;
  }
  return {};
}

}  // namespace teletensor::ops
