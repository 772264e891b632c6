// Convolutions, poolings, paddings and resampling.

#include "clients/torch/call.h"

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
int spatial(const Call& c) {
  return c.name().find("3d") != std::string_view::npos ? 3 : 2;
}
Dims last(const Dims& sizes, int count) {
  Dims all;
  for (int i = sizes.size() - count; i < sizes.size(); ++i) all.push_back(sizes[i]);
  return all;
}

void convolution(Call& c) {
  static const ops::OpRef op("convolution");
  const Var weight = c.var("weight");
  if (weight.absent()) return;
  const int n = weight.rank() - 2;
  c.give(c.run(op, {c.var("input"), weight, c.var("bias")},
               {Attribute::of(for_each(c.ints("stride"), n)),
                Attribute::of(for_each(c.ints("padding"), n)),
                Attribute::of(for_each(c.ints("dilation"), n)), Attribute::of(c.flag("transposed")),
                Attribute::of(for_each(c.ints("output_padding"), n)),
                Attribute::of(c.integer("groups")), Attribute::none()}));
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
  const Var x = c.var("self");
  const ops::Vars made = c.run_all(
      op, {&x, 1},
      {Attribute::of(for_each(c.ints("kernel_size"), n)), stride_of(c, n),
       Attribute::of(for_each(c.ints("padding"), n)), Attribute::of(for_each(c.ints("dilation"), n)),
       Attribute::of(c.flag("ceil_mode"))});
  c.give(made[0]);
  c.give(made[1]);
}
void unpool(Call& c) {
  static const ops::OpRef op("max_unpool");
  const Dims sizes = sizes_of(c.value("self").tensor);
  c.give(c.run(op, {c.var("grad_output"), c.var("indices")},
               {Attribute::of(last(sizes, spatial(c))), Attribute::of(true)}));
}

Attributes average(const Call& c) {
  const int n = spatial(c);
  return {Attribute::of(for_each(c.ints("kernel_size"), n)), stride_of(c, n),
          Attribute::of(for_each(c.ints("padding"), n)), Attribute::of(c.flag("ceil_mode")),
          Attribute::of(c.flag("count_include_pad")),
          c.absent("divisor_override") ? Attribute::none()
                                       : Attribute::of(c.integer("divisor_override"))};
}
void avg_pool(Call& c) {
  static const ops::OpRef op("avg_pool");
  c.give(c.run(op, {c.var("self")}, average(c)));
}
void avg_pool_backward(Call& c) {
  const Var operands[] = {c.var("self")};
  const Var g[] = {c.var("grad_output")};
  if (!operands[0].absent()) c.give(c.gradients("avg_pool", operands, average(c), g, 1)[0]);
}
void adaptive_avg_pool(Call& c) {
  static const ops::OpRef op("adaptive_avg_pool");
  c.give(c.run(op, {c.var("self")}, {Attribute::of(for_each(c.ints("output_size"), spatial(c)))}));
}
void adaptive_avg_pool_backward(Call& c) {
  const Var operands[] = {c.var("self")};
  const Var g[] = {c.var("grad_output")};
  if (operands[0].absent() || g[0].absent()) return;
  const Attributes attributes{Attribute::of(last(g[0].shape(), spatial(c)))};
  c.give(c.gradients("adaptive_avg_pool", operands, attributes, g, 1)[0]);
}
void adaptive_max_pool(Call& c) {
  static const ops::OpRef op("adaptive_max_pool");
  const Var x = c.var("self");
  const ops::Vars made = c.run_all(
      op, {&x, 1}, {Attribute::of(for_each(c.ints("output_size"), spatial(c)))});
  c.give(made[0]);
  c.give(made[1]);
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
    {"constant_pad_nd", "(self, value, pad)"},
    {"im2col", "(self, kernel_size, dilation, padding, stride)"},
    {"col2im", "(self, output_size, kernel_size, dilation, padding, stride)"},
};

}  // namespace

std::span<const Row> window_rows() { return kWindowRows; }

}  // namespace teletensor::torch
