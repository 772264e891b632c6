// convolution and convolution_weight. Operands are made row-major in the compute type. Then oneDNN
// computes f32 and, through f32, 16-bit floats; matrix products with columns of windows compute
// f64, integers, and what oneDNN does not support.
#include "engine/backends/cpu/windows/conv.h"

#include <algorithm>

#include "engine/backends/cpu/access/dense.h"
#include "engine/backends/cpu/cpu.h"

namespace teletensor::backends::cpu {
namespace {

using core::Dims;
using core::Geometry;
using core::Status;

template <class T>
Status compute(KernelCall& call, const Conv& conv, ConvPass pass, const ConvMemory<T>& memory) {
  if constexpr (std::is_same_v<T, float>) {
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

void add_conv_kernels(KernelTable& table) {
  table.add("convolution", convolution);
  table.add("convolution_weight", convolution_weight);
}

}  // namespace teletensor::backends::cpu
