// Pooling over the last 1 to 3 dimensions of [N, C, ...]. Kernels: backends/cpu/pooling.cc.
#include "engine/ops/families.h"
#include "engine/ops/functions.h"
#include "engine/ops/windows/windows.h"

namespace teletensor::ops {
namespace {

using core::Attribute;
using core::Dims;
using core::DType;
using core::Status;

// Checks for [N, C, ...] with `spatial` more dimensions, none of them empty, and a dtype that can
// be pooled.
Status check_pooled(const InferContext& c, std::size_t spatial) {
  if (spatial < 1 || spatial > 3) return c.fail("supports pooling over 1 to 3 dimensions");
  const Dims& x = c.shape(0);
  if (static_cast<std::size_t>(x.size()) != spatial + 2) {
    return c.fail("needs " + std::to_string(spatial + 2) + " dimensions, got input of shape " +
                  core::to_string(x));
  }
  if (!core::is_floating(c.dtype(0)) &&
      (!core::is_integral(c.dtype(0)) || c.dtype(0) == DType::kU64)) {
    return c.not_defined_for(c.dtype(0));
  }
  for (int d = 1; d < x.size(); ++d) {
    if (x[d] <= 0 || x[d] > kLargestWindowed) {
      return c.fail("needs sizes above 0 in every dimension but the batch, got input of shape " +
                    core::to_string(x));
    }
  }
  return {};
}

// Reads kernel_size, stride, padding (attributes 0 to 2) and dilation (attribute `dilation`, or
// ones).
Status pooled_shape(const InferContext& c, int dilation, bool ceil, Dims& shape) {
  const auto spatial = c.attributes.ints(0).size();
  TT_RETURN_IF_ERROR(check_pooled(c, spatial));
  const int n = static_cast<int>(spatial);
  Windows w;
  TT_RETURN_IF_ERROR(window_attribute(c, 0, "kernel_size", n, 1, w.kernel));
  TT_RETURN_IF_ERROR(window_attribute(c, 1, "stride", n, 1, w.stride));
  TT_RETURN_IF_ERROR(window_attribute(c, 2, "padding", n, 0, w.padding));
  w.dilation = Dims(n, 1);
  if (dilation >= 0) {
    TT_RETURN_IF_ERROR(
        window_attribute(c, static_cast<std::size_t>(dilation), "dilation", n, 1, w.dilation));
  }
  const Dims& x = c.shape(0);
  shape = Dims{x[0], x[1]};
  for (int d = 0; d < n; ++d) {
    if (w.padding[d] > window_span(w, d) / 2) {
      return c.fail("padding should be at most half of effective kernel size, but got padding " +
                    std::to_string(w.padding[d]) + " and kernel_size " +
                    std::to_string(w.kernel[d]) + " (dilation " + std::to_string(w.dilation[d]) +
                    ")");
    }
    const std::int64_t size = window_count(w, d, x[d + 2], ceil);
    if (size <= 0) {
      return c.fail("input of shape " + core::to_string(x) + ": no window of " +
                    std::to_string(window_span(w, d)) + " elements fits into dimension " +
                    std::to_string(d + 2) + ", the output would be too small");
    }
    shape.push_back(size);
  }
  return {};
}

Status max_pool_infer(InferContext& c) {
  Dims shape;
  TT_RETURN_IF_ERROR(pooled_shape(c, 3, c.attributes.boolean(4), shape));
  c.add_result(c.dtype(0), shape);
  c.add_result(DType::kI64, shape);
  return {};
}

// The sizes of N and C of operand 0, followed by the sizes in attribute `index`.
Status sized_shape(const InferContext& c, std::size_t index, std::string_view name, Dims& shape) {
  Dims sizes;
  const int n = static_cast<int>(c.attributes.ints(index).size());
  TT_RETURN_IF_ERROR(check_pooled(c, static_cast<std::size_t>(n)));
  TT_RETURN_IF_ERROR(window_attribute(c, index, name, n, 0, sizes));
  shape = Dims{c.shape(0)[0], c.shape(0)[1]};
  for (const std::int64_t size : sizes) shape.push_back(size);
  return {};
}

Status adaptive_max_infer(InferContext& c) {
  Dims shape;
  TT_RETURN_IF_ERROR(sized_shape(c, 0, "output_size", shape));
  c.add_result(c.dtype(0), shape);
  c.add_result(DType::kI64, shape);
  return {};
}

Status adaptive_avg_infer(InferContext& c) {
  Dims shape;
  if (!core::is_floating(c.dtype(0))) return c.floating_expected(c.dtype(0));
  TT_RETURN_IF_ERROR(sized_shape(c, 0, "output_size", shape));
  c.add_result(c.dtype(0), shape);
  return {};
}

Status adaptive_avg_backward_infer(InferContext& c) {
  Dims shape, sizes;
  if (!core::is_floating(c.dtype(0))) return c.floating_expected(c.dtype(0));
  const int n = static_cast<int>(c.attributes.ints(0).size());
  if (n < 1 || n > 3 || c.rank(0) != n + 2) return c.fail("the sizes do not match the gradient");
  TT_RETURN_IF_ERROR(window_attribute(c, 0, "input_size", n, 1, sizes));
  shape = Dims{c.shape(0)[0], c.shape(0)[1]};
  for (const std::int64_t size : sizes) shape.push_back(size);
  for (const std::int64_t size : c.shape(0)) {
    if (size >= std::int64_t{1} << 31) return c.fail("a size of the gradient is too large");
  }
  c.add_result(c.dtype(0), shape);
  return {};
}

Status fractional_infer(InferContext& c) {
  Dims shape, kernel;
  TT_RETURN_IF_ERROR(sized_shape(c, 1, "output_size", shape));
  const int n = shape.size() - 2;
  TT_RETURN_IF_ERROR(window_attribute(c, 0, "kernel_size", n, 1, kernel));
  const Dims& x = c.shape(0);
  for (int d = 0; d < n; ++d) {
    // As in PyTorch, which requires one element more in three dimensions.
    if (shape[d + 2] < 1 || kernel[d] + shape[d + 2] - 1 > x[d + 2] - (n == 3)) {
      return c.fail("pool size " + std::to_string(kernel[d]) + " and output size " +
                    std::to_string(shape[d + 2]) + " are too large for dimension " +
                    std::to_string(d + 2) + " of input of shape " + core::to_string(x));
    }
  }
  if (c.shape(1) != Dims{x[0], x[1], n} || c.dtype(1) != c.dtype(0)) {
    return c.fail("samples must have shape " + core::to_string(Dims{x[0], x[1], n}) +
                  " and the input's dtype, got " + core::to_string(c.shape(1)));
  }
  if (!core::is_floating(c.dtype(0))) return c.floating_expected(c.dtype(0));
  c.add_result(c.dtype(0), shape);
  c.add_result(DType::kI64, shape);
  return {};
}

Status unpool_infer(InferContext& c) {
  const Dims& x = c.shape(0);
  const int n = static_cast<int>(c.attributes.ints(0).size());
  if (n < 1 || n > 3 || x.size() != n + 2) {
    return c.fail("input of shape " + core::to_string(x) + " and " + std::to_string(n) +
                  " output sizes do not fit");
  }
  if (!core::is_floating(c.dtype(0)) && !core::is_integral(c.dtype(0))) {
    return c.not_defined_for(c.dtype(0));
  }
  if (c.dtype(1) != DType::kI64) return c.fail("indices must be int64");
  if (c.shape(1) != x) {
    return c.fail("indices of shape " + core::to_string(c.shape(1)) + " for input of shape " +
                  core::to_string(x));
  }
  Dims sizes;
  TT_RETURN_IF_ERROR(window_attribute(c, 0, "output_size", n, 0, sizes));
  Dims shape{x[0], x[1]};
  for (const std::int64_t size : sizes) shape.push_back(size);
  c.add_result(c.dtype(0), shape);
  return {};
}

Status avg_pool_infer(InferContext& c) {
  Dims shape;
  TT_RETURN_IF_ERROR(pooled_shape(c, -1, c.attributes.boolean(3), shape));
  if (c.attributes.has(5) && c.attributes.integer(5) == 0) {
    return c.fail("divisor must be not zero");
  }
  c.add_result(c.dtype(0), shape);
  return {};
}

// Attribute 6 is the shape of avg_pool's operand.
Status avg_pool_backward_infer(InferContext& c) {
  const auto size = c.attributes.ints(6);
  if (size.size() < 3 || size.size() > 5) return c.fail("input_size needs 3 to 5 numbers");
  const auto count = core::checked_numel(size);
  if (!count.ok()) return c.fail("input_size is out of range");
  core::Layout layout{c.dtype(0), {}, core::Geometry(Dims(size))};
  OperandInfo info;
  info.layout = &layout;
  InferContext forward{.op = c.op,
                       .operands = std::span<const OperandInfo>(&info, 1),
                       .counts = {},
                       .attributes = c.attributes,
                       .default_dtype = c.default_dtype,
                       .device = c.device,
                       .results = {}};
  TT_RETURN_IF_ERROR(avg_pool_infer(forward));
  if (forward.results[0].geometry.shape != c.shape(0)) {
    return c.fail("gradient of shape " + core::to_string(c.shape(0)) + ", expected " +
                  core::to_string(forward.results[0].geometry.shape));
  }
  c.add_result(c.dtype(0), Dims(size));
  return {};
}

// ---------------------------------------------------------------- derivatives

Attribute spatial_of(const Dims& shape) { return Attribute::of(shape.span().subspan(2)); }

// Reshapes [N, C, ...] to [N, C, all].
Var flat(const Var& x, const Dims& shape) {
  std::int64_t area = 1;
  for (int d = 2; d < shape.size(); ++d) area *= shape[d];
  return reshape(x, Dims{shape[0], shape[1], area});
}

void indexed_vjp(VjpContext& c) {
  static const OpRef op("max_unpool");
  c.give(0, apply(op, {c.gradient(), c.result(1)},
                  {spatial_of(c.operand_layout(0).geometry.shape), Attribute::of(true)}));
}

// Picks the tangent's elements at the saved positions.
void indexed_jvp(JvpContext& c) {
  static const OpRef op("gather");
  const Var dx = c.tangent(0), places = c.result(1);
  if (!dx.is_tensor() || !places.is_tensor()) return;
  const Dims shape = places.shape();
  c.give(0, reshape(apply(op, {flat(dx, dx.shape()), flat(places, shape)}, {Attribute::of(2)}),
                    shape));
}

void unpool_vjp(VjpContext& c) {
  static const OpRef op("gather");
  const Dims& x = c.operand_layout(0).geometry.shape;
  const Var g = c.gradient(), indices = c.operand(1);
  if (!g.is_tensor() || !indices.is_tensor()) return;
  c.give(0, reshape(apply(op, {flat(g, g.shape()), flat(indices, x)}, {Attribute::of(2)}), x));
}

void avg_pool_vjp(VjpContext& c) {
  static const OpRef op("avg_pool_backward");
  core::Attributes a = c.attributes();
  a.push_back(Attribute::of(c.operand_layout(0).geometry.shape));
  c.give(0, apply(op, {c.gradient()}, a));
}

void avg_pool_backward_vjp(VjpContext& c) {
  static const OpRef op("avg_pool");
  const auto& a = c.attributes();
  c.give(0, apply(op, {c.gradient()}, {a.at(0), a.at(1), a.at(2), a.at(3), a.at(4), a.at(5)}));
}

void adaptive_avg_vjp(VjpContext& c) {
  static const OpRef op("adaptive_avg_pool_backward");
  c.give(0, apply(op, {c.gradient()}, {spatial_of(c.operand_layout(0).geometry.shape)}));
}

void adaptive_avg_backward_vjp(VjpContext& c) {
  static const OpRef op("adaptive_avg_pool");
  c.give(0, apply(op, {c.gradient()}, {spatial_of(c.operand_layout(0).geometry.shape)}));
}

}  // namespace

std::vector<OpDef> pooling_ops() {
  const std::vector<Save> places = {{.slot = kResult + 1}};
  return {
      {.signature = "max_pool(Tensor x, int[] kernel_size, int[] stride, int[] padding, "
                    "int[] dilation, bool ceil_mode) -> (Tensor values, Tensor indices)",
       .doc = "The largest element of each window over the last dimensions of x [N, C, ...], and "
              "its place in them, seen as one. A NaN is the largest.",
       .infer = max_pool_infer,
       .vjp = indexed_vjp,
       .saves = places,
       .jvp = indexed_jvp,
       .batch =
           [](BatchContext& c) {
             static const OpRef op("max_pool");
             merge_batch(c, op);
           }},
      {.signature = "adaptive_max_pool(Tensor x, int[] output_size) -> (Tensor values, Tensor "
                    "indices)",
       .doc =
           "max_pool with windows from floor(i * size / output) to ceil((i + 1) * size / output).",
       .infer = adaptive_max_infer,
       .vjp = indexed_vjp,
       .saves = places,
       .jvp = indexed_jvp,
       .batch =
           [](BatchContext& c) {
             static const OpRef op("adaptive_max_pool");
             merge_batch(c, op);
           }},
      {.signature = "fractional_max_pool(Tensor x, Tensor samples, int[] kernel_size, "
                    "int[] output_size) -> (Tensor values, Tensor indices)",
       .doc = "max_pool with windows whose distances are pseudo-random (Graham 2014): samples [N, "
              "C, dimensions] in [0, 1) chooses them for each image.",
       .infer = fractional_infer,
       .vjp = indexed_vjp,
       .saves = places,
       .jvp = indexed_jvp,
       .batch =
           [](BatchContext& c) {
             static const OpRef op("fractional_max_pool");
             merge_batch(c, op, 2);
           }},
      {.signature = "max_unpool(Tensor x, Tensor indices, int[] output_size, "
                    "bool accumulate=False) -> Tensor",
       .doc = "Zeros [N, C, *output_size] with the elements of x at the indices (max_pool's); of "
              "equal places the last wins, with accumulate they add.",
       .infer = unpool_infer,
       .vjp = unpool_vjp,
       .saves = {{.slot = 1}},
       .batch =
           [](BatchContext& c) {
             static const OpRef op("max_unpool");
             merge_batch(c, op, 2);
           }},
      {.signature = "avg_pool(Tensor x, int[] kernel_size, int[] stride, int[] padding, "
                    "bool ceil_mode, bool count_include_pad, int? divisor_override=None) -> Tensor",
       .doc = "The mean of each window over the last dimensions of x [N, C, ...]; padding counts "
              "as zeros or, without count_include_pad, not at all.",
       .infer = avg_pool_infer,
       .vjp = avg_pool_vjp,
       .tangent = Tangent::kLinear,
       .batch =
           [](BatchContext& c) {
             static const OpRef op("avg_pool");
             merge_batch(c, op);
           }},
      {.signature = "avg_pool_backward(Tensor gradient, int[] kernel_size, int[] stride, "
                    "int[] padding, bool ceil_mode, bool count_include_pad, int? divisor_override, "
                    "int[] input_size) -> Tensor",
       .doc = "The adjoint of avg_pool.",
       .infer = avg_pool_backward_infer,
       .vjp = avg_pool_backward_vjp,
       .internal = true,
       .tangent = Tangent::kLinear},
      {.signature = "adaptive_avg_pool(Tensor x, int[] output_size) -> Tensor",
       .doc =
           "avg_pool with windows from floor(i * size / output) to ceil((i + 1) * size / output).",
       .infer = adaptive_avg_infer,
       .vjp = adaptive_avg_vjp,
       .tangent = Tangent::kLinear,
       .batch =
           [](BatchContext& c) {
             static const OpRef op("adaptive_avg_pool");
             merge_batch(c, op);
           }},
      {.signature = "adaptive_avg_pool_backward(Tensor gradient, int[] input_size) -> Tensor",
       .doc = "The adjoint of adaptive_avg_pool.",
       .infer = adaptive_avg_backward_infer,
       .vjp = adaptive_avg_backward_vjp,
       .internal = true,
       .tangent = Tangent::kLinear},
  };
}

}  // namespace teletensor::ops
