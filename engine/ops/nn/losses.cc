// Losses; each is a single op. Kernels: backends/cpu/losses*.cc.
#include "engine/ops/families.h"
#include "engine/ops/functions.h"
#include "engine/ops/reduction/reduce_dims.h"

namespace teletensor::ops {
namespace {

using core::Attribute;
using core::Dims;
using core::DType;
using core::Status;

// ---------------------------------------------------------------- inference

Status check_reduction(const InferContext& c, std::size_t at) {
  const std::string_view text = c.attributes.text(at);
  if (text == "mean" || text == "sum" || text == "none") return {};
  return c.fail("reduction is 'none', 'mean' or 'sum', got '" + std::string(text) + "'");
}

Status check_floating(const InferContext& c, DType dtype) {
  if (core::is_floating(dtype)) return {};
  return c.floating_expected(dtype);
}
Status check_floating(const InferContext& c, std::size_t i) {
  return check_floating(c, c.dtype(i));
}

Status check_pair(const InferContext& c, std::size_t a, std::size_t b) {
  if (c.shape(a) == c.shape(b)) return {};
  return c.fail("input and target must have the same shape: " + core::to_string(c.shape(a)) +
                " and " + core::to_string(c.shape(b)));
}

// Operands: input, target, and then weights that broadcast to them. The reduction is attribute
// `at`.
Status pointwise(InferContext& c, std::size_t at) {
  TT_RETURN_IF_ERROR(check_pair(c, 0, 1));
  TT_RETURN_IF_ERROR(check_reduction(c, at));
  for (std::size_t i = 2; i < c.operands.size(); ++i) {
    if (c.operands[i].absent()) continue;
    const auto shape = core::broadcast_shapes(c.shape(0), c.shape(i), c.op);
    if (!shape.ok()) return shape.status();
    if (*shape != c.shape(0)) {
      return c.fail("a weight of shape " + core::to_string(c.shape(i)) +
                    " does not broadcast to the input, " + core::to_string(c.shape(0)));
    }
    TT_RETURN_IF_ERROR(check_floating(c, i));
  }
  const DType dtype = core::promote(c.dtype(0), c.dtype(1));
  TT_RETURN_IF_ERROR(check_floating(c, dtype));
  c.add_result(dtype, c.attributes.text(at) == "none" ? c.shape(0) : Dims());
  return {};
}

template <std::size_t kReductionAt>
Status pointwise_infer(InferContext& c) {
  return pointwise(c, kReductionAt);
}

// smooth_l1 and huber: attribute 1 is the width of the quadratic part.
Status smooth_infer(InferContext& c) {
  const double width = c.attributes.real(1);
  const bool zero_allowed = c.op == "smooth_l1_loss";
  if (!(width > 0 || (zero_allowed && width == 0))) {
    return c.fail("the width must be positive, got " + std::to_string(width));
  }
  return pointwise(c, 0);
}

Status mse_backward_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(check_pair(c, 1, 2));
  TT_RETURN_IF_ERROR(check_reduction(c, 0));
  const Dims expected = c.attributes.text(0) == "none" ? c.shape(1) : Dims();
  if (c.shape(0) != expected) {
    return c.fail("the gradient has shape " + core::to_string(c.shape(0)) + ", expected " +
                  core::to_string(expected));
  }
  const DType dtype = core::promote(core::promote(c.dtype(0), c.dtype(1)), c.dtype(2));
  TT_RETURN_IF_ERROR(check_floating(c, dtype));
  c.add_result(dtype, c.shape(1));
  return {};
}

// The shapes of a loss over classes: the input is (N, C, d1, ...), (N, C) or (C).
struct ClassShapes {
  int dim = 0;  // the dimension of the classes
  Dims lines;   // the shape without that dimension
  std::int64_t classes = 0;
};

core::Result<ClassShapes> class_shapes(const InferContext& c, const Dims& input) {
  if (input.empty()) return c.fail("expected an input with a class dimension, got a 0-d tensor");
  ClassShapes s;
  s.dim = input.size() == 1 ? 0 : 1;
  s.classes = input[s.dim];
  if (s.classes == 0)
    return c.fail("expected at least one class, got shape " + core::to_string(input));
  s.lines = input;
  s.lines.erase(s.dim);
  return s;
}

Status check_classes(const InferContext& c, const Dims& input, std::size_t target,
                     std::size_t weight, bool probabilities_allowed, ClassShapes& out) {
  const auto shapes = class_shapes(c, input);
  if (!shapes.ok()) return shapes.status();
  out = *shapes;
  if (core::is_floating(c.dtype(target))) {
    if (!probabilities_allowed) {
      return c.fail("expected a target of class indices, got " +
                    std::string(core::name_of(c.dtype(target))));
    }
    if (c.shape(target) != input) {
      return c.fail("class probabilities must have the input's shape: " + core::to_string(input) +
                    " and " + core::to_string(c.shape(target)));
    }
    if (c.attributes.integer(0) >= 0)
      return c.fail("ignore_index is not supported for floating point target");
  } else {
    if (!core::is_integral(c.dtype(target))) {
      return c.fail("expected class indices, got " + std::string(core::name_of(c.dtype(target))));
    }
    if (c.shape(target) != out.lines) {
      return c.fail("an input of shape " + core::to_string(input) + " takes a target of shape " +
                    core::to_string(out.lines) + ", got " + core::to_string(c.shape(target)));
    }
  }
  if (!c.operands[weight].absent()) {
    if (c.shape(weight) != Dims{out.classes}) {
      return c.fail("weight must have one element a class (" + std::to_string(out.classes) +
                    "), got shape " + core::to_string(c.shape(weight)));
    }
    TT_RETURN_IF_ERROR(check_floating(c, weight));
  }
  return {};
}

// Attributes: ignore_index, reduction[, label_smoothing].
Status class_loss_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(check_floating(c, 0));
  TT_RETURN_IF_ERROR(check_reduction(c, 1));
  const bool smoothing = c.attributes.size() > 2;
  ClassShapes s;
  TT_RETURN_IF_ERROR(check_classes(c, c.shape(0), 1, 2, smoothing, s));
  if (smoothing && !(c.attributes.real(2) >= 0 && c.attributes.real(2) <= 1)) {
    return c.fail("label_smoothing must be between 0 and 1, got " +
                  std::to_string(c.attributes.real(2)));
  }
  c.add_result(c.dtype(0), c.attributes.text(1) == "none" ? s.lines : Dims());
  return {};
}

Status check_gradient(const InferContext& c, std::string_view reduction, const Dims& lines) {
  const Dims expected = reduction == "none" ? lines : Dims();
  if (c.shape(0) != expected) {
    return c.fail("the gradient has shape " + core::to_string(c.shape(0)) + ", expected " +
                  core::to_string(expected));
  }
  return check_floating(c, 0);
}

// Operands: gradient, input, target, weight. With `keep` the result keeps the class dimension.
Status cross_entropy_gradient(InferContext& c, bool keep) {
  TT_RETURN_IF_ERROR(check_floating(c, 1));
  TT_RETURN_IF_ERROR(check_reduction(c, 1));
  ClassShapes s;
  TT_RETURN_IF_ERROR(check_classes(c, c.shape(1), 2, 3, true, s));
  TT_RETURN_IF_ERROR(check_gradient(c, c.attributes.text(1), s.lines));
  Dims shape = c.shape(1);
  if (!keep) shape[s.dim] = 1;
  c.add_result(c.dtype(1), shape);
  return {};
}

// Operands: gradient, target, weight; attributes: size, ignore_index, reduction.
Status nll_backward_infer(InferContext& c) {
  const auto size = c.attributes.ints(0);
  if (size.size() > static_cast<std::size_t>(core::kMaxRank))
    return c.fail("size has too many dims");
  const auto elements = core::checked_numel(size);
  if (!elements.ok()) return c.fail(elements.status().message());
  TT_RETURN_IF_ERROR(check_reduction(c, 2));
  ClassShapes s;
  TT_RETURN_IF_ERROR(check_classes(c, Dims(size), 1, 2, false, s));
  TT_RETURN_IF_ERROR(check_gradient(c, c.attributes.text(2), s.lines));
  c.add_result(c.dtype(0), Dims(size));
  return {};
}

// ---------------------------------------------------------------- derivatives

// The gradient of each element's loss; for the reduction 'mean' it is divided by the number of
// elements.
Var per_element(VjpContext& c, std::size_t reduction_at) {
  const Var g = c.gradient();
  if (c.attributes().text(reduction_at) != "mean") return g;
  return g / Var(static_cast<double>(core::numel(c.operand_layout(0).geometry.shape)));
}

void mse_vjp(VjpContext& c) {
  static const OpRef op("mse_loss_backward");
  const Var d = apply(op, {c.gradient(), c.operand(0), c.operand(1)}, {c.attributes().at(0)});
  c.give(0, d);
  if (c.needs(1)) c.give(1, -d);
}

// d = s * g * (input - target), where s is 2 or 2 / n.
void mse_backward_vjp(VjpContext& c) {
  static const OpRef op("mse_loss_backward");
  const Var h = c.gradient();
  double s = 2;
  if (c.attributes().text(0) == "mean") {
    s /= static_cast<double>(core::numel(c.operand_layout(1).geometry.shape));
  }
  if (c.needs(0)) c.give(0, h * ((c.operand(1) - c.operand(2)) * Var(s)));
  if (c.needs(1) || c.needs(2)) {
    const Var d = h * (c.operand(0) * Var(s));
    c.give(1, d);
    if (c.needs(2)) c.give(2, -d);
  }
}

void give_difference(VjpContext& c, const Var& slope) {
  const Var d = slope * per_element(c, 0);
  c.give(0, d);
  if (c.needs(1)) c.give(1, -d);
}

void l1_vjp(VjpContext& c) { give_difference(c, unary("sign", c.operand(0) - c.operand(1))); }

void smooth_l1_vjp(VjpContext& c) {
  const double beta = c.attributes().real(1);
  const Var z = c.operand(0) - c.operand(1);
  if (beta == 0) return give_difference(c, unary("sign", z));
  const Var inside = binary("lt", unary("abs", z), Var(beta));
  give_difference(c, where(inside, z / Var(beta), unary("sign", z)));
}

void huber_vjp(VjpContext& c) {
  const double delta = c.attributes().real(1);
  const Var z = c.operand(0) - c.operand(1);
  const Var inside = binary("le", unary("abs", z), Var(delta));
  give_difference(c, where(inside, z, unary("sign", z) * Var(delta)));
}

// (x - t) / (x (1 - x)), where the divisor is kept away from 0 as in PyTorch.
void bce_vjp(VjpContext& c) {
  const Var x = c.operand(0), t = c.operand(1), weight = c.operand(2);
  Var g = per_element(c, 0);
  if (weight.is_tensor()) g = g * weight;
  if (c.needs(0)) {
    const Var divisor = binary("maximum", x * (Var(1) - x), Var(1e-12));
    c.give(0, g * (x - t) / divisor);
  }
  if (c.needs(1)) c.give(1, g * (unary("log1p", -x) - unary("log", x)));
  if (c.needs(2)) {
    static const OpRef op("binary_cross_entropy");
    c.give(2, per_element(c, 0) * apply(op, {x, t, Var()}, {Attribute::of("none")}));
  }
}

void bce_logits_vjp(VjpContext& c) {
  const Var x = c.operand(0), t = c.operand(1), weight = c.operand(2), positive = c.operand(3);
  Var g = per_element(c, 0);
  if (weight.is_tensor()) g = g * weight;
  if (c.needs(0)) {
    const Var p = unary("sigmoid", x);
    if (positive.is_tensor()) {
      c.give(0, g * ((positive * t + Var(1) - t) * p - positive * t));
    } else {
      c.give(0, g * (p - t));
    }
  }
  if (c.needs(2)) {
    static const OpRef op("binary_cross_entropy_with_logits");
    c.give(2, per_element(c, 0) * apply(op, {x, t, Var(), positive}, {Attribute::of("none")}));
  }
  if (c.needs(1) || c.needs(3)) {
    // The derivatives of -(pos t log(p) + (1 - t) log(1 - p)) by t and by pos.
    if (positive.is_tensor()) {
      const Var low = binary("minimum", x, Var(0)) -
                      unary("log1p", unary("exp", -unary("abs", x)));  // log(sigmoid(x))
      if (c.needs(1)) c.give(1, g * ((low - x) - positive * low));
      if (c.needs(3)) c.give(3, -(g * t * low));
    } else {
      c.give(1, -(g * x));
    }
  }
}

void kl_div_vjp(VjpContext& c) {
  const bool logarithm = c.attributes().boolean(1);
  const Var x = c.operand(0), t = c.operand(1);
  const Var g = per_element(c, 0);
  if (c.needs(0)) {
    c.give(0, -(g * (logarithm ? unary("exp", t) : t)));
  }
  if (!c.needs(1)) return;
  if (logarithm) {
    c.give(1, g * unary("exp", t) * (t - x + Var(1)));
  } else {
    // xlogy keeps a gradient of 0 where the target has no logarithm.
    const Var slope = binary("xlogy", g, t) + g * (Var(1) - x);
    c.give(1, where(binary("ne", t, Var(0)), slope, Var(0)));
  }
}

// Multiplies d by the factor of the class probabilities: weight * (1 - smoothing) * gradient of the
// line.
Var per_probability(const core::Attributes& a, const Var& d, const Var& weight, const Var& g) {
  const Dims& shape = d.shape();
  const int dim = shape.size() == 1 ? 0 : 1;
  Var scaled = d * Var(1 - a.real(2));
  if (weight.is_tensor()) {
    Dims column(shape.size() - dim, 1);
    column[0] = shape[dim];
    scaled = scaled * reshape(weight, column);
  }
  if (a.text(1) == "none") return scaled * unsqueeze(g, dim);
  if (a.text(1) == "sum") return scaled * g;
  const std::int64_t lines = core::numel(shape) / std::max<std::int64_t>(shape[dim], 1);
  return scaled * (g / Var(static_cast<double>(lines)));
}

// ---------------------------------------------------------------- weights of classes

Var sum_but(const Var& x, int dim) {
  Dims others;
  for (int d = 0; d < x.rank(); ++d) {
    if (d != dim) others.push_back(d);
  }
  return others.empty() ? x : sum(x, others, false);
}

// The gradient of g * loss by the class weights, for a loss that is linear in y: y contains
// log-probabilities (or their tangents). Attributes: ignore_index, reduction[, label_smoothing].
Var by_class_weight(const core::Attributes& a, const Var& y, const Var& target, const Var& weight,
                    const Var& g) {
  static const OpRef nll("nll_loss"), nll_backward("nll_loss_backward");
  const int dim = y.rank() == 1 ? 0 : 1;
  const auto classes = static_cast<double>(y.shape()[dim]);
  const double smoothing = a.size() > 2 ? a.real(2) : 0;
  const bool none = a.text(1) == "none", mean = a.text(1) == "mean";
  if (core::is_floating(target.dtype())) {
    const double lines = mean ? static_cast<double>(core::numel(y.shape())) / classes : 1;
    const Var share = target * Var(1 - smoothing) + Var(smoothing / classes);
    return sum_but(-(y * share) * (none ? unsqueeze(g, dim) : g / Var(lines)), dim);
  }
  const auto loss = [&](const Var& x, const Var& by, const char* reduction) {
    return apply(nll, {x, target, by}, {a.at(0), Attribute::of(reduction)});
  };
  const Var minus_one =
      full(*y.builder(), y.shape(), core::Number::of_int(-1), y.dtype(), y.layout().device);
  // One value per line; zero for ignored lines.
  Var line = loss(y, Var(), "none") * Var(1 - smoothing);
  Var spread;  // the smoothed part, for every class
  if (smoothing != 0) {
    const Var counts = unsqueeze(loss(minus_one, Var(), "none"), dim);
    spread = where(binary("ne", counts, Var(0)), -(y * Var(smoothing / classes)), Var(0));
  }
  Var factor = g;
  if (mean) {  // the loss is (sum of the lines) / total, where `total` is the sum of their weights
    const Var total = loss(minus_one, weight, "sum");
    Var value = loss(y, weight, "sum") * Var(1 - smoothing);
    if (smoothing != 0) {
      Dims column(y.rank() - dim, 1);
      column[0] = y.shape()[dim];
      Dims every;
      for (int d = 0; d < y.rank(); ++d) every.push_back(d);
      value = value + sum(spread * reshape(weight, column), every, false);
    }
    line = line - value / total;
    factor = g / total;
  }
  const Var of_lines = apply(nll_backward, {line * factor, target, Var()},
                             {Attribute::of(y.shape()), a.at(0), Attribute::of("none")});
  const Var all = -of_lines;
  if (spread.absent()) return sum_but(all, dim);
  return sum_but(all + spread * (none ? unsqueeze(factor, dim) : factor), dim);
}

void cross_entropy_vjp(VjpContext& c) {
  static const OpRef op("cross_entropy_backward"), log_softmax("log_softmax");
  const core::Attributes& a = c.attributes();
  const Var x = c.operand(0), target = c.operand(1), weight = c.operand(2), g = c.gradient();
  if (c.needs(0)) c.give(0, apply(op, {g, x, target, weight}, a));
  if (!c.needs(1) && !c.needs(2)) return;
  const Var y = apply(log_softmax, {x}, {Attribute::of(x.rank() == 1 ? 0 : 1)});
  if (c.needs(1)) c.give(1, -per_probability(a, y, weight, g));
  if (c.needs(2)) c.give(2, by_class_weight(a, y, target, weight, g));
}

// The op is linear in the gradient. By the input, it is a row's factor times the derivative of its
// softmax.
void cross_entropy_backward_vjp(VjpContext& c) {
  static const OpRef op("cross_entropy_backward"), factors("cross_entropy_factors"),
      softmax("softmax"), softmax_backward("softmax_backward");
  const core::Attributes& a = c.attributes();
  const Var g = c.operand(0), x = c.operand(1), target = c.operand(2), weight = c.operand(3),
            h = c.gradient();
  const int dim = x.rank() == 1 ? 0 : 1;
  if (c.needs(0)) {
    const core::Layout& like = c.operand_layout(0);
    const Var ones =
        full(c.builder(), like.geometry.shape, core::Number::of_int(1), like.dtype, like.device);
    const Var unit = h * apply(op, {ones, x, target, weight}, a);
    c.give(0, a.text(1) == "none" ? sum(unit, Dims{dim}, false) : unit);
  }
  if (!c.needs(1) && !c.needs(2) && !c.needs(3)) return;
  const Var p = apply(softmax, {x}, {Attribute::of(dim)});
  if (c.needs(1)) {
    c.give(1, apply(softmax_backward, {h, p}, {Attribute::of(dim)}) *
                  apply(factors, {g, x, target, weight}, a));
  }
  if (c.needs(2)) {
    c.give(2, per_probability(a, sum(h * p, Dims{dim}, true) - h, weight, g));
  }
  if (c.needs(3)) {  // h . (gradient by x) is g times the loss of the tangent of log_softmax
    c.give(3, by_class_weight(a, h - sum(h * p, Dims{dim}, true), target, weight, g));
  }
}

void nll_vjp(VjpContext& c) {
  static const OpRef op("nll_loss_backward");
  const core::Attributes& a = c.attributes();
  c.give(0, apply(op, {c.gradient(), c.operand(1), c.operand(2)},
                  {Attribute::of(c.operand_layout(0).geometry.shape), a.at(0), a.at(1)}));
  if (c.needs(2)) {
    c.give(2, by_class_weight(a, c.operand(0), c.operand(1), c.operand(2), c.gradient()));
  }
}

void nll_backward_vjp(VjpContext& c) {
  static const OpRef op("nll_loss");
  const core::Attributes& a = c.attributes();
  c.give(0, apply(op, {c.gradient(), c.operand(1), c.operand(2)}, {a.at(1), a.at(2)}));
  if (c.needs(2)) {
    c.give(2, by_class_weight({a.at(1), a.at(2)}, c.gradient(), c.operand(1), c.operand(2),
                              c.operand(0)));
  }
}

}  // namespace

std::vector<OpDef> loss_ops() {
  const std::vector<Save> pair = {{.slot = 0}, {.slot = 1}};
  const std::vector<Save> three = {{.slot = 0}, {.slot = 1}, {.slot = 2}};
  const std::vector<Save> of_weights = {{0, bit(2)}, {1}, {2}};
  const std::vector<Save> four = {{.slot = 0}, {.slot = 1}, {.slot = 2}, {.slot = 3}};
  return {
      {.signature = "mse_loss(Tensor input, Tensor target, str reduction='mean') -> Tensor",
       .doc = "(input - target)^2, averaged, summed or as it is.",
       .infer = pointwise_infer<0>,
       .vjp = mse_vjp,
       .saves = pair},
      {.signature = "mse_loss_backward(Tensor gradient, Tensor input, Tensor target, "
                    "str reduction) -> Tensor",
       .doc = "The derivative of mse_loss by its input: 2 (input - target), over n for 'mean'.",
       .infer = mse_backward_infer,
       .vjp = mse_backward_vjp,
       .saves = three,
       .internal = true},
      {.signature = "l1_loss(Tensor input, Tensor target, str reduction='mean') -> Tensor",
       .doc = "|input - target|, averaged, summed or as it is.",
       .infer = pointwise_infer<0>,
       .vjp = l1_vjp,
       .saves = pair},
      {.signature = "smooth_l1_loss(Tensor input, Tensor target, str reduction='mean', "
                    "float beta=1.0) -> Tensor",
       .doc = "z^2 / (2 beta) where |z| < beta, else |z| - beta / 2, with z = input - target.",
       .infer = smooth_infer,
       .vjp = smooth_l1_vjp,
       .saves = pair},
      {.signature = "huber_loss(Tensor input, Tensor target, str reduction='mean', "
                    "float delta=1.0) -> Tensor",
       .doc = "z^2 / 2 where |z| <= delta, else delta (|z| - delta / 2), with z = input - target.",
       .infer = smooth_infer,
       .vjp = huber_vjp,
       .saves = pair},
      {.signature = "binary_cross_entropy(Tensor input, Tensor target, Tensor? weight=None, "
                    "str reduction='mean') -> Tensor",
       .doc = "-(t log(x) + (1 - t) log(1 - x)) * weight for probabilities x between 0 and 1; "
              "logarithms below -100 count as -100.",
       .infer = pointwise_infer<0>,
       .vjp = bce_vjp,
       .saves = three},
      {.signature = "binary_cross_entropy_with_logits(Tensor input, Tensor target, "
                    "Tensor? weight=None, Tensor? pos_weight=None, str reduction='mean') -> Tensor",
       .doc = "binary_cross_entropy of sigmoid(input), computed without overflow; pos_weight "
              "multiplies the positive part.",
       .infer = pointwise_infer<0>,
       .vjp = bce_logits_vjp,
       .saves = four},
      {.signature = "kl_div(Tensor input, Tensor target, str reduction='mean', "
                    "bool log_target=False) -> Tensor",
       .doc =
           "target (log(target) - input) with input a logarithm; with log_target the target is one "
           "too.",
       .infer = pointwise_infer<0>,
       .vjp = kl_div_vjp,
       .saves = pair},
      {.signature =
           "cross_entropy(Tensor input, Tensor target, Tensor? weight=None, int ignore_index=-100, "
           "str reduction='mean', float label_smoothing=0.0) -> Tensor",
       .doc =
           "-log_softmax(input)[target] * weight over classes in dim 1 (dim 0 of a 1-d input). "
           "target holds class indices, or probabilities of the input's shape. 'mean' is weighted.",
       .infer = class_loss_infer,
       .vjp = cross_entropy_vjp,
       .saves = three},
      {.signature =
           "cross_entropy_backward(Tensor gradient, Tensor input, Tensor target, Tensor? weight, "
           "int ignore_index, str reduction, float label_smoothing) -> Tensor",
       .doc = "The derivative of cross_entropy by its input.",
       .infer = [](InferContext& c) { return cross_entropy_gradient(c, true); },
       .vjp = cross_entropy_backward_vjp,
       .saves = four,
       .internal = true},
      refusing({.signature = "cross_entropy_factors(Tensor gradient, Tensor input, Tensor target, "
                             "Tensor? weight, int ignore_index, str reduction, "
                             "float label_smoothing) -> Tensor",
                .doc = "What the softmax of each line is multiplied with in "
                       "cross_entropy_backward.",
                .infer = [](InferContext& c) { return cross_entropy_gradient(c, false); },
                .internal = true}),
      {.signature = "nll_loss(Tensor input, Tensor target, Tensor? weight=None, "
                    "int ignore_index=-100, str reduction='mean') -> Tensor",
       .doc = "-input[target] * weight over classes in dim 1 (dim 0 of a 1-d input). 'mean' is "
              "weighted.",
       .infer = class_loss_infer,
       .vjp = nll_vjp,
       .saves = of_weights},
      {.signature = "nll_loss_backward(Tensor gradient, Tensor target, Tensor? weight, int[] size, "
                    "int ignore_index, str reduction) -> Tensor",
       .doc = "The derivative of nll_loss by its input, whose shape is size.",
       .infer = nll_backward_infer,
       .vjp = nll_backward_vjp,
       .saves = of_weights,
       .internal = true},
  };
}

}  // namespace teletensor::ops
