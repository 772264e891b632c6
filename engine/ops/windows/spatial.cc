// Padding, im2col and col2im, and resampling. Kernels: backends/cpu/spatial.cc.
#include "engine/ops/families.h"
#include "engine/ops/functions.h"
#include "engine/ops/pointwise/elementwise.h"
#include "engine/ops/windows/resample.h"
#include "engine/ops/windows/windows.h"

namespace teletensor::ops {
namespace {

using core::Attribute;
using core::Dims;
using core::Status;

// ---------------------------------------------------------------- padding

Status pad_infer(InferContext& c) {
  const auto pad = c.attributes.ints(0);
  if (c.operands[1].tensor()) return c.fail("value must be a number");
  TT_RETURN_IF_ERROR(check_number(c, 1, c.dtype(0)));
  if (pad.size() % 2 != 0) {
    return c.fail("pad needs an even number of entries, got " + std::to_string(pad.size()));
  }
  if (pad.size() / 2 > static_cast<std::size_t>(c.rank(0))) {
    return c.fail("pad has " + std::to_string(pad.size()) + " entries, input of shape " +
                  core::to_string(c.shape(0)) + " takes at most " + std::to_string(2 * c.rank(0)));
  }
  Dims shape = c.shape(0);
  for (std::size_t i = 0; i < pad.size() / 2; ++i) {
    const int d = c.rank(0) - 1 - static_cast<int>(i);
    std::int64_t size;
    if (__builtin_add_overflow(shape[d], pad[2 * i], &size) ||
        __builtin_add_overflow(size, pad[2 * i + 1], &size) || size < 0) {
      return c.fail("pad [" + std::to_string(pad[2 * i]) + ", " + std::to_string(pad[2 * i + 1]) +
                    "] of dimension " + std::to_string(d) + " gives no size for input of shape " +
                    core::to_string(shape));
    }
    shape[d] = size;
  }
  c.add_result(c.dtype(0), shape);
  return {};
}

void pad_vjp(VjpContext& c) {
  static const OpRef op("constant_pad_nd");
  Attribute turned = c.attributes().at(0);
  for (std::int64_t& p : turned.ints) p = -p;
  c.give(0, apply(op, {c.gradient(), Var(0)}, {turned}));
}

// ---------------------------------------------------------------- im2col and col2im

struct Columns {
  Windows windows;
  Dims counts;  // number of windows per dimension
  std::int64_t taps = 1, total = 1;
};

// The attributes from `first` on are kernel_size, dilation, padding and stride.
Status read_columns(const InferContext& c, std::size_t first, const Dims& sizes, Columns& to) {
  Windows& w = to.windows;
  TT_RETURN_IF_ERROR(window_attribute(c, first, "kernel_size", 2, 1, w.kernel));
  TT_RETURN_IF_ERROR(window_attribute(c, first + 1, "dilation", 2, 1, w.dilation));
  TT_RETURN_IF_ERROR(window_attribute(c, first + 2, "padding", 2, 0, w.padding));
  TT_RETURN_IF_ERROR(window_attribute(c, first + 3, "stride", 2, 1, w.stride));
  for (int d = 0; d < 2; ++d) {
    if (sizes[d] < 0 || sizes[d] > kLargestWindowed) {
      return c.fail("sizes " + core::to_string(sizes) + " are out of range");
    }
    to.counts.push_back(window_count(w, d, sizes[d]));
    if (to.counts[d] <= 0) {
      return c.fail("no window of " + std::to_string(window_span(w, d)) + " elements fits into " +
                    std::to_string(sizes[d]) + " with padding " + std::to_string(w.padding[d]));
    }
  }
  to.taps = w.kernel[0] * w.kernel[1];
  if (__builtin_mul_overflow(to.counts[0], to.counts[1], &to.total)) {
    return c.fail("too many windows");
  }
  return {};
}

Status im2col_infer(InferContext& c) {
  const Dims& x = c.shape(0);
  TT_RETURN_IF_ERROR(c.not_complex());
  if (x.size() != 4)
    return c.fail("needs 4 dimensions [N, C, H, W], got shape " + core::to_string(x));
  Columns columns;
  TT_RETURN_IF_ERROR(read_columns(c, 0, Dims{x[2], x[3]}, columns));
  std::int64_t rows;
  if (__builtin_mul_overflow(x[1], columns.taps, &rows)) return c.fail("the result is too large");
  c.add_result(c.dtype(0), Dims{x[0], rows, columns.total});
  return {};
}

Status col2im_infer(InferContext& c) {
  const Dims& x = c.shape(0);
  TT_RETURN_IF_ERROR(c.not_complex());
  if (x.size() != 3)
    return c.fail("needs 3 dimensions [N, C * taps, L], got shape " + core::to_string(x));
  const auto size = c.attributes.ints(0);
  if (size.size() != 2) return c.fail("output_size needs 2 numbers");
  Columns columns;
  TT_RETURN_IF_ERROR(read_columns(c, 1, Dims(size), columns));
  if (x[1] % columns.taps != 0) {
    return c.fail("dimension 1 of input of shape " + core::to_string(x) + " is not a multiple of " +
                  std::to_string(columns.taps) + ", the elements of a window");
  }
  if (x[2] != columns.total) {
    return c.fail("input of shape " + core::to_string(x) + " has " + std::to_string(x[2]) +
                  " windows, the sizes ask for " + std::to_string(columns.total));
  }
  c.add_result(c.dtype(0), Dims{x[0], x[1] / columns.taps, size[0], size[1]});
  return {};
}

void im2col_vjp(VjpContext& c) {
  static const OpRef op("col2im");
  const auto& a = c.attributes();
  const Dims& x = c.operand_layout(0).geometry.shape;
  c.give(0, apply(op, {c.gradient()},
                  {Attribute::of(Dims{x[2], x[3]}), a.at(0), a.at(1), a.at(2), a.at(3)}));
}

void col2im_vjp(VjpContext& c) {
  static const OpRef op("im2col");
  const auto& a = c.attributes();
  c.give(0, apply(op, {c.gradient()}, {a.at(1), a.at(2), a.at(3), a.at(4)}));
}

// ---------------------------------------------------------------- resampling

Status resample_common(InferContext& c) {
  if (c.rank(0) == 0) return c.fail("needs at least 1 dimension");
  TT_RETURN_IF_ERROR(c.not_complex());
  TT_RETURN_IF_ERROR(core::normalize_dim(c.attributes.integer(0), c.rank(0), c.op).status());
  const auto mode = resample_mode(c.attributes.text(2));
  if (!mode) return c.fail("no mode '" + std::string(c.attributes.text(2)) + "'");
  const bool nearest = *mode == ResampleMode::kNearest || *mode == ResampleMode::kNearestExact;
  if (!core::is_floating(c.dtype(0)) && !nearest) {
    return c.floating_expected(c.dtype(0));
  }
  if (nearest && (c.attributes.boolean(3) || c.attributes.boolean(4))) {
    return c.fail("align_corners and antialias are not for nearest");
  }
  const std::int64_t size = c.attributes.integer(1);
  const int d = static_cast<int>((c.attributes.integer(0) + c.rank(0)) % c.rank(0));
  if (size <= 0 || size > (std::int64_t{1} << 40) || c.shape(0)[d] <= 0 ||
      c.shape(0)[d] > (std::int64_t{1} << 40)) {
    return c.fail("input and output sizes must be greater than 0, got " +
                  std::to_string(c.shape(0)[d]) + " and " + std::to_string(size));
  }
  Dims shape = c.shape(0);
  shape[d] = size;
  c.add_result(c.dtype(0), shape);
  return {};
}

template <bool kBack>
void resample_vjp(VjpContext& c) {
  static const OpRef op(kBack ? "resample" : "resample_backward");
  const auto& a = c.attributes();
  const Dims& x = c.operand_layout(0).geometry.shape;
  const int d = static_cast<int>((a.integer(0) + x.size()) % x.size());
  c.give(0, apply(op, {c.gradient()},
                  {a.at(0), Attribute::of(x[d]), a.at(2), a.at(3), a.at(4), a.at(5)}));
}

}  // namespace

std::optional<ResampleMode> resample_mode(std::string_view name) {
  if (name == "nearest") return ResampleMode::kNearest;
  if (name == "nearest-exact") return ResampleMode::kNearestExact;
  if (name == "linear") return ResampleMode::kLinear;
  if (name == "cubic") return ResampleMode::kCubic;
  return std::nullopt;
}

std::vector<OpDef> spatial_ops() {
  return {
      {.signature = "constant_pad_nd(Tensor x, Operand value, int[] pad) -> Tensor",
       .doc = "x with pad[0] elements of the number value before and pad[1] after its last "
              "dimension, pad[2] and pad[3] for the one before, and so on; negative ones cut.",
       .infer = pad_infer,
       .vjp = pad_vjp,
       .jvp =
           [](JvpContext& c) {
             static const OpRef op("constant_pad_nd");
             if (const Var dx = c.tangent(0); !dx.absent()) {
               c.give(0, apply(op, {dx, Var(0)}, c.attributes()));
             }
           },
       .batch =
           [](BatchContext& c) {  // only the last dimensions are padded
             static const OpRef op("constant_pad_nd");
             c.give(apply(op, {c.front(0), c.own(1)}, c.attributes()));
           }},
      {.signature = "im2col(Tensor x, int[] kernel_size, int[] dilation, int[] padding, "
                    "int[] stride) -> Tensor",
       .doc = "The windows of x [N, C, H, W] as columns: [N, C * taps, windows].",
       .infer = im2col_infer,
       .vjp = im2col_vjp,
       .tangent = Tangent::kLinear,
       .batch =
           [](BatchContext& c) {
             static const OpRef op("im2col");
             merge_batch(c, op);
           }},
      {.signature = "col2im(Tensor x, int[] output_size, int[] kernel_size, int[] dilation, "
                    "int[] padding, int[] stride) -> Tensor",
       .doc = "The adjoint of im2col: columns [N, C * taps, windows] added up at their places in "
              "[N, C, H, W].",
       .infer = col2im_infer,
       .vjp = col2im_vjp,
       .tangent = Tangent::kLinear,
       .batch =
           [](BatchContext& c) {
             static const OpRef op("col2im");
             merge_batch(c, op);
           }},
      {.signature = "resample(Tensor x, int dim, int size, str mode, bool align_corners=False, "
                    "bool antialias=False, float? scale=None) -> Tensor",
       .doc = "x with `size` elements along dim, each interpolated: mode nearest, nearest-exact, "
              "linear or cubic. scale: what the size was computed with, if it counts.",
       .infer = resample_common,
       .vjp = resample_vjp<false>,
       .tangent = Tangent::kLinear,
       .batching = Batching::kFront},
      {.signature = "resample_backward(Tensor gradient, int dim, int size, str mode, "
                    "bool align_corners, bool antialias, float? scale) -> Tensor",
       .doc = "The adjoint of resample; size is that of resample's operand.",
       .infer = resample_common,
       .vjp = resample_vjp<true>,
       .internal = true,
       .tangent = Tangent::kLinear,
       .batching = Batching::kFront},
  };
}

}  // namespace teletensor::ops
