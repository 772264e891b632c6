#include "engine/backends/cpu/windows/conv_slices.h"

#include <algorithm>

namespace teletensor::backends::cpu {
namespace {

constexpr std::int64_t kChannels = 16;  // channels that oneDNN computes together
constexpr std::int64_t kRows = 4;       // the fewest rows of a slice

ConvSlice groups_of(const Conv& conv, std::int64_t begin, std::int64_t end) {
  ConvSlice slice{conv};
  slice.conv.groups = end - begin;
  slice.conv.in_channels = (end - begin) * conv.group_in();
  slice.conv.out_channels = (end - begin) * conv.group_out();
  slice.x = begin * conv.group_in() * conv.in_area();
  slice.weight = begin * conv.group_out() * conv.group_in() * conv.taps();
  slice.channel = begin * conv.group_out();
  slice.y = slice.channel * conv.out_area();
  return slice;
}

ConvSlice out_channels_of(const Conv& conv, std::int64_t begin, std::int64_t end) {
  ConvSlice slice{conv};
  slice.conv.out_channels = end - begin;
  slice.weight = begin * conv.in_channels * conv.taps();
  slice.channel = begin;
  slice.y = begin * conv.out_area();
  return slice;
}

ConvSlice in_channels_of(const Conv& conv, std::int64_t begin, std::int64_t end) {
  ConvSlice slice{conv};
  slice.conv.in_channels = end - begin;
  slice.weight = begin * conv.taps();
  slice.x = begin * conv.in_area();
  return slice;
}

// Rows [begin, end) of the output, along the first actual spatial dimension.
ConvSlice rows_of(const Conv& conv, std::int64_t begin, std::int64_t end) {
  const int d = 3 - conv.spatial;
  const std::int64_t span = conv.dilation[d] * (conv.kernel[d] - 1) + 1;
  const std::int64_t first = begin * conv.stride[d] - conv.padding[d];
  const std::int64_t after = (end - 1) * conv.stride[d] - conv.padding[d] + span;
  const std::int64_t from = std::max<std::int64_t>(0, first);
  ConvSlice slice{conv};
  slice.conv.in[d] = std::min(conv.in[d], after) - from;
  slice.conv.out[d] = end - begin;
  slice.conv.padding[d] = from - first;
  slice.x = from * (conv.in_area() / conv.in[d]);
  slice.y = begin * (conv.out_area() / conv.out[d]);
  return slice;
}

}  // namespace

std::vector<ConvSlice> slices_of(const Conv& conv, ConvPass pass, std::int64_t most) {
  if (most <= 1) return {ConvSlice{conv}};
  std::vector<ConvSlice> slices;
  // Divides `size` into at most `most` ranges that are multiples of `unit`.
  const auto divide = [&](std::int64_t size, std::int64_t unit, auto&& slice_of) {
    const std::int64_t units = (size + unit - 1) / unit, ranges = std::min(units, most);
    for (std::int64_t i = 0; i < ranges; ++i) {
      const std::int64_t begin = units * i / ranges * unit, end = units * (i + 1) / ranges * unit;
      slices.push_back(slice_of(conv, begin, std::min(size, end)));
    }
  };
  // Each slice converts the layout of its tensors. The larger operand is the one that is divided.
  const bool large_weight =
      conv.out_channels * conv.in_channels * conv.taps() >= conv.in_channels * conv.in_area();
  if (conv.groups > 1) {
    divide(conv.groups, 1, groups_of);
  } else if (pass == ConvPass::kInput) {
    divide(conv.in_channels, kChannels, in_channels_of);
  } else if (pass == ConvPass::kWeight || large_weight) {
    divide(conv.out_channels, kChannels, out_channels_of);
  } else {
    divide(conv.out[3 - conv.spatial], kRows, rows_of);
  }
  return slices;
}

}  // namespace teletensor::backends::cpu
