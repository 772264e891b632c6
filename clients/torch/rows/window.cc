// Convolutions, poolings, paddings and resampling.

#include "clients/torch/compose.h"

namespace teletensor::torch {
namespace {

using core::Attribute;
using core::Attributes;
using core::Dims;

// A list for `count` dimensions, of which torch lets one number stand for all.
Dims for_each(const Dims& given, int count) {
  if (given.size() != 1 || count == 1) return given;
  Dims all;
  for (int i = 0; i < count; ++i) all.push_back(given[0]);
  return all;
}
// How many dimensions a pooling has, from the name of its operator.
int spatial(const Call& c) { return c.name().find("3d") != std::string_view::npos ? 3 : 2; }
Dims last(const Dims& sizes, int count) {
  Dims all;
  for (int i = sizes.size() - count; i < sizes.size(); ++i) all.push_back(sizes[i]);
  return all;
}

// With a dimension for the batch, and results without it where there was none.
Var batched(const Var& x, int n) { return batch_of(x, n + 2); }
Var as_batched(const Var& made, const Var& x, int n) { return unbatched(made, x, n + 2); }

void convolution(Call& c) {
  static const ops::OpRef op("convolution");
  const Var weight = c.var("weight");
  if (weight.absent()) return;
  const int n = weight.rank() - 2;
  c.give(c.run(
      op, {c.var("input"), weight, c.var("bias")},
      {Attribute::of(for_each(c.ints("stride"), n)), Attribute::of(for_each(c.ints("padding"), n)),
       Attribute::of(for_each(c.ints("dilation"), n)), Attribute::of(c.flag("transposed")),
       Attribute::of(for_each(c.ints("output_padding"), n)), Attribute::of(c.integer("groups")),
       Attribute::none()}));
}
void convolution_backward(Call& c) {
  const Var operands[] = {c.var("input"), c.var("weight"), Var()};
  const Var g[] = {c.var("grad_output")};
  if (operands[0].absent() || operands[1].absent() || g[0].absent()) return;
  const int n = operands[1].rank() - 2;
  const std::uint32_t wants = (c.wanted(0) ? 1u : 0u) | (c.wanted(1) ? 2u : 0u);
  const auto made = c.gradients(
      "convolution", operands,
      {Attribute::of(for_each(c.ints("stride"), n)), Attribute::of(for_each(c.ints("padding"), n)),
       Attribute::of(for_each(c.ints("dilation"), n)), Attribute::of(c.flag("transposed")),
       Attribute::of(for_each(c.ints("output_padding"), n)), Attribute::of(c.integer("groups")),
       Attribute::none()},
      g, wants);
  for (std::size_t i = 0; i < 2; ++i) c.wanted(i) ? c.give(made[i]) : c.give_nothing();
  if (!c.wanted(2)) return c.give_nothing();
  Dims others{0};
  for (int i = 2; i < g[0].rank(); ++i) others.push_back(i);
  c.give(ops::sum(g[0], others, false));
}

Attribute stride_of(const Call& c, int n) {
  const Dims given = c.ints("stride");
  return Attribute::of(for_each(given.empty() ? c.ints("kernel_size") : given, n));
}
void max_pool(Call& c) {
  static const ops::OpRef op("max_pool");
  const int n = spatial(c);
  const Var x = c.var("self"), whole = batched(x, n);
  const ops::Vars made = c.run_all(
      op, {&whole, 1},
      {Attribute::of(for_each(c.ints("kernel_size"), n)), stride_of(c, n),
       Attribute::of(for_each(c.ints("padding"), n)),
       Attribute::of(for_each(c.ints("dilation"), n)), Attribute::of(c.flag("ceil_mode"))});
  for (const Var& each : made) c.give(as_batched(each, x, n));
}
void unpool(Call& c) {
  static const ops::OpRef op("max_unpool");
  const int n = spatial(c);
  const Var g = c.var("grad_output");
  const Attribute sizes = Attribute::of(last(sizes_of(c.value("self").tensor), n));
  const Var made =
      c.run(op, {batched(g, n), batched(c.var("indices"), n)}, {sizes, Attribute::of(true)});
  c.give(as_batched(made, g, n));
}

// The inverse of a pooling: the elements at their indices, zeros elsewhere.
void max_unpool(Call& c) {
  const int n = spatial(c);
  const Var x = c.var("self");
  const Var found = made("max_unpool", {batched(x, n), batched(c.var("indices"), n)},
                         {Attribute::of(c.ints("output_size"))});
  c.give(as_batched(found, x, n));
}
void fractional_max_pool(Call& c) {
  const int n = spatial(c);
  const Var x = c.var("self"), whole = batched(x, n), samples = c.var("random_samples");
  // PyTorch accepts samples of a larger batch, and uses the first of them.
  const bool larger = samples.rank() == 3 && size_of(samples, 0) > size_of(whole, 0);
  const Var used = larger ? slice(samples, 0, 0, size_of(whole, 0)) : samples;
  const ops::Vars found = all_made("fractional_max_pool", {whole, used},
                                   {Attribute::of(for_each(c.ints("kernel_size"), n)),
                                    Attribute::of(for_each(c.ints("output_size"), n))});
  for (const Var& each : found) c.give(as_batched(each, x, n));
}

Attributes average(const Call& c) {
  const int n = spatial(c);
  return {Attribute::of(for_each(c.ints("kernel_size"), n)),
          stride_of(c, n),
          Attribute::of(for_each(c.ints("padding"), n)),
          Attribute::of(c.flag("ceil_mode")),
          Attribute::of(c.flag("count_include_pad")),
          c.absent("divisor_override") ? Attribute::none()
                                       : Attribute::of(c.integer("divisor_override"))};
}
void avg_pool(Call& c) {
  static const ops::OpRef op("avg_pool");
  const int n = spatial(c);
  const Var x = c.var("self");
  c.give(as_batched(c.run(op, {batched(x, n)}, average(c)), x, n));
}
void avg_pool_backward(Call& c) {
  const Var x = c.var("self"), gradient = c.var("grad_output");
  if (x.absent() || gradient.absent()) return;
  const int n = spatial(c);
  const Var operands[] = {batched(x, n)}, g[] = {batched(gradient, n)};
  c.give(as_batched(c.gradients("avg_pool", operands, average(c), g, 1)[0], x, n));
}
void adaptive_avg_pool(Call& c) {
  static const ops::OpRef op("adaptive_avg_pool");
  const int n = spatial(c);
  const Var x = c.var("self");
  c.give(as_batched(c.run(op, {batched(x, n)}, {Attribute::of(for_each(c.ints("output_size"), n))}),
                    x, n));
}
void adaptive_avg_pool_backward(Call& c) {
  const Var operands[] = {c.var("self")};
  const Var g[] = {c.var("grad_output")};
  if (operands[0].absent() || g[0].absent()) return;
  const int n = spatial(c);
  const Attributes attributes{Attribute::of(last(g[0].shape(), n))};
  const Var whole[] = {batched(operands[0], n)}, gradient[] = {batched(g[0], n)};
  c.give(as_batched(c.gradients("adaptive_avg_pool", whole, attributes, gradient, 1)[0],
                    operands[0], n));
}
void adaptive_max_pool(Call& c) {
  static const ops::OpRef op("adaptive_max_pool");
  const int n = spatial(c);
  const Var x = c.var("self"), whole = batched(x, n);
  const ops::Vars made =
      c.run_all(op, {&whole, 1}, {Attribute::of(for_each(c.ints("output_size"), n))});
  c.give(as_batched(made[0], x, n));
  c.give(as_batched(made[1], x, n));
}

// ---- Paddings that repeat elements: a choice of places for each dimension

std::vector<std::int64_t> places(std::int64_t size, std::int64_t before, std::int64_t after,
                                 bool reflects) {
  std::vector<std::int64_t> all;
  for (std::int64_t at = -before; at < size + after; ++at) {
    std::int64_t place = at;
    if (place < 0) place = reflects ? -place : 0;
    if (place >= size) place = reflects ? 2 * (size - 1) - place : size - 1;
    all.push_back(place);
  }
  return all;
}
struct Padded {
  int dim;
  Var places;
};
// The padded dimensions, last first, as `padding` counts them. Refuses what has no element to
// repeat.
std::vector<Padded> padded(Call& c, const Dims& sizes) {
  const bool reflects = c.name().starts_with("reflection");
  const Dims padding = c.ints("padding");
  std::vector<Padded> all;
  for (int i = 0; 2 * i + 1 < padding.size(); ++i) {
    const int dim = sizes.size() - 1 - i;
    const std::int64_t size = dim < 0 ? 0 : sizes[dim];
    const std::int64_t before = padding[2 * i], after = padding[2 * i + 1];
    if (size < 1 || size + before + after < 1 || (reflects && (before >= size || after >= size))) {
      c.fail(core::unimplemented("this padding"));  // torch on the CPU has it, or its error
      return {};
    }
    const auto chosen = places(size, before, after, reflects);
    auto made =
        c.session.constant(DType::kI64, c.device, Dims{static_cast<std::int64_t>(chosen.size())},
                           std::string(reinterpret_cast<const char*>(chosen.data()),
                                       chosen.size() * sizeof chosen[0]));
    if (!made.ok()) return c.fail(made.status()), all;
    all.push_back({dim, Var(&c.session, *made)});
  }
  return all;
}
void pad(Call& c) {
  static const ops::OpRef select("index_select");
  Var x = c.var("self");
  if (x.absent()) return;
  const auto dims = padded(c, x.shape());
  for (const Padded& each : dims) {
    x = c.run(select, {x, each.places}, {Attribute::of(each.dim)});
  }
  if (!dims.empty()) c.give(x);
}
void pad_backward(Call& c) {
  static const ops::OpRef add("index_add");
  Var g = c.var("grad_output");
  if (g.absent()) return;
  const Dims sizes = sizes_of(c.value("self").tensor);
  const auto dims = padded(c, sizes);
  for (const Padded& each : dims) {
    if (g.absent()) return;
    Dims shape = g.shape();
    shape[each.dim] = sizes[each.dim];
    const Var zeros = ops::full(c.session, shape, core::Number::of_int(0), g.dtype(), c.device);
    g = c.run(add, {zeros, each.places, g}, {Attribute::of(each.dim), Attribute::of(1.0)});
  }
  if (!dims.empty()) c.give(g);
}

constexpr Row kWindowRows[] = {
    {"convolution_overrideable",
     "(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)",
     convolution},
    {"convolution_backward_overrideable",
     "(grad_output, input, weight, stride, padding, dilation, transposed, output_padding, groups, "
     "output_mask)",
     convolution_backward},
    {"max_pool2d_with_indices max_pool3d_with_indices",
     "(self, kernel_size, stride, padding, dilation, ceil_mode)", max_pool},
    {"max_pool2d_with_indices_backward max_pool3d_with_indices_backward",
     "(grad_output, self, indices | kernel_size, stride, padding, dilation, ceil_mode)", unpool},
    {"adaptive_max_pool2d adaptive_max_pool3d", "(self, output_size)", adaptive_max_pool},
    {"adaptive_max_pool2d_backward adaptive_max_pool3d_backward", "(grad_output, self, indices)",
     unpool},
    {"max_unpool2d max_unpool3d", "(self, indices, output_size | stride, padding)", max_unpool},
    {"fractional_max_pool2d fractional_max_pool3d",
     "(self, kernel_size, output_size, random_samples)", fractional_max_pool},
    {"fractional_max_pool2d_backward fractional_max_pool3d_backward",
     "(grad_output, self, indices | kernel_size, output_size)", unpool},
    {"avg_pool2d avg_pool3d",
     "(self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)",
     avg_pool},
    {"avg_pool2d_backward avg_pool3d_backward",
     "(grad_output, self, kernel_size, stride, padding, ceil_mode, count_include_pad, "
     "divisor_override)",
     avg_pool_backward},
    {"_adaptive_avg_pool2d _adaptive_avg_pool3d", "(self, output_size)", adaptive_avg_pool},
    {"_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward", "(grad_output, self)",
     adaptive_avg_pool_backward},
    {"reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d "
     "replication_pad3d",
     "(self, padding)", pad},
    {"reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward "
     "replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward",
     "(grad_output, self, padding)", pad_backward},
    {"constant_pad_nd", "(self, value, pad)"},
    {"im2col", "im2col(self, kernel_size, dilation, padding, stride)", by_parts},
    {"col2im", "col2im(self, output_size, kernel_size, dilation, padding, stride)", by_parts},
};

}  // namespace

std::span<const Row> window_rows() { return kWindowRows; }

}  // namespace teletensor::torch
