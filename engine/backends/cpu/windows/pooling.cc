// Kernels of pooling. For each image and channel, the windows are given by one table per dimension.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/backends/cpu/access/dense.h"
#include "engine/backends/cpu/access/targets.h"
#include "engine/backends/cpu/cpu.h"

namespace teletensor::backends::cpu {
namespace {

using core::Dims;
using core::Status;

// A window along one dimension: the elements begin, begin + step, ... before end. `extent` is the
// number of elements that count for a mean which includes the padding.
struct Window {
  std::int64_t begin, end, extent;
};
struct Axis {
  std::int64_t size = 1, step = 1;
  std::vector<Window> windows{{0, 1, 1}};
  // If the windows have equal distances: that distance, the elements of a window without padding,
  // and the padding before the first element. Otherwise the stride is 0.
  std::int64_t stride = 0, kernel = 0, padding = 0;
};
using Axes = std::array<Axis, 3>;

Axes sliding(const Dims& x, const Dims& y, const core::Attributes& a, int dilation) {
  Axes axes;
  const int n = x.size() - 2;
  for (int d = 0; d < n; ++d) {
    const auto at = static_cast<std::size_t>(d);
    Axis& axis = axes[static_cast<std::size_t>(3 - n + d)];
    const std::int64_t kernel = a.ints(0)[at], stride = a.ints(1)[at], padding = a.ints(2)[at];
    axis.size = x[d + 2];
    axis.stride = stride, axis.kernel = kernel, axis.padding = padding;
    axis.step = dilation < 0 ? 1 : a.ints(static_cast<std::size_t>(dilation))[at];
    axis.windows.clear();
    for (std::int64_t i = 0; i < y[d + 2]; ++i) {
      std::int64_t begin = i * stride - padding;
      std::int64_t end = std::min(begin + (kernel - 1) * axis.step + 1, axis.size + padding);
      const std::int64_t extent = end - begin;
      if (begin < 0) begin += (-begin + axis.step - 1) / axis.step * axis.step;
      end = std::min(end, axis.size);
      axis.windows.push_back({begin, std::max(begin, end), extent});
    }
  }
  return axes;
}

Axes adaptive(const Dims& x, const Dims& y) {
  Axes axes;
  const int n = x.size() - 2;
  for (int d = 0; d < n; ++d) {
    Axis& axis = axes[static_cast<std::size_t>(3 - n + d)];
    const std::int64_t in = axis.size = x[d + 2], out = y[d + 2];
    axis.windows.clear();
    for (std::int64_t i = 0; i < out; ++i) {
      // i * in / out, computed in two parts to avoid overflow; the sizes are below 2^56 and 2^31.
      const std::int64_t begin = i * (in / out) + i * (in % out) / out;
      const std::int64_t end = (i + 1) * (in / out) + ((i + 1) * (in % out) + out - 1) / out;
      axis.windows.push_back({begin, end, end - begin});
    }
  }
  return axes;
}

constexpr std::int64_t kLargeIndex = std::int64_t{1} << 31;

struct Planes {
  std::int64_t count = 1, in = 1, out = 1;
  Planes(const Dims& x, const Dims& y) : count(x[0] * x[1]) {
    for (int d = 2; d < x.size(); ++d) in *= x[d], out *= y[d];
  }
};

// ---------------------------------------------------------------- maxima

template <class T>
constexpr T kLeast = std::is_floating_point_v<T> ? -std::numeric_limits<T>::infinity()
                                                 : std::numeric_limits<T>::min();

// A NaN is larger than any number.
template <class T>
bool exceeds(T value, T best) {
  return (value > best) | (value != value);
}

// The maxima of windows in any places, one by one.
template <class T>
void max_plane(const Axes& axes, const T* x, T* y, std::int64_t* places) {
  const std::int64_t height = axes[1].size, width = axes[2].size;
  for (const Window& a : axes[0].windows) {
    for (const Window& b : axes[1].windows) {
      for (const Window& c : axes[2].windows) {
        T best = kLeast<T>;
        // A window that contains no element (large dilation) still gets a valid position.
        std::int64_t place =
            (std::min(a.begin, axes[0].size - 1) * height + std::min(b.begin, height - 1)) * width +
            std::min(c.begin, width - 1);
        for (std::int64_t i = a.begin; i < a.end; i += axes[0].step) {
          for (std::int64_t j = b.begin; j < b.end; j += axes[1].step) {
            const std::int64_t row = (i * height + j) * width;
            for (std::int64_t k = c.begin; k < c.end; k += axes[2].step) {
              if (exceeds(x[row + k], best)) {
                best = x[row + k];
                place = row + k;
              }
            }
          }
        }
        *y++ = best;
        *places++ = place;
      }
    }
  }
}

// Compares x[0], x[stride], ... with n maxima. kStride is the stride, or 0 for any.
template <std::int64_t kStride, class T>
void raise_maxima(const T* x, std::int64_t stride, std::int32_t place, std::int64_t n, T* best,
                  std::int32_t* places) {
  const std::int64_t by = kStride != 0 ? kStride : stride;
  TT_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) {
    const T value = x[i * by];
    const bool more = exceeds(value, best[i]);
    best[i] = more ? value : best[i];
    places[i] = more ? place + static_cast<std::int32_t>(i * by) : places[i];
  }
}

// The maxima of windows with equal distances in a plane of less than 2^31 elements: a block of a
// row of windows is compared with each of its elements in turn, without branches.
template <class T>
void max_rows(const Axes& axes, const T* x, T* y, std::int64_t* places) {
  constexpr std::int64_t kBlock = 256;
  const Axis& last = axes[2];
  const std::int64_t height = axes[1].size, width = last.size, stride = last.stride;
  const auto windows = static_cast<std::int64_t>(last.windows.size());
  // The first window whose element at `offset` from its unpadded beginning is not before `at`.
  const auto first = [&](std::int64_t at, std::int64_t offset) {
    return std::clamp<std::int64_t>((at + last.padding - offset + stride - 1) / stride, 0, windows);
  };
  T best[kBlock];
  std::int32_t found[kBlock];
  for (const Window& a : axes[0].windows) {
    for (const Window& b : axes[1].windows) {
      const std::int64_t corner =
          (std::min(a.begin, axes[0].size - 1) * height + std::min(b.begin, height - 1)) * width;
      for (std::int64_t block = 0; block < windows; block += kBlock) {
        const std::int64_t n = std::min(kBlock, windows - block);
        for (std::int64_t c = 0; c < n; ++c) {
          const Window& window = last.windows[static_cast<std::size_t>(block + c)];
          best[c] = kLeast<T>;
          found[c] = static_cast<std::int32_t>(corner + std::min(window.begin, width - 1));
        }
        for (std::int64_t i = a.begin; i < a.end; i += axes[0].step) {
          for (std::int64_t j = b.begin; j < b.end; j += axes[1].step) {
            const std::int64_t row = (i * height + j) * width;
            for (std::int64_t tap = 0; tap < last.kernel; ++tap) {
              const std::int64_t offset = tap * last.step;
              const std::int64_t begin = std::max(block, first(0, offset));
              const std::int64_t end = std::min(block + n, first(width, offset));
              if (begin >= end) continue;
              const std::int64_t place = row + begin * stride - last.padding + offset;
              const auto raise = stride == 1   ? raise_maxima<1, T>
                                 : stride == 2 ? raise_maxima<2, T>
                                               : raise_maxima<0, T>;
              raise(x + place, stride, static_cast<std::int32_t>(place), end - begin,
                    best + begin - block, found + begin - block);
            }
          }
        }
        y = std::copy(best, best + n, y);
        places = std::copy(found, found + n, places);
      }
    }
  }
}

template <class F>
Status maxima(KernelCall& call, F&& axes_of) {
  const TensorArg& out = call.out[0];
  if (out.geometry->numel() == 0) return {};
  const Planes planes(call.in[0].geometry->shape, out.geometry->shape);
  return with_modular_type(out.dtype, [&](auto a) -> Status {
    using T = decltype(a);
    Status status;
    const Dense<T> from(call, call.in[0], true, status), to(call, out, false, status);
    const Dense<std::int64_t> places(call, call.out[1], false, status);
    TT_RETURN_IF_ERROR(status);
    const double ns = static_cast<double>(planes.count) *
                      (static_cast<double>(planes.in) + 4.0 * static_cast<double>(planes.out));
    share(call.parallel, planes.count, parts_of(ns, planes.count),
          [&](std::int64_t i, std::int64_t) {
            const Axes& axes = axes_of(i);
            const bool regular = axes[2].stride > 0 && planes.in < kLargeIndex;
            (regular ? max_rows<T> : max_plane<T>)(axes, from.memory() + i * planes.in,
                                                   to.memory() + i * planes.out,
                                                   places.memory() + i * planes.out);
          });
    to.store();
    places.store();
    return {};
  });
}

Status max_pool(KernelCall& call) {
  if (call.out[0].geometry->numel() == 0) return {};
  const Axes axes =
      sliding(call.in[0].geometry->shape, call.out[0].geometry->shape, call.attributes, 3);
  return maxima(call, [&](std::int64_t) -> const Axes& { return axes; });
}

Status adaptive_max_pool(KernelCall& call) {
  if (call.out[0].geometry->numel() == 0) return {};
  const Axes axes = adaptive(call.in[0].geometry->shape, call.out[0].geometry->shape);
  return maxima(call, [&](std::int64_t) -> const Axes& { return axes; });
}

// The positions of the windows along one dimension, computed as in PyTorch.
template <class T>
Axis fractional(std::int64_t in, std::int64_t out, std::int64_t kernel, T sample) {
  Axis axis;
  axis.size = in;
  axis.windows.clear();
  const T alpha = out > 1 ? static_cast<T>(in - kernel) / static_cast<T>(out - 1) : T(0);
  const auto whole = [&](T x) {  // truncates; a client's sample may be any number
    if (!(x > 0)) return std::int64_t{0};
    return x < static_cast<T>(in) ? static_cast<std::int64_t>(x) : in;
  };
  const std::int64_t first = whole(sample * alpha);
  for (std::int64_t i = 0; i < out; ++i) {
    std::int64_t begin = in - kernel;
    if (i + 1 < out) begin = whole((static_cast<T>(i) + sample) * alpha) - first;
    begin = std::clamp<std::int64_t>(begin, 0, in - kernel);
    axis.windows.push_back({begin, begin + kernel, kernel});
  }
  return axis;
}

Status fractional_max_pool(KernelCall& call) {
  const Dims &x = call.in[0].geometry->shape, &y = call.out[0].geometry->shape;
  if (call.out[0].geometry->numel() == 0) return {};
  const int n = x.size() - 2;
  return with_float_type(call.in[1].dtype, [&](auto a) -> Status {
    using T = decltype(a);
    Status status;
    const Dense<T> samples(call, call.in[1], true, status);
    TT_RETURN_IF_ERROR(status);
    return maxima(call, [&](std::int64_t plane) {
      Axes axes;
      for (int d = 0; d < n; ++d) {
        // As in PyTorch: in 2-d the last sample belongs to the first dimension, in 3-d samples are
        // in the order of the dimensions.
        const int at = n == 2 ? n - 1 - d : d;
        axes[static_cast<std::size_t>(3 - n + d)] =
            fractional<T>(x[d + 2], y[d + 2], call.attributes.ints(0)[static_cast<std::size_t>(d)],
                          samples.memory()[plane * n + at]);
      }
      return axes;
    });
  });
}

Status max_unpool(KernelCall& call) {
  const TensorArg &in = call.in[0], &out = call.out[0];
  // planes.in is the number of elements per plane of the result.
  const Planes planes(out.geometry->shape, in.geometry->shape);
  if (in.geometry->numel() == 0 && out.geometry->numel() == 0) return {};
  const bool accumulate = call.attributes.boolean(1);
  return with_modular_type(out.dtype, [&](auto a) -> Status {
    using T = decltype(a);
    Status status;
    const Dense<T> from(call, in, true, status), to(call, out, false, status);
    const Dense<std::int64_t> places(call, call.in[1], true, status);
    TT_RETURN_IF_ERROR(status);
    const std::int64_t elements = in.geometry->numel();
    for (std::int64_t i = 0; i < elements; ++i) {
      const std::int64_t place = places.memory()[i];
      if (place < 0 || place >= planes.in) {
        return Status(core::Code::kInvalidArgument,
                      std::string(call.op.name) +
                          ": found an invalid max index: " + std::to_string(place) +
                          " (output volumes are of size " + std::to_string(planes.in) + ")");
      }
    }
    const double ns = static_cast<double>(planes.count) * (static_cast<double>(planes.in) * 0.2 +
                                                           2.0 * static_cast<double>(planes.out));
    share(call.parallel, planes.count, parts_of(ns, planes.count),
          [&](std::int64_t p, std::int64_t) {
            T* const y = to.memory() + p * planes.in;
            std::fill_n(y, planes.in, T{});
            for (std::int64_t i = p * planes.out; i < (p + 1) * planes.out; ++i) {
              T& target = y[places.memory()[i]];
              if (!accumulate) {
                target = from.memory()[i];
              } else if constexpr (std::is_integral_v<T>) {
                target = static_cast<T>(static_cast<std::uint64_t>(target) +
                                        static_cast<std::uint64_t>(from.memory()[i]));
              } else {
                target += from.memory()[i];
              }
            }
          });
    to.store();
    return {};
  });
}

// ---------------------------------------------------------------- means

struct Mean {
  bool include_padding = true;
  std::int64_t divisor = 0;  // the op's argument, or 0 if none was given
  std::int64_t of(const Window& a, const Window& b, const Window& c) const {
    if (divisor != 0) return divisor;
    if (!include_padding) return (a.end - a.begin) * (b.end - b.begin) * (c.end - c.begin);
    std::int64_t all;  // a window of mostly padding; the value is not used
    if (__builtin_mul_overflow(a.extent, b.extent, &all) ||
        __builtin_mul_overflow(all, c.extent, &all)) {
      return std::numeric_limits<std::int64_t>::max();
    }
    return all;
  }
};

// Computes the mean of each window; with kBack, adds the share of each gradient to the elements of
// its window.
template <bool kBack, class T>
void mean_plane(const Axes& axes, const Mean& mean, T* x, T* y, std::int64_t area) {
  const std::int64_t height = axes[1].size, width = axes[2].size;
  if constexpr (kBack) std::fill_n(x, area, T{});
  for (const Window& a : axes[0].windows) {
    for (const Window& b : axes[1].windows) {
      for (const Window& c : axes[2].windows) {
        const std::int64_t divisor = mean.of(a, b, c);
        T total = 0;
        if constexpr (kBack) total = divisor == 0 ? T(0) : *y / static_cast<T>(divisor);
        for (std::int64_t i = a.begin; i < a.end; ++i) {
          for (std::int64_t j = b.begin; j < b.end; ++j) {
            T* const row = x + (i * height + j) * width;
            for (std::int64_t k = c.begin; k < c.end; ++k) {
              if constexpr (kBack) {
                row[k] += total;
              } else if constexpr (std::is_integral_v<T>) {
                total = static_cast<T>(static_cast<std::uint64_t>(total) +
                                       static_cast<std::uint64_t>(row[k]));
              } else {
                total += row[k];
              }
            }
          }
        }
        if constexpr (!kBack && std::is_integral_v<T>) {
          // -1 is the only divisor for which a division can overflow.
          *y = divisor == 0    ? T(0)
               : divisor == -1 ? static_cast<T>(0 - static_cast<std::uint64_t>(total))
                               : total / divisor;
        } else if constexpr (!kBack) {
          *y = divisor == 0 ? T(0) : total / static_cast<T>(divisor);
        }
        ++y;
      }
    }
  }
}

template <bool kBack>
Status means(KernelCall& call, const Axes& axes, const Mean& mean) {
  const TensorArg &in = call.in[0], &out = call.out[0];
  const TensorArg &x = kBack ? out : in, &y = kBack ? in : out;
  const Planes planes(x.geometry->shape, y.geometry->shape);
  const auto run = [&](auto a) -> Status {
    using T = decltype(a);
    Status status;
    const Dense<T> wide(call, x, !kBack, status), narrow(call, y, kBack, status);
    TT_RETURN_IF_ERROR(status);
    const double ns = static_cast<double>(planes.count) *
                      (static_cast<double>(planes.in) + 4.0 * static_cast<double>(planes.out));
    share(call.parallel, planes.count, parts_of(ns, planes.count),
          [&](std::int64_t i, std::int64_t) {
            mean_plane<kBack, T>(axes, mean, wide.memory() + i * planes.in,
                                 narrow.memory() + i * planes.out, planes.in);
          });
    (kBack ? wide : narrow).store();
    return {};
  };
  if constexpr (kBack) {
    return with_float_type(out.dtype, run);
  } else {
    return with_modular_type(out.dtype, run);
  }
}

template <bool kBack>
Status avg_pool(KernelCall& call) {
  const core::Attributes& a = call.attributes;
  if (call.out[0].geometry->numel() == 0) return {};
  const Dims &x = (kBack ? call.out[0] : call.in[0]).geometry->shape,
             &y = (kBack ? call.in[0] : call.out[0]).geometry->shape;
  return means<kBack>(call, sliding(x, y, a, -1), {a.boolean(4), a.has(5) ? a.integer(5) : 0});
}

template <bool kBack>
Status adaptive_avg_pool(KernelCall& call) {
  if (call.out[0].geometry->numel() == 0) return {};
  const Dims &x = (kBack ? call.out[0] : call.in[0]).geometry->shape,
             &y = (kBack ? call.in[0] : call.out[0]).geometry->shape;
  return means<kBack>(call, adaptive(x, y), {});
}

}  // namespace

void add_pooling_kernels(KernelTable& table) {
  table.add("max_pool", max_pool);
  table.add("adaptive_max_pool", adaptive_max_pool);
  table.add("fractional_max_pool", fractional_max_pool);
  table.add("max_unpool", max_unpool);
  table.add("avg_pool", avg_pool<false>);
  table.add("avg_pool_backward", avg_pool<true>);
  table.add("adaptive_avg_pool", adaptive_avg_pool<false>);
  table.add("adaptive_avg_pool_backward", adaptive_avg_pool<true>);
}

}  // namespace teletensor::backends::cpu
