// Convolutions of 1 to 3 dimensions. There are three bilinear maps of input, weight and output, and
// each is the derivative of the others: the convolution, its transpose, and the map that gives the
// gradient of the weight. Kernels: backends/cpu/conv.cc.
#include <algorithm>

#include "engine/ops/families.h"
#include "engine/ops/functions.h"
#include "engine/ops/windows/windows.h"

namespace teletensor::ops {
namespace {

using core::Attribute;
using core::Attributes;
using core::Dims;
using core::Status;

// The attributes of convolution.
enum : std::size_t { kStride, kPadding, kDilation, kTransposed, kOutputPadding, kGroups, kTf32 };

Status check_dtypes(InferContext& c) {
  const core::DType dtype = c.dtype(0);
  if (!core::is_floating(dtype) && !core::is_integral(dtype)) return c.not_defined_for(dtype);
  for (std::size_t i = 1; i < c.operands.size(); ++i) {
    if (!c.operands[i].absent() && c.dtype(i) != dtype) {
      return c.fail("operands have different dtypes: " + std::string(core::name_of(dtype)) +
                    " and " + std::string(core::name_of(c.dtype(i))));
    }
  }
  return {};
}

Status check_sizes(const InferContext& c, const Dims& shape) {
  for (const std::int64_t size : shape) {
    if (size > kLargestWindowed)
      return c.fail("a size of " + core::to_string(shape) + " is too large");
  }
  return {};
}

Status check_groups(const InferContext& c, std::int64_t groups) {
  if (groups > 0) return {};
  return c.fail("groups must be positive, got " + std::to_string(groups));
}

Status convolution_infer(InferContext& c) {
  const Dims &x = c.shape(0), &weight = c.shape(1);
  const int spatial = weight.size() - 2;
  if (spatial < 1 || spatial > 3) {
    return c.fail("weight needs 3 to 5 dimensions, got shape " + core::to_string(weight));
  }
  if (x.size() != weight.size()) {
    return c.fail("weight of shape " + core::to_string(weight) +
                  " needs an input with as many dimensions, got " + core::to_string(x));
  }
  TT_RETURN_IF_ERROR(check_dtypes(c));
  Windows w;
  Dims extra;
  TT_RETURN_IF_ERROR(window_attribute(c, kStride, "stride", spatial, 1, w.stride));
  TT_RETURN_IF_ERROR(window_attribute(c, kPadding, "padding", spatial, 0, w.padding));
  TT_RETURN_IF_ERROR(window_attribute(c, kDilation, "dilation", spatial, 1, w.dilation));
  TT_RETURN_IF_ERROR(window_attribute(c, kOutputPadding, "output_padding", spatial, 0, extra));
  const std::int64_t groups = c.attributes.integer(kGroups);
  TT_RETURN_IF_ERROR(check_groups(c, groups));
  TT_RETURN_IF_ERROR(check_sizes(c, x));
  TT_RETURN_IF_ERROR(check_sizes(c, weight));
  const bool transposed = c.attributes.boolean(kTransposed);
  if (weight[0] % groups != 0) {
    return c.fail("weight of shape " + core::to_string(weight) +
                  ": its first size is not a multiple of groups=" + std::to_string(groups));
  }
  std::int64_t channels;
  const bool overflow = __builtin_mul_overflow(weight[1], groups, &channels);
  if (overflow || x[1] != (transposed ? weight[0] : channels)) {
    return c.fail(
        "input of shape " + core::to_string(x) + " has " + std::to_string(x[1]) +
        " channels, but weight of shape " + core::to_string(weight) +
        " with groups=" + std::to_string(groups) + " takes " +
        (overflow ? "more than 2^63" : std::to_string(transposed ? weight[0] : channels)));
  }
  Dims shape{x[0], transposed ? channels : weight[0]};
  for (int d = 0; d < spatial; ++d) {
    w.kernel.push_back(weight[d + 2]);
    if (w.kernel[d] < 1 || w.kernel[d] >= std::int64_t{1} << 31) {
      return c.fail("weight of shape " + core::to_string(weight) +
                    ": kernel sizes must be positive and below 2^31");
    }
    if (!transposed) {
      const std::int64_t size = window_count(w, d, x[d + 2]);
      if (size <= 0) {
        return c.fail("kernel spans " + std::to_string(window_span(w, d)) +
                      " elements of dimension " + std::to_string(d + 2) + ", but input of shape " +
                      core::to_string(x) + " with padding " + std::to_string(w.padding[d]) +
                      " has only " + std::to_string(x[d + 2] + 2 * w.padding[d]));
      }
      shape.push_back(size);
      continue;
    }
    if (extra[d] >= std::max(w.stride[d], w.dilation[d])) {
      return c.fail("output_padding must be smaller than either stride or dilation, got " +
                    std::to_string(extra[d]));
    }
    std::int64_t size;
    if (x[d + 2] < 1 || __builtin_mul_overflow(x[d + 2] - 1, w.stride[d], &size) ||
        size > kLargestWindowed) {
      return c.fail("input of shape " + core::to_string(x) + ": no result for stride " +
                    std::to_string(w.stride[d]));
    }
    size += window_span(w, d) + extra[d] - 2 * w.padding[d];
    if (size <= 0) {
      return c.fail("input of shape " + core::to_string(x) + " would give " + std::to_string(size) +
                    " elements in dimension " + std::to_string(d + 2));
    }
    shape.push_back(size);
  }
  if (!c.operands[2].absent() && c.shape(2) != Dims{shape[1]}) {
    return c.fail("bias must have shape " + core::to_string(Dims{shape[1]}) + ", got " +
                  core::to_string(c.shape(2)));
  }
  c.add_result(c.dtype(0), shape);
  return {};
}

Status weight_infer(InferContext& c) {
  const Dims &x = c.shape(0), &g = c.shape(1);
  const int spatial = x.size() - 2;
  if (spatial < 1 || spatial > 3 || g.size() != x.size() || g[0] != x[0]) {
    return c.fail("input of shape " + core::to_string(x) + " and gradient of shape " +
                  core::to_string(g) + " do not belong together");
  }
  TT_RETURN_IF_ERROR(check_dtypes(c));
  TT_RETURN_IF_ERROR(check_sizes(c, x));
  TT_RETURN_IF_ERROR(check_sizes(c, g));
  Windows w;
  TT_RETURN_IF_ERROR(window_attribute(c, 0, "kernel_size", spatial, 1, w.kernel));
  TT_RETURN_IF_ERROR(window_attribute(c, 1, "stride", spatial, 1, w.stride));
  TT_RETURN_IF_ERROR(window_attribute(c, 2, "padding", spatial, 0, w.padding));
  TT_RETURN_IF_ERROR(window_attribute(c, 3, "dilation", spatial, 1, w.dilation));
  const std::int64_t groups = c.attributes.integer(4);
  TT_RETURN_IF_ERROR(check_groups(c, groups));
  if (x[1] % groups != 0 || g[1] % groups != 0) {
    return c.fail("channels of " + core::to_string(x) + " and " + core::to_string(g) +
                  " are not multiples of groups=" + std::to_string(groups));
  }
  Dims shape{g[1], x[1] / groups};
  for (int d = 0; d < spatial; ++d) {
    if (g[d + 2] > window_count(w, d, x[d + 2])) {
      return c.fail("gradient of shape " + core::to_string(g) +
                    " has more windows than input of shape " + core::to_string(x));
    }
    shape.push_back(w.kernel[d]);
  }
  c.add_result(c.dtype(0), shape);
  return {};
}

// ---------------------------------------------------------------- derivatives

struct Settings {
  Attribute stride, padding, dilation, groups;
  bool tf32;
};

Attributes with_tf32(Attributes attributes, const Settings& s) {
  if (s.tf32) attributes.push_back(Attribute::of(true));
  return attributes;
}

Attribute same(int count, std::int64_t value) { return Attribute::of(Dims(count, value)); }

// Cuts x to the spatial sizes of `shape`.
Var cut(Var x, const Dims& shape) {
  static const OpRef slice("slice");
  if (!x.is_tensor()) return x;
  for (int d = 2; d < shape.size(); ++d) {
    if (x.shape()[d] == shape[d]) continue;
    x = apply(slice, {x}, {Attribute::of(d), Attribute::of(0), Attribute::of(shape[d])});
  }
  return x;
}

// Computes the output from the input.
Var output_of(const Var& x, const Var& weight, const Settings& s, const Dims& shape) {
  static const OpRef op("convolution");
  if (!weight.is_tensor()) return {};
  return cut(apply(op, {x, weight, Var()},
                   with_tf32({s.stride, s.padding, s.dilation, Attribute::of(false),
                              same(weight.rank() - 2, 0), s.groups},
                             s)),
             shape);
}

// Computes the input, of the given shape, from the output.
Var input_of(const Var& g, const Var& weight, const Settings& s, const Dims& shape) {
  static const OpRef op("convolution");
  if (!weight.is_tensor() || !g.is_tensor()) return {};
  Dims extra;
  for (int d = 0; d + 2 < shape.size(); ++d) {
    const auto at = static_cast<std::size_t>(d);
    extra.push_back(shape[d + 2] - (g.shape()[d + 2] - 1) * s.stride.ints[at] +
                    2 * s.padding.ints[at] - s.dilation.ints[at] * (weight.shape()[d + 2] - 1) - 1);
  }
  return apply(op, {g, weight, Var()},
               with_tf32({s.stride, s.padding, s.dilation, Attribute::of(true),
                          Attribute::of(extra), s.groups},
                         s));
}

Var weight_of(const Var& x, const Var& g, const Settings& s, const Dims& shape) {
  static const OpRef op("convolution_weight");
  Dims kernel;
  for (int d = 2; d < shape.size(); ++d) kernel.push_back(shape[d]);
  return apply(op, {x, g},
               with_tf32({Attribute::of(kernel), s.stride, s.padding, s.dilation, s.groups}, s));
}

void convolution_vjp(VjpContext& c) {
  const auto& a = c.attributes();
  const Settings s{a.at(kStride), a.at(kPadding), a.at(kDilation), a.at(kGroups), flag(a, kTf32)};
  const bool transposed = a.boolean(kTransposed);
  const Dims &x = c.operand_layout(0).geometry.shape, &weight = c.operand_layout(1).geometry.shape;
  const Var g = c.gradient();
  // The weight's gradient is computed first: then the input can be freed before the gradient of the
  // input takes memory.
  if (c.needs(1)) {
    c.give(1, transposed ? weight_of(g, c.operand(0), s, weight)
                         : weight_of(c.operand(0), g, s, weight));
  }
  if (c.needs(0)) {
    c.give(0, transposed ? output_of(g, c.operand(1), s, x) : input_of(g, c.operand(1), s, x));
  }
  if (c.needs(2)) {
    Dims others{0};
    for (int d = 2; d < x.size(); ++d) others.push_back(d);
    c.give(2, sum(g, others, false));
  }
}

void weight_vjp(VjpContext& c) {
  const auto& a = c.attributes();
  const Settings s{a.at(1), a.at(2), a.at(3), a.at(4), flag(a, 5)};
  const Var h = c.gradient();
  if (c.needs(0)) {
    c.give(0, input_of(c.operand(1), h, s, c.operand_layout(0).geometry.shape));
  }
  if (c.needs(1)) {
    c.give(1, output_of(c.operand(0), h, s, c.operand_layout(1).geometry.shape));
  }
}

void convolution_jvp(JvpContext& c) {
  static const OpRef op("convolution");
  Var total;
  const auto add = [&](const Var& part) { total = total.absent() ? part : total + part; };
  const auto& a = c.attributes();
  if (const Var dx = c.tangent(0); !dx.absent()) add(apply(op, {dx, c.operand(1), Var()}, a));
  if (const Var dw = c.tangent(1); !dw.absent()) add(apply(op, {c.operand(0), dw, Var()}, a));
  if (const Var db = c.tangent(2); !db.absent()) {
    const Dims shape = c.result(0).shape();
    Dims wide(shape.size(), 1);
    wide[1] = shape.size() > 1 ? shape[1] : 1;
    add(expand(reshape(db, wide), shape));
  }
  c.give(0, total);
}

void convolution_batch(BatchContext& c) {
  static const OpRef op("convolution");
  merge_batch(c, op);
}

}  // namespace

std::vector<OpDef> conv_ops() {
  const std::vector<Save> each_other = {{.slot = 0, .when = bit(1)}, {.slot = 1, .when = bit(0)}};
  return {
      {.signature = "convolution(Tensor input, Tensor weight, Tensor? bias=None, int[] stride, "
                    "int[] padding, int[] dilation, bool transposed, int[] output_padding, "
                    "int groups, bool? tf32=None) -> Tensor",
       .doc = "Cross-correlation of input [N, C, ...] with weight [O, C / groups, ...] over 1 to 3 "
              "dimensions, plus bias [O]; transposed: its adjoint, weight [C, O / groups, ...].",
       .infer = convolution_infer,
       .vjp = convolution_vjp,
       .saves = each_other,
       .jvp = convolution_jvp,
       .batch = convolution_batch},
      {.signature = "convolution_weight(Tensor input, Tensor gradient, int[] kernel_size, "
                    "int[] stride, int[] padding, int[] dilation, int groups, "
                    "bool? tf32=None) -> Tensor",
       .doc = "The derivative of a convolution by its weight.",
       .infer = weight_infer,
       .vjp = weight_vjp,
       .saves = each_other,
       .internal = true,
       .tangent = Tangent::kMultilinear},
  };
}

}  // namespace teletensor::ops
