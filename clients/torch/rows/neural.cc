#include <cmath>

#include "clients/torch/compose.h"

namespace teletensor::torch {
namespace {

using core::Attribute;
using core::Attributes;
using core::Dims;
using core::Number;

// ---- Losses

Attribute reduction(const Call& c) { return Attribute::of(reduction_of(c.integer("reduction"))); }

void nll_loss(Call& c) {
  static const ops::OpRef op("nll_loss");
  const Var x = c.var("self");
  c.give(c.run(op, {x, c.var("target"), c.var("weight")},
               {Attribute::of(c.integer("ignore_index")), reduction(c)}));
  c.give_blank(x.dtype());
}
void nll_loss_backward(Call& c) {
  static const ops::OpRef op("nll_loss_backward");
  c.give(c.run(op, {c.var("grad_output"), c.var("target"), c.var("weight")},
               {Attribute::of(sizes_of(c.value("self").tensor)),
                Attribute::of(c.integer("ignore_index")), reduction(c)}));
}

void loss_backward(Call& c, std::string_view op, const Attributes& attributes) {
  const Var operands[] = {c.var("self"), c.var("target"), c.var("weight")};
  const Var g[] = {c.var("grad_output")};
  if (operands[0].absent() || g[0].absent()) return;
  const std::size_t count = c.absent("weight") && op != "binary_cross_entropy" ? 2 : 3;
  c.give(c.gradients(op, std::span(operands, count), attributes, g, 1)[0]);
}
void smooth_l1_backward(Call& c) {
  loss_backward(c, "smooth_l1_loss", {reduction(c), Attribute::of(c.real("beta"))});
}
void huber_backward(Call& c) {
  loss_backward(c, "huber_loss", {reduction(c), Attribute::of(c.real("delta"))});
}
void cross_entropy_backward(Call& c) { loss_backward(c, "binary_cross_entropy", {reduction(c)}); }

// ---- Normalization

void layer_norm_backward(Call& c) {
  static const ops::OpRef op("layer_norm_backward");
  const Var arguments[] = {c.var("grad_out"), c.var("input"), c.var("weight"), c.var("mean"),
                           c.var("rstd")};
  // The mean and the standard deviation are given: eps takes no part.
  const ops::Vars made =
      c.run_all(op, arguments, {Attribute::of(c.ints("normalized_shape")), Attribute::of(1e-5)});
  for (std::size_t i = 0; i < 3; ++i) c.wanted(i) ? c.give(made[i]) : c.give_nothing();
}

// As [1, C, 1, ...], for an input of this rank.
Var channels(const Var& x, int rank) {
  if (x.absent()) return {};
  Dims shape;
  for (int i = 0; i < rank; ++i) shape.push_back(i == 1 ? x.shape()[0] : 1);
  return ops::reshape(x, shape);
}
Dims all_but_channels(int rank) {
  Dims dims{0};
  for (int i = 2; i < rank; ++i) dims.push_back(i);
  return dims;
}

void batch_norm_of_running(Call& c, const Var& x) {
  const int rank = x.rank();
  const Var scale = ops::unary("rsqrt", c.var("running_var") + c.real("eps"));
  const Var weight = c.var("weight"), bias = c.var("bias");
  Var y = (x - channels(c.var("running_mean"), rank)) * channels(scale, rank);
  if (!weight.absent()) y = y * channels(weight, rank);
  if (!bias.absent()) y = y + channels(bias, rank);
  c.give(ops::cast(y, x.dtype()));
  for (int i = 0; i < 2; ++i) give_empty(c, DType::kF32);
}

// Moves a running statistic by `momentum` towards that of a batch, which float32 has for halves.
void follow(Call& c, const Var& running, const Var& of_batch) {
  static const ops::OpRef lerp("lerp");
  if (running.absent() || of_batch.absent()) return;
  c.run_inplace(lerp, {running, ops::cast(of_batch, running.dtype()), c.real("momentum")});
}

void batch_norm(Call& c) {
  static const ops::OpRef op("batch_norm");
  const Var x = c.var("input");
  if (x.absent()) return;
  if (c.integer("training", 1) == 0) return batch_norm_of_running(c, x);
  const Var arguments[] = {x, c.var("weight"), c.var("bias")};
  const ops::Vars made = c.run_all(op, arguments, {Attribute::of(c.real("eps"))});
  if (made[0].absent()) return;
  follow(c, c.var("running_mean"), made[1]);
  if (const Var variance = c.var("running_var"); !variance.absent()) {
    const double n =
        static_cast<double>(x.layout().geometry.numel()) / static_cast<double>(x.shape()[1]);
    follow(c, variance, made[3] * (n / (n - 1)));
  }
  for (std::size_t i = 0; i < 3; ++i) c.give(made[i]);
}

void batch_norm_with_update(Call& c) {
  batch_norm(c);
  give_empty(c, DType::kU8);
}

void batch_norm_backward(Call& c) {
  static const ops::OpRef op("batch_norm_backward");
  const Var g = c.var("grad_out"), x = c.var("input"), weight = c.var("weight");
  if (g.absent() || x.absent()) return;
  Var dx, dweight, dbias;
  if (c.flag("train") || c.flag("update")) {
    const std::string_view deviation = c.absent("save_invstd") ? "save_var" : "save_invstd";
    const Var arguments[] = {g, x, weight, c.var("save_mean"), c.var(deviation)};
    const ops::Vars made = c.run_all(op, arguments, {Attribute::of(c.real("eps"))});
    dx = made[0], dweight = made[1], dbias = made[2];
  } else {
    const int rank = x.rank();
    const Var scale = channels(ops::unary("rsqrt", c.var("running_var") + c.real("eps")), rank);
    dx = g * scale;
    if (!weight.absent()) dx = dx * channels(weight, rank);
    const Dims dims = all_but_channels(rank);
    if (c.wanted(1)) {
      dweight = ops::sum(g * (x - channels(c.var("running_mean"), rank)) * scale, dims, false);
    }
    if (c.wanted(2)) dbias = ops::sum(g, dims, false);
  }
  c.wanted(0) ? c.give(dx) : c.give_nothing();
  c.wanted(1) ? c.give(dweight) : c.give_nothing();
  c.wanted(2) ? c.give(dbias) : c.give_nothing();
}

// ---- The parts of torch's SyncBatchNorm. Statistics of halves are float32.

Var accumulated(const Var& x) {
  return !x.absent() && is_half(x.dtype()) ? ops::cast(x, DType::kF32) : x;
}

void batch_norm_stats(Call& c) {
  const Var x = accumulated(c.var("input"));
  if (x.absent()) return;
  const Dims dims = all_but_channels(x.rank());
  const double n =
      static_cast<double>(x.layout().geometry.numel()) / static_cast<double>(size_of(x, 1));
  const Var mean = ops::sum(x, dims, false) / n;
  const Var from_mean = x - channels(mean, x.rank());
  const Var variance = ops::sum(from_mean * from_mean, dims, false) / n;
  c.give(mean);
  c.give(ops::unary("rsqrt", variance + c.real("eps")));
}

// Statistics of several ranks, [ranks, channels] each with its number of values, as those of all.
void batch_norm_gather_stats(Call& c) {
  const Var means = c.var("mean"), deviations = c.var("invstd"), counts = c.var("counts");
  if (means.absent() || deviations.absent() || counts.absent()) return;
  const Dims ranks{0};
  const Var weights = ops::unsqueeze(ops::cast(counts, means.dtype()), 1);
  const Var n = ops::sum(weights, ranks, false);
  const Var mean = ops::sum(means * weights, ranks, false) / n;
  const Var from_mean = means - ops::unsqueeze(mean, 0);
  const Var variances =
      Number::of_float(1) / (deviations * deviations) - c.real("eps") + from_mean * from_mean;
  const Var variance = ops::sum(variances * weights, ranks, false) / n;
  follow(c, c.var("running_mean"), mean);
  follow(c, c.var("running_var"), variance * n / (n - 1.0));
  c.give(mean);
  c.give(ops::unary("rsqrt", variance + c.real("eps")));
}

void batch_norm_elemt(Call& c) {
  const Var x = c.var("input"), weight = c.var("weight"), bias = c.var("bias");
  if (x.absent()) return;
  const int rank = x.rank();
  Var y = (accumulated(x) - channels(c.var("mean"), rank)) * channels(c.var("invstd"), rank);
  if (!weight.absent()) y = y * channels(weight, rank);
  if (!bias.absent()) y = y + channels(bias, rank);
  c.give(ops::cast(y, x.dtype()));
}

void batch_norm_backward_reduce(Call& c) {
  const Var g = accumulated(c.var("grad_out")), x = accumulated(c.var("input"));
  const Var mean = c.var("mean"), deviation = c.var("invstd"), weight = c.var("weight");
  if (g.absent() || x.absent() || mean.absent()) return;
  const Dims dims = all_but_channels(x.rank());
  const Var total = ops::sum(g, dims, false);
  const Var with_x = ops::sum(g * (x - channels(mean, x.rank())), dims, false);
  const DType dtype = weight.absent() ? mean.dtype() : weight.dtype();
  c.flag("input_g") ? c.give(total) : c.give_nothing();
  c.flag("input_g") ? c.give(with_x) : c.give_nothing();
  c.flag("weight_g") ? c.give(ops::cast(with_x * deviation, dtype)) : c.give_nothing();
  c.flag("bias_g") ? c.give(ops::cast(total, dtype)) : c.give_nothing();
}

void batch_norm_backward_elemt(Call& c) {
  const Var g = c.var("grad_out"), x = c.var("input"), weight = c.var("weight");
  const Var deviation = c.var("invstd"), total = c.var("sum_dy"), count = c.var("count");
  if (g.absent() || x.absent() || total.absent() || count.absent()) return;
  const int rank = x.rank();
  const Var n = ops::sum(ops::cast(flat(count), total.dtype()), Dims{0}, false);
  const Var slope = deviation * deviation * c.var("sum_dy_xmu") / n;
  const Var from_mean = accumulated(x) - channels(c.var("mean"), rank);
  const Var centered =
      accumulated(g) - channels(total / n, rank) - from_mean * channels(slope, rank);
  const Var scale = weight.absent() ? deviation : deviation * weight;
  c.give(ops::cast(centered * channels(scale, rank), x.dtype()));
}

// Group norm is the layer norm of each group, and then a scale for each channel.
void group_norm(Call& c) {
  static const ops::OpRef op("layer_norm");
  const Var x = c.var("input");
  if (x.absent()) return;
  const std::int64_t n = c.integer("N"), groups = c.integer("group");
  const std::int64_t size = c.integer("C") / groups * c.integer("HxW");
  const Var arguments[] = {ops::reshape(x, Dims{n, groups, size}), Var(), Var()};
  const ops::Vars made =
      c.run_all(op, arguments, {Attribute::of(Dims{size}), Attribute::of(c.real("eps"))});
  if (made[0].absent()) return;
  Var y = ops::reshape(made[0], x.shape());
  if (const Var weight = c.var("weight"); !weight.absent()) y = y * channels(weight, x.rank());
  if (const Var bias = c.var("bias"); !bias.absent()) y = y + channels(bias, x.rank());
  c.give(ops::cast(y, x.dtype()));
  c.give(ops::reshape(made[1], Dims{n, groups}));
  c.give(ops::reshape(made[2], Dims{n, groups}));
}

void group_norm_backward(Call& c) {
  static const ops::OpRef op("layer_norm_backward");
  const Var g = c.var("grad_out"), x = c.var("input"), weight = c.var("weight");
  if (g.absent() || x.absent()) return;
  const std::int64_t n = c.integer("N"), groups = c.integer("group");
  const std::int64_t size = c.integer("C") / groups * c.integer("HxW");
  const Dims grouped{n, groups, size};
  const Var mean = ops::reshape(c.var("mean"), Dims{n, groups, 1});
  const Var rstd = ops::reshape(c.var("rstd"), Dims{n, groups, 1});
  const Var rows = ops::reshape(x, grouped);
  const Var scaled = weight.absent() ? g : g * channels(weight, x.rank());
  if (c.wanted(0) && !scaled.absent()) {
    const Var arguments[] = {ops::reshape(scaled, grouped), rows, Var(), mean, rstd};
    const ops::Vars made =
        c.run_all(op, arguments, {Attribute::of(Dims{size}), Attribute::of(1e-5)});
    c.give(made[0].absent() ? made[0] : ops::reshape(made[0], x.shape()));
  } else {
    c.give_nothing();
  }
  const Dims dims = all_but_channels(x.rank());
  if (c.wanted(1)) {
    const Var normal = (rows - mean) * rstd;
    if (!normal.absent()) c.give(ops::sum(g * ops::reshape(normal, x.shape()), dims, false));
  } else {
    c.give_nothing();
  }
  c.wanted(2) ? c.give(ops::sum(g, dims, false)) : c.give_nothing();
}

// ---- Weight normalization: v g / |v|, where each slice along a dimension has its norm |v|

// The sum of each slice along the argument `dim`, with the dimensions of x.
Var sum_of_slices(Call& c, const Var& x) {
  if (x.absent()) return {};
  const auto dim = dim_of(c, c.integer("dim"), x.rank());
  Dims others;
  for (int i = 0; dim && i < x.rank(); ++i) {
    if (i != *dim) others.push_back(i);
  }
  return others.empty() ? x : ops::sum(x, others, true);
}
void weight_norm(Call& c) {
  const Var v = c.var("v");
  const Var norms = ops::unary("sqrt", sum_of_slices(c, v * v));
  c.give(v * (c.var("g") / norms));
  c.give(norms);
}
void weight_norm_backward(Call& c) {
  const Var g = c.var("grad_w"), v = c.var("saved_v"), norms = c.var("saved_norms");
  const Var along = sum_of_slices(c, g * v) / norms;
  c.give((g - v * (along / norms)) * (c.var("saved_g") / norms));
  c.give(along);
}

// ---- Embeddings, dropout

void embedding_backward(Call& c) {
  static const ops::OpRef op("embedding_backward");
  Var g = c.var("grad_output");
  const Var indices = c.var("indices");
  const std::int64_t count = c.integer("num_weights");
  if (c.flag("scale_grad_by_freq")) g = per_occurrence(c, g, indices, count);
  c.give(c.run(op, {g, indices}, {Attribute::of(count), Attribute::of(c.integer("padding_idx"))}));
}

// The rows that `indices` name get at most the norm `max_norm`. An index that occurs twice
// writes the same row twice.
void embedding_renorm(Call& c) {
  static const ops::OpRef index_copy("index_copy");
  const Var weight = c.var("self"), indices = flat(c.var("indices"));
  const double most = c.real("max_norm");
  const Var rows = rows_at(weight, indices);
  const Var size = made("norm", {rows},
                        {Attribute::of(c.real("norm_type")), Attribute::of(Dims{1}),
                         Attribute::of(true), Attribute::none()});
  const Var factor = ops::unary("reciprocal", size + 1e-7) * most;
  const Var scaled = rows * ops::where(ops::binary("gt", size, most), factor, 1);
  c.run_inplace(index_copy, {weight, indices, scaled}, {Attribute::of(0)});
}

void dropout(Call& c) {
  static const ops::OpRef op("dropout"), clone("clone");
  const Var x = c.var("input");
  if (x.absent()) return;
  if (c.integer("train", 1) == 0) {
    c.give(c.run(clone, {x}));
    return c.give(
        ops::full(c.session, x.shape(), core::Number::of_bool(true), DType::kBool, c.device));
  }
  const ops::Vars made = c.run_all(op, {&x, 1}, c.with_random({Attribute::of(c.real("p"))}));
  c.give(made[0]);
  if (!made[1].absent()) {
    c.give(made[1].dtype() == DType::kBool ? made[1] : ops::cast(made[1], DType::kBool));
  }
}
void dropout_backward(Call& c) { c.give(c.var("grad_output") * c.var("mask") * c.real("scale")); }

// ---- Attention

double scale_of(Call& c, const Var& query) {
  const double size = static_cast<double>(query.shape()[query.rank() - 1]);
  return c.real("scale", 1 / std::sqrt(size));
}
// The mask as large as the scores, which have the batches and heads of the query, in their dtype.
Var mask_of(Call& c, const Var& query, const Var& key) {
  const Var mask = c.var("attn_bias");
  if (mask.absent() || query.absent() || key.absent()) return {};
  Dims shape = query.shape();
  shape[query.rank() - 1] = key.shape()[key.rank() - 2];
  const Var wide = mask.shape() == shape ? mask : ops::expand(mask, shape);
  return ops::cast(wide, is_half(query.dtype()) ? DType::kF32 : query.dtype());
}
void attention(Call& c) {
  static const ops::OpRef op("attention");
  const Var query = c.var("query");
  if (query.absent()) return;
  if (c.real("dropout_p") != 0) return c.fail(core::unimplemented("dropout inside attention"));
  const Var key = c.var("key");
  const Var arguments[] = {query, key, c.var("value"), mask_of(c, query, key)};
  const ops::Vars made = c.run_all(
      op, arguments, {Attribute::of(c.flag("is_causal")), Attribute::of(scale_of(c, query))});
  c.give(made[0]);
  c.give(made[1]);
  c.give_blank(DType::kI32);  // cumulated lengths of sequences, which have none here
  c.give_blank(DType::kI32);
  c.give_integer(query.shape()[query.rank() - 2]);
  c.give_integer(arguments[1].absent() ? 0 : arguments[1].shape()[arguments[1].rank() - 2]);
  c.give_blank(DType::kI64);  // the seed and offset of a dropout
  c.give_blank(DType::kI64);
  c.give_blank(query.dtype());
}
void attention_backward(Call& c) {
  const tt_value& mask = c.value("grad_input_mask");
  const Var bias = c.var("attn_bias"), query = c.var("query"), key = c.var("key");
  const Var operands[] = {query, key, c.var("value"), mask_of(c, query, key)};
  const Var g[] = {c.var("grad_out")};
  const Var results[] = {c.var("out"), c.var("logsumexp")};
  if (g[0].absent() || operands[0].absent()) return;
  std::uint32_t wants = 0;
  for (std::size_t i = 0; i < mask.count; ++i) wants |= mask.ints[i] != 0 ? 1u << i : 0u;
  const auto made =
      c.gradients("attention", operands,
                  {Attribute::of(c.flag("is_causal")), Attribute::of(scale_of(c, operands[0]))}, g,
                  wants, results);
  for (std::size_t i = 0; i < 3; ++i) made[i].absent() ? c.give_nothing() : c.give(made[i]);
  made[3].absent() ? c.give_nothing()
                   : c.give(ops::cast(ops::sum_to(made[3], bias.shape()), bias.dtype()));
}

// ---- Recurrent cells

Var with_bias(Call& c, std::string_view gates, std::string_view bias) {
  const Var added = c.var(bias);
  return added.absent() ? c.var(gates) : c.var(gates) + added;
}
Var joined(Call& c, std::initializer_list<Var> parts) {
  static const ops::OpRef cat("cat");
  const std::uint32_t counts[] = {static_cast<std::uint32_t>(parts.size())};
  for (const Var& each : parts) {
    if (each.absent()) return {};
  }
  return c.run_all(cat, std::span(parts.begin(), parts.size()), {Attribute::of(1)}, counts)[0];
}
Var columns(Call& c, const Var& x, std::int64_t start, std::int64_t length) {
  static const ops::OpRef slice("slice");
  if (x.absent()) return {};
  return c.run(slice, {x},
               {Attribute::of(1), Attribute::of(start), Attribute::of(length),
                Attribute::of(std::int64_t{1})});
}

// The third result is for the backward: the sums of the gates.
void lstm_cell(Call& c) {
  static const ops::OpRef op("lstm_gates");
  const Var input = with_bias(c, "input_gates", "input_bias");
  const Var hidden = with_bias(c, "hidden_gates", "hidden_bias");
  const Var arguments[] = {input, hidden, c.var("cx")};
  const ops::Vars made = c.run_all(op, arguments, {});
  c.give(made[0]);
  c.give(made[1]);
  c.give(input + hidden);
}
void lstm_cell_backward(Call& c) {
  static const ops::OpRef op("lstm_gates_backward");
  const Var cell = c.var("cx"), gates = c.var("workspace");
  if (cell.absent() || gates.absent()) return;
  const auto gradient = [&](std::string_view name) {
    const Var given = c.var(name);
    return given.absent() ? ops::zeros(c.session, cell.layout()) : given;
  };
  const Var arguments[] = {gradient("grad_hy"), gradient("grad_cy"), gates,
                           ops::zeros(c.session, gates.layout()), cell};
  const ops::Vars made = c.run_all(op, arguments, {});
  c.give(made[0]);
  c.give(made[1]);
  if (made[0].absent() || !c.flag("has_bias")) return c.give_nothing();
  c.give(ops::sum(made[0], Dims{0}, false));
}

void gru_cell(Call& c) {
  static const ops::OpRef op("gru_gates");
  const Var input = with_bias(c, "input_gates", "input_bias");
  const Var hidden = with_bias(c, "hidden_gates", "hidden_bias"), state = c.var("hx");
  c.give(c.run(op, {input, hidden, state}));
  c.give(joined(c, {input, hidden, state}));
}
void gru_cell_backward(Call& c) {
  static const ops::OpRef op("gru_gates_backward");
  const Var g = c.var("grad_hy"), workspace = c.var("workspace");
  if (g.absent() || workspace.absent()) return;
  const std::int64_t size = workspace.shape()[1] / 7;
  const Var arguments[] = {g, columns(c, workspace, 0, 3 * size),
                           columns(c, workspace, 3 * size, 3 * size),
                           columns(c, workspace, 6 * size, size)};
  const ops::Vars made = c.run_all(op, arguments, {});
  for (const Var& each : made) c.give(each);
  for (std::size_t i = 0; i < 2; ++i) {
    if (made[i].absent() || !c.flag("has_bias")) {
      c.give_nothing();
    } else {
      c.give(ops::sum(made[i], Dims{0}, false));
    }
  }
}

constexpr Row kNeuralRows[] = {
    {"mse_loss", "(self, target, reduction)"},
    {"mse_loss_backward", "(grad_output, self, target, reduction)"},
    {"smooth_l1_loss", "(self, target, reduction, beta)"},
    {"smooth_l1_loss_backward", "(grad_output, self, target, reduction, beta)", smooth_l1_backward},
    {"huber_loss", "(self, target, reduction, delta)"},
    {"huber_loss_backward", "(grad_output, self, target, reduction, delta)", huber_backward},
    {"binary_cross_entropy", "(self, target, weight, reduction)"},
    {"binary_cross_entropy_backward", "(grad_output, self, target, weight, reduction)",
     cross_entropy_backward},
    {"binary_cross_entropy_with_logits", "(self, target, weight, pos_weight, reduction)"},
    {"nll_loss_forward nll_loss2d_forward", "(self, target, weight, reduction, ignore_index)",
     nll_loss},
    {"nll_loss_backward nll_loss2d_backward",
     "(grad_output, self, target, weight, reduction, ignore_index | total_weight)",
     nll_loss_backward},
    {"native_layer_norm", "layer_norm(input, weight, bias, normalized_shape, eps)"},
    {"native_layer_norm_backward",
     "(grad_out, input, normalized_shape, mean, rstd, weight, output_mask | bias)",
     layer_norm_backward},
    {"native_batch_norm",
     "(input, weight, bias, running_mean, running_var, training, momentum, eps)", batch_norm},
    {"_native_batch_norm_legit",
     "(input, weight, bias, running_mean?, running_var?, training, momentum, eps)", batch_norm},
    {"_batch_norm_with_update", "(input, weight, bias, running_mean, running_var, momentum, eps)",
     batch_norm_with_update},
    {"batch_norm_backward",
     "(grad_out, input, weight, running_mean, running_var, save_mean, save_var, update, eps, "
     "output_mask | reserve)",
     batch_norm_backward},
    {"native_batch_norm_backward",
     "(grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps, "
     "output_mask)",
     batch_norm_backward},
    {"batch_norm_stats", "(input, eps)", batch_norm_stats},
    {"batch_norm_gather_stats_with_counts",
     "(mean, invstd, running_mean, running_var, momentum, eps, counts | input)",
     batch_norm_gather_stats},
    {"batch_norm_elemt", "(input, weight, bias, mean, invstd | eps)", batch_norm_elemt},
    {"batch_norm_backward_reduce",
     "(grad_out, input, mean, invstd, weight, input_g, weight_g, bias_g)",
     batch_norm_backward_reduce},
    {"batch_norm_backward_elemt",
     "(grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu, count)",
     batch_norm_backward_elemt},
    {"native_group_norm", "(input, weight, bias, N, C, HxW, group, eps)", group_norm},
    {"native_group_norm_backward",
     "(grad_out, input, mean, rstd, weight, N, C, HxW, group, output_mask)", group_norm_backward},
    {"_weight_norm_interface", "(v, g, dim)", weight_norm},
    {"_weight_norm_interface_backward", "(grad_w, saved_v, saved_g, saved_norms, dim)",
     weight_norm_backward},
    {"embedding", "(weight, indices, padding_idx | scale_grad_by_freq, sparse)"},
    {"embedding_dense_backward",
     "(grad_output, indices, num_weights, padding_idx, scale_grad_by_freq)", embedding_backward},
    {"embedding_renorm_", "(self, indices, max_norm, norm_type)", embedding_renorm},
    {"native_dropout", "(input, p, train)", dropout},
    {"native_dropout_backward", "(grad_output, mask, scale)", dropout_backward},
    {"_scaled_dot_product_fused_attention_overrideable",
     "(query, key, value, attn_bias, dropout_p, is_causal, scale | return_debug_mask)", attention},
    {"_scaled_dot_product_fused_attention_overrideable_backward",
     "(grad_out, query, key, value, attn_bias, grad_input_mask, out, logsumexp, is_causal, scale | "
     "cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, philox_seed, philox_offset)",
     attention_backward},
    {"_thnn_fused_lstm_cell", "(input_gates, hidden_gates, cx, input_bias, hidden_bias)",
     lstm_cell},
    {"_thnn_fused_lstm_cell_backward_impl", "(grad_hy, grad_cy, cx, workspace, has_bias | cy)",
     lstm_cell_backward},
    {"_thnn_fused_gru_cell", "(input_gates, hidden_gates, hx, input_bias, hidden_bias)", gru_cell},
    {"_thnn_fused_gru_cell_backward", "(grad_hy, workspace, has_bias)", gru_cell_backward},
};

}  // namespace

std::span<const Row> neural_rows() { return kNeuralRows; }

}  // namespace teletensor::torch
