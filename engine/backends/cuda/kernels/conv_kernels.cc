// Device kernels for convolutions and for im2col and col2im. A convolution is computed as a product
// of tiles whose elements are located by index arithmetic.
#include <algorithm>

#include "engine/backends/cuda/codegen/recipes.h"
#include "engine/backends/cuda/describe.h"
#include "engine/backends/cuda/library/conv_slices.h"
#include "engine/backends/cuda/library/convolutions.h"
#include "engine/backends/cuda/text/base/calls.h"

namespace teletensor::backends::cuda {
namespace {

using core::Dims;
using core::DType;
using core::Status;

enum ConvPass : std::uint8_t { kOutput, kInput, kWeight };  // same values as in text/conv.cuh

constexpr std::int64_t kConvTile = 64;
constexpr std::int64_t kMinSlice = 1024;   // minimum length of a part of a split sum
constexpr std::int64_t kManyBlocks = 512;  // enough blocks to fill a device

// `x` is the input's shape and `y` the output's. The parameters of the windows are the attributes
// from `first` on.
calls::ConvCall conv_of(const Dims& x, const Dims& y, std::span<const std::int64_t> kernel,
                        const core::Attributes& a, std::size_t first, std::int64_t groups) {
  calls::ConvCall p = {};
  for (int d = 0; d < 3; ++d) {
    p.in[d] = p.out[d] = p.kernel[d] = p.stride[d] = p.dilation[d] = 1;
    p.padding[d] = 0;
  }
  const int n = x.size() - 2;
  for (int d = 0; d < n; ++d) {
    const int to = 3 - n + d;
    const auto at = static_cast<std::size_t>(d);
    p.in[to] = x[d + 2];
    p.out[to] = y[d + 2];
    p.kernel[to] = kernel[at];
    p.stride[to] = a.ints(first)[at];
    p.padding[to] = a.ints(first + 1)[at];
    p.dilation[to] = a.ints(first + 2)[at];
  }
  p.groups = groups;
  p.in_channels = x[1];
  p.out_channels = y[1];
  p.group_in = x[1] / groups;
  p.group_out = y[1] / groups;
  p.taps = p.kernel[0] * p.kernel[1] * p.kernel[2];
  return p;
}

std::int64_t area(const std::int64_t (&size)[3]) { return size[0] * size[1] * size[2]; }

// Adds the launch that computes the product of each group.
Status add_tiles(Work& work, RowMajorCall& memory, ConvPass pass, std::int64_t batch, DType dtype,
                 calls::ConvCall p) {
  switch (pass) {
    case kOutput:
      p.rows = p.group_out;
      p.columns = batch * area(p.out);
      p.depth = p.group_in * p.taps;
      break;
    case kInput:
      p.rows = p.group_in;
      p.columns = batch * area(p.in);
      p.depth = p.group_out * p.taps;
      break;
    case kWeight:
      p.rows = p.group_out;
      p.columns = p.group_in * p.taps;
      p.depth = batch * area(p.out);
      break;
  }
  p.slices = 1;
  const std::int64_t tiles =
      ((p.rows + kConvTile - 1) / kConvTile) * ((p.columns + kConvTile - 1) / kConvTile) * p.groups;
  if (pass == kWeight) p.slices = conv_slices(p.depth, tiles);
  p.slice = ((p.depth + p.slices - 1) / p.slices + 15) / 16 * 16;
  p.slices = (p.depth + p.slice - 1) / p.slice;
  p.n = tiles * p.slices;
  const DType compute = modular_of(dtype);
  const RecipeGraph tile{Recipe::kConvTile, {dtype, compute}, pass};
  if (pass != kWeight) return add_recipe(work, tile, p);
  void* const result = p.result;
  const std::int64_t size = p.groups * p.rows * p.columns;
  p.result = memory.room(p.slices * size, core::size_of(compute));
  TT_RETURN_IF_ERROR(memory.status());
  TT_RETURN_IF_ERROR(add_recipe(work, tile, p));
  p.x = p.result;
  p.result = result;
  p.n = size;
  return add_recipe(work, {Recipe::kSliceSums, {dtype, compute}}, p);
}

// Describes a tensor for the library: its address and strides, row-major or channels-last. If the
// tensor has another layout, the address is null; the caller then uses a row-major copy.
Convolution::Side side_of(const TensorArg& arg) {
  const core::Geometry& geometry = *arg.geometry;
  const int rank = geometry.rank(), more = rank == 3;  // a 3-d tensor becomes an image with one row
  const auto to = [&](int d) { return d < 2 ? d : d + more; };
  Convolution::Side side;
  std::fill_n(side.sizes, rank + more, 1);
  for (int d = 0; d < rank; ++d) side.sizes[to(d)] = geometry.shape[d];
  const auto lies = [&](bool channels_last) {
    std::int64_t step = 1;
    const auto put = [&](int d) {
      side.strides[d] = step;
      step *= side.sizes[d];
    };
    if (channels_last) put(1);
    for (int d = rank + more - 1; d >= 2; --d) put(d);
    if (!channels_last) put(1);
    put(0);
    for (int d = 0; d < rank; ++d) {
      if (geometry.shape[d] != 1 && geometry.strides[d] != side.strides[to(d)]) return false;
    }
    return true;
  };
  if (lies(false) || lies(true)) {
    side.data = arg.first();
  } else {
    lies(false);
  }
  return side;
}

// Returns true if y has all windows that fit into x. The library does not compute a y that was cut
// off.
bool regular(const calls::ConvCall& p) {
  for (int d = 0; d < 3; ++d) {
    const std::int64_t span = p.dilation[d] * (p.kernel[d] - 1) + 1;
    if ((p.in[d] + 2 * p.padding[d] - span) / p.stride[d] + 1 != p.out[d]) return false;
  }
  return true;
}

struct ConvArgs {
  const TensorArg &x, &weight, &y;
  const TensorArg& result;  // one of the three
};

// Describes the call for the library if the library accepts it. `tf32` is the index of that
// attribute.
bool by_library(KernelCall& call, Work& work, ConvolutionPass pass, const ConvArgs& args,
                const TensorArg* bias, const calls::ConvCall& p, std::size_t tf32) {
  if (work.convolutions == nullptr || !core::is_floating(args.y.dtype) || !regular(p)) return false;
  Convolution c;
  c.pass = pass;
  c.dtype = args.y.dtype;
  c.tf32 = takes_tf32(call, c.dtype, tf32);
  c.rank = std::max(args.x.geometry->rank(), 4);
  const int first = 5 - c.rank;
  std::copy_n(p.stride + first, c.rank - 2, c.stride);
  std::copy_n(p.padding + first, c.rank - 2, c.padding);
  std::copy_n(p.dilation + first, c.rank - 2, c.dilation);
  if (bias != nullptr) c.bias = bias->first();
  const TensorArg* const tensors[] = {&args.x, &args.weight, &args.y};
  Convolution::Side* const sides[] = {&c.x, &c.weight, &c.y};
  for (int i = 0; i < 3; ++i) {
    if (tensors[i]->dtype != c.dtype || tensors[i]->geometry->numel() > INT32_MAX) return false;
    *sides[i] = side_of(*tensors[i]);
    if (tensors[i] == &args.result && sides[i]->data == nullptr) return false;
  }
  c.plan = work.convolutions->plan(c);
  if (c.plan == nullptr) return false;
  if (c.plan->workspace > 0) {
    c.workspace = call.scratch.allocate(c.plan->workspace);
    if (c.workspace == nullptr) return false;
  }
  RowMajorCall memory(call, work);
  const std::size_t before = work.launches.size();
  for (int i = 0; i < 3; ++i) {
    if (sides[i]->data == nullptr) sides[i]->data = memory.read(*tensors[i]);
  }
  if (!memory.status().ok()) {
    work.launches.resize(before);
    return false;
  }
  Launch launch;
  launch.convolution = c;
  work.launches.push_back(std::move(launch));
  return true;
}

// Adds the bias to each channel. The library does not do that for a transposed convolution.
Status add_to_channels(KernelCall& call, Work& work) {
  static const ops::OpDef& add = *ops::catalog().find("add");
  const TensorArg &out = call.out[0], &bias = call.in[2];
  Dims strides(out.geometry->rank(), 0);
  strides[1] = bias.geometry->strides[0];
  const core::Geometry spread(out.geometry->shape, strides, bias.geometry->offset);
  TensorArg each[] = {out, bias};
  each[1].geometry = &spread;
  const core::Attributes alpha{core::Attribute::of(1.0)};
  LoopStep step;
  step.op = &add;
  step.in = each;
  step.out = out;
  step.attributes = &alpha;
  return describe_loop({&step, 1}, call.parallel, call.scratch, work);
}

// Describes the call for the library; with `transposed` as the input's gradient.
bool convolution_by_library(KernelCall& call, Work& work, bool transposed,
                            const calls::ConvCall& p) {
  const TensorArg &input = call.in[0], &weight = call.in[1], &bias = call.in[2], &out = call.out[0];
  const bool biased = bias.kind == TensorArg::Kind::kTensor;
  if (biased && bias.geometry->strides[0] != 1) return false;
  const bool inside = biased && !transposed;
  const ConvolutionPass pass = transposed ? ConvolutionPass::kInput : ConvolutionPass::kOutput;
  const ConvArgs args{transposed ? out : input, weight, transposed ? input : out, out};
  return by_library(call, work, pass, args, inside ? &bias : nullptr, p, 6);
}

Status convolution(KernelCall& call, Work& work) {
  const TensorArg &input = call.in[0], &weight = call.in[1], &out = call.out[0];
  if (out.geometry->numel() == 0) return {};
  if (input.geometry->numel() == 0 || weight.geometry->numel() == 0) {
    return not_on_device("an empty tensor");
  }
  const bool transposed = call.attributes.boolean(3);
  const Dims &x = input.geometry->shape, &y = out.geometry->shape;
  calls::ConvCall p =
      conv_of(transposed ? y : x, transposed ? x : y, weight.geometry->shape.span().subspan(2),
              call.attributes, 0, call.attributes.integer(5));
  if (convolution_by_library(call, work, transposed, p)) {
    const bool left = transposed && call.in[2].kind == TensorArg::Kind::kTensor;
    return left ? add_to_channels(call, work) : Status();
  }
  RowMajorCall memory(call, work);
  const void* const from = memory.read(input, out.dtype);
  (transposed ? p.y : p.x) = from;
  p.weight = memory.read(weight, out.dtype);
  p.bias = memory.read(call.in[2], modular_of(out.dtype));
  p.result = memory.write(out);
  TT_RETURN_IF_ERROR(memory.status());
  TT_RETURN_IF_ERROR(add_tiles(work, memory, transposed ? kInput : kOutput, x[0], out.dtype, p));
  return memory.store();
}

Status convolution_weight(KernelCall& call, Work& work) {
  const TensorArg &x = call.in[0], &g = call.in[1], &out = call.out[0];
  if (out.geometry->numel() == 0) return {};
  if (x.geometry->numel() == 0 || g.geometry->numel() == 0) return not_on_device("an empty tensor");
  calls::ConvCall p = conv_of(x.geometry->shape, g.geometry->shape, call.attributes.ints(0),
                              call.attributes, 1, call.attributes.integer(4));
  const ConvArgs args{x, out, g, out};
  if (by_library(call, work, ConvolutionPass::kWeight, args, nullptr, p, 5)) return {};
  RowMajorCall memory(call, work);
  p.x = memory.read(x, out.dtype);
  p.y = memory.read(g, out.dtype);
  p.result = memory.write(out);
  TT_RETURN_IF_ERROR(memory.status());
  TT_RETURN_IF_ERROR(add_tiles(work, memory, kWeight, x.geometry->shape[0], out.dtype, p));
  return memory.store();
}

// im2col, and with kBack col2im. `first` is the attribute with the kernel's sizes; dilation,
// padding and stride follow it.
template <bool kBack>
Status columns(KernelCall& call, Work& work) {
  const TensorArg &in = call.in[0], &out = call.out[0];
  if (out.geometry->numel() == 0) return {};
  const Dims& image = (kBack ? out : in).geometry->shape;
  const std::size_t first = kBack ? 1 : 0;
  const core::Attributes& a = call.attributes;
  calls::ConvCall p = {};
  p.in[0] = p.out[0] = p.kernel[0] = p.stride[0] = p.dilation[0] = 1;
  for (int d = 0; d < 2; ++d) {
    const auto at = static_cast<std::size_t>(d);
    p.in[d + 1] = image[d + 2];
    p.kernel[d + 1] = a.ints(first)[at];
    p.dilation[d + 1] = a.ints(first + 1)[at];
    p.padding[d + 1] = a.ints(first + 2)[at];
    p.stride[d + 1] = a.ints(first + 3)[at];
    const std::int64_t span = p.dilation[d + 1] * (p.kernel[d + 1] - 1) + 1;
    p.out[d + 1] = (p.in[d + 1] + 2 * p.padding[d + 1] - span) / p.stride[d + 1] + 1;
  }
  p.taps = p.kernel[1] * p.kernel[2];
  RowMajorCall memory(call, work);
  p.x = memory.read(in, out.dtype);
  p.result = memory.write(out);
  TT_RETURN_IF_ERROR(memory.status());
  p.n = out.geometry->numel();
  const Recipe recipe = kBack ? Recipe::kColumnsImage : Recipe::kImageColumns;
  return memory.finish({recipe, {out.dtype, modular_of(out.dtype)}}, p);
}

}  // namespace

std::int64_t conv_slices(std::int64_t depth, std::int64_t tiles) {
  return std::clamp<std::int64_t>(kManyBlocks / std::max<std::int64_t>(tiles, 1), 1,
                                  std::max<std::int64_t>(depth / kMinSlice, 1));
}

void add_conv_kernels(DeviceTable& table) {
  table.add("convolution", Skeleton::kMatmul, convolution);
  table.add("convolution_weight", Skeleton::kMatmul, convolution_weight);
  table.add("im2col", Skeleton::kCell, columns<false>);
  table.add("col2im", Skeleton::kCell, columns<true>);
}

}  // namespace teletensor::backends::cuda
