// Convolutions as the kernels see them: row-major tensors with three spatial dimensions (missing
// ones have size 1 and come first).
#pragma once

#include <cstdint>

#include "engine/backends/backend.h"

namespace teletensor::backends::cpu {

// Input x [batch, in_channels, in...], weight [out_channels, in_channels / groups, kernel...],
// output y [batch, out_channels, out...].
struct Conv {
  std::int64_t batch = 1, groups = 1, in_channels = 1, out_channels = 1;
  std::int64_t in[3] = {1, 1, 1}, out[3] = {1, 1, 1}, kernel[3] = {1, 1, 1}, stride[3] = {1, 1, 1},
               padding[3] = {0, 0, 0}, dilation[3] = {1, 1, 1};
  int spatial = 1;  // number of actual spatial dimensions; they are the last

  std::int64_t in_area() const { return in[0] * in[1] * in[2]; }
  std::int64_t out_area() const { return out[0] * out[1] * out[2]; }
  std::int64_t taps() const { return kernel[0] * kernel[1] * kernel[2]; }
  std::int64_t group_in() const { return in_channels / groups; }
  std::int64_t group_out() const { return out_channels / groups; }
  double multiplications() const {
    return static_cast<double>(batch) * static_cast<double>(out_channels) *
           static_cast<double>(out_area()) * static_cast<double>(group_in() * taps());
  }
};

// Which of the three tensors is computed from the other two.
enum class ConvPass : std::uint8_t { kOutput, kInput, kWeight };

template <class T>
struct ConvMemory {
  T* x = nullptr;
  T* weight = nullptr;
  T* y = nullptr;
  const T* bias = nullptr;  // added to y in kOutput
};

// Returns true if oneDNN supports this problem (in f32).
bool fits_onednn(const Conv& conv);
core::Status onednn_conv(KernelCall& call, const Conv& conv, ConvPass pass,
                         const ConvMemory<float>& memory);
// Computes any problem with matrix products over columns of windows. T is float, double or int64.
template <class T>
core::Status column_conv(KernelCall& call, const Conv& conv, ConvPass pass,
                         const ConvMemory<T>& memory);

// to[i] = sums[i] + sums[weights + i] + ... for i < weights: adds the parts of a weight's gradient,
// each of which is the sum over a range of images, in their order.
void add_ranges(Parallel& parallel, const float* sums, std::int64_t ranges, std::int64_t weights,
                float* to);

// ---------------------------------------------------------------- im2col and col2im

// Row `tap` of the matrix of windows of one channel: the elements that `tap` reads in the windows
// [begin, end), in row-major order, with zeros for the padding.
template <class T>
void gather_tap(const Conv& conv, const T* channel, std::int64_t tap, std::int64_t begin,
                std::int64_t end, T* to);
// The adjoint of gather_tap(): adds the row to the channel.
template <class T>
void scatter_tap(const Conv& conv, const T* from, std::int64_t tap, std::int64_t begin,
                 std::int64_t end, T* channel);

}  // namespace teletensor::backends::cpu
