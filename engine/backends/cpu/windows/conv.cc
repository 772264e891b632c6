// convolution and convolution_weight. Operands are made row-major in the compute type. Pointwise
// convolutions are matrix products. oneDNN computes other ones of f32 and, through f32, of 16-bit
// floats; matrix products with columns of windows compute f64, integers, and what oneDNN does not
// support.
#include "engine/backends/cpu/windows/conv.h"

#include <algorithm>

#include "engine/backends/cpu/access/dense.h"
#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/linalg/products.h"

namespace teletensor::backends::cpu {
namespace {

using core::Dims;
using core::Geometry;
using core::Status;

// Returns true if each element of y is a sum over the channels at the same place of x.
bool is_pointwise(const Conv& conv) {
  const auto all = [&](const std::int64_t(&values)[3], std::int64_t wanted) {
    return std::all_of(values, values + 3, [&](std::int64_t value) { return value == wanted; });
  };
  return conv.groups == 1 && all(conv.kernel, 1) && all(conv.stride, 1) && all(conv.padding, 0);
}

// The output or the input of a pointwise convolution: for each image, the product of the weight and
// a matrix [channels, area]. oneDNN's convolution takes up to twice as long, because it converts
// the layouts of all three tensors.
template <class T>
Status pointwise_conv(KernelCall& call, const Conv& conv, ConvPass pass,
                      const ConvMemory<T>& memory) {
  const bool forward = pass == ConvPass::kOutput;
  const std::int64_t in = conv.in_channels, out = conv.out_channels, area = conv.out_area();
  Product p;
  p.m = forward ? out : in;
  p.n = area;
  p.k = forward ? in : out;
  p.batch = Dims{conv.batch};
  p.batches = conv.batch;
  p.a = forward ? Side{memory.weight, in, 1, Dims{0}} : Side{memory.weight, 1, in, Dims{0}};
  p.b = {forward ? memory.x : memory.y, area, 1, Dims{p.k * area}};
  Addend addend;
  TensorArg bias;
  const Geometry channels({out});
  if (memory.bias) {
    bias = {TensorArg::Kind::kTensor, const_cast<T*>(memory.bias), kDTypeOf<T>, &channels, {}};
    addend.x = &bias;
    addend.row = 1;
  }
  return multiply<T>(call, p, forward ? memory.y : memory.x, addend);
}

// The gradient of the weight of a pointwise convolution: the sum over the images of products of
// [out channels, area] and [area, in channels]. If the result has too few pieces for the lanes, the
// images are divided into ranges, whose sums are added in order.
Status pointwise_weight(KernelCall& call, const Conv& conv, const ConvMemory<float>& memory) {
  constexpr std::int64_t kMaxRanges = 8, kSmall = 512;
  const std::int64_t out = conv.out_channels, in = conv.in_channels, area = conv.out_area();
  std::int64_t ranges = 1;
  if (std::max(in, out) < kSmall) {
    ranges = parts_of(conv.multiplications() * 0.02, std::min(conv.batch, kMaxRanges));
  }
  const std::int64_t each = (conv.batch + ranges - 1) / ranges, rest = conv.batch % each;
  ranges = (conv.batch + each - 1) / each;
  float* sums = memory.weight;
  if (ranges > 1) {
    const std::size_t bytes = scratch_bytes(ranges, out * in, sizeof(float));
    sums = static_cast<float*>(call.scratch.allocate(bytes));
    if (sums == nullptr) return out_of_scratch(call.op.name, bytes);
  }
  const auto add_images = [&](std::int64_t first, std::int64_t count, std::int64_t images) {
    Product p;
    p.m = out, p.n = in, p.k = area;
    p.batch = Dims{count};
    p.batches = count;
    p.terms = images;
    const std::int64_t of_y = out * area, of_x = in * area, image = first * each;
    p.a = {memory.y + image * of_y, area, 1, Dims{each * of_y}, of_y};
    p.b = {memory.x + image * of_x, 1, area, Dims{each * of_x}, of_x};
    return multiply<float>(call, p, sums + first * out * in, {});
  };
  const std::int64_t full = conv.batch / each;
  TT_RETURN_IF_ERROR(add_images(0, full, each));
  if (rest > 0) TT_RETURN_IF_ERROR(add_images(full, 1, rest));
  if (ranges == 1) return {};
  add_ranges(call.parallel, sums, ranges, out * in, memory.weight);
  return {};
}

template <class T>
Status compute(KernelCall& call, const Conv& conv, ConvPass pass, const ConvMemory<T>& memory) {
  if constexpr (std::is_floating_point_v<T>) {
    if (is_pointwise(conv) && pass != ConvPass::kWeight) {
      return pointwise_conv<T>(call, conv, pass, memory);
    }
  }
  if constexpr (std::is_same_v<T, float>) {
    if (is_pointwise(conv)) return pointwise_weight(call, conv, memory);
    if (fits_onednn(conv)) return onednn_conv(call, conv, pass, memory);
  }
  return column_conv(call, conv, pass, memory);
}

void set_windows(Conv& conv, const Dims& x, const Dims& y, std::span<const std::int64_t> kernel,
                 const core::Attributes& attributes, std::size_t stride) {
  conv.spatial = x.size() - 2;
  conv.batch = x[0];
  conv.in_channels = x[1];
  conv.out_channels = y[1];
  for (int d = 0; d < conv.spatial; ++d) {
    const int to = 3 - conv.spatial + d;
    const auto at = static_cast<std::size_t>(d);
    conv.in[to] = x[d + 2];
    conv.out[to] = y[d + 2];
    conv.kernel[to] = kernel[at];
    conv.stride[to] = attributes.ints(stride)[at];
    conv.padding[to] = attributes.ints(stride + 1)[at];
    conv.dilation[to] = attributes.ints(stride + 2)[at];
  }
}

// Fills a result that has no products: with zeros, or with the bias.
void fill_with_bias(KernelCall& call, const TensorArg* bias) {
  const TensorArg& out = call.out[0];
  TensorArg from;
  from.kind = TensorArg::Kind::kNumber;
  from.number = core::Number::of_int(0);
  Geometry spread;
  if (bias) {
    from = *bias;
    Dims strides(out.geometry->rank(), 0);
    strides[1] = bias->geometry->strides[0];
    spread = Geometry(out.geometry->shape, strides, bias->geometry->offset);
    from.geometry = &spread;
  }
  strided_copy(from, out, call.parallel);
}

// Adds the bias of a transposed convolution to each channel.
template <class T>
void add_bias(const Conv& conv, const T* bias, T* x) {
  const std::int64_t area = conv.in_area();
  for (std::int64_t i = 0; i < conv.batch * conv.in_channels; ++i) {
    const T b = bias[i % conv.in_channels];
    T* const to = x + i * area;
    for (std::int64_t j = 0; j < area; ++j) {
      if constexpr (std::is_integral_v<T>) {
        to[j] = static_cast<T>(static_cast<std::uint64_t>(to[j]) + static_cast<std::uint64_t>(b));
      } else {
        to[j] += b;
      }
    }
  }
}

Status convolution(KernelCall& call) {
  const TensorArg &input = call.in[0], &weight = call.in[1], &out = call.out[0];
  if (out.geometry->numel() == 0) return {};
  const bool transposed = call.attributes.boolean(3);
  const TensorArg* bias = call.in[2].kind == TensorArg::Kind::kTensor ? &call.in[2] : nullptr;
  if (input.geometry->numel() == 0 || weight.geometry->numel() == 0) {
    fill_with_bias(call, bias);
    return {};
  }
  Conv conv;
  const Dims &x = input.geometry->shape, &y = out.geometry->shape;
  set_windows(conv, transposed ? y : x, transposed ? x : y,
              weight.geometry->shape.span().subspan(2), call.attributes, 0);
  conv.groups = call.attributes.integer(5);
  return with_modular_type(out.dtype, [&](auto a) -> Status {
    using T = decltype(a);
    Status status;
    const Dense<T> from(call, input, true, status), by(call, weight, true, status),
        to(call, out, false, status);
    TT_RETURN_IF_ERROR(status);
    ConvMemory<T> memory{from.memory(), by.memory(), to.memory(), nullptr};
    if (transposed) std::swap(memory.x, memory.y);
    if (!bias) {
      TT_RETURN_IF_ERROR(
          compute(call, conv, transposed ? ConvPass::kInput : ConvPass::kOutput, memory));
    } else {
      const Dense<T> added(call, *bias, true, status);
      TT_RETURN_IF_ERROR(status);
      memory.bias = transposed ? nullptr : added.memory();
      TT_RETURN_IF_ERROR(
          compute(call, conv, transposed ? ConvPass::kInput : ConvPass::kOutput, memory));
      if (transposed) add_bias(conv, added.memory(), memory.x);
    }
    to.store();
    return {};
  });
}

Status convolution_weight(KernelCall& call) {
  const TensorArg &x = call.in[0], &g = call.in[1], &out = call.out[0];
  if (out.geometry->numel() == 0) return {};
  if (x.geometry->numel() == 0 || g.geometry->numel() == 0) {
    fill_with_bias(call, nullptr);
    return {};
  }
  Conv conv;
  set_windows(conv, x.geometry->shape, g.geometry->shape, call.attributes.ints(0), call.attributes,
              1);
  conv.groups = call.attributes.integer(4);
  return with_modular_type(out.dtype, [&](auto a) -> Status {
    using T = decltype(a);
    Status status;
    const Dense<T> input(call, x, true, status), gradient(call, g, true, status),
        to(call, out, false, status);
    TT_RETURN_IF_ERROR(status);
    TT_RETURN_IF_ERROR(compute<T>(call, conv, ConvPass::kWeight,
                                  {input.memory(), to.memory(), gradient.memory(), nullptr}));
    to.store();
    return {};
  });
}

}  // namespace

void add_ranges(Parallel& parallel, const float* sums, std::int64_t ranges, std::int64_t weights,
                float* to) {
  split(parallel, weights, static_cast<double>(ranges) * 0.3, 1,
        [&](std::int64_t begin, std::int64_t end) {
          std::copy(sums + begin, sums + end, to + begin);
          for (std::int64_t range = 1; range < ranges; ++range) {
            const float* const from = sums + range * weights;
            for (std::int64_t i = begin; i < end; ++i) to[i] += from[i];
          }
        });
}

void add_conv_kernels(KernelTable& table) {
  table.add("convolution", convolution);
  table.add("convolution_weight", convolution_weight);
}

}  // namespace teletensor::backends::cpu
