// Kernels of constant_pad_nd, im2col, col2im and resample.
#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "engine/backends/cpu/access/dense.h"
#include "engine/backends/cpu/arrangement/regions.h"
#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/windows/conv.h"
#include "engine/ops/windows/resample.h"

namespace teletensor::backends::cpu {
namespace {

using core::Dims;
using core::Geometry;
using core::Status;
using ops::ResampleMode;

// ---------------------------------------------------------------- padding

Status constant_pad(KernelCall& call) {
  const TensorArg& out = call.out[0];
  if (out.geometry->numel() == 0) return {};
  strided_copy(call.in[1], out, call.parallel);
  const std::optional<Kept> kept = kept_of_pad(call);
  if (!kept) return {};
  TensorArg source = call.in[0], target = out;
  source.geometry = &kept->from;
  target.geometry = &kept->to;
  strided_copy(source, target, call.parallel);
  return {};
}

// ---------------------------------------------------------------- im2col and col2im

Conv windows_of(const KernelCall& call, const Dims& image, std::size_t first) {
  Conv c;
  c.spatial = 2;
  c.batch = image[0];
  c.in_channels = image[1];
  for (int d = 0; d < 2; ++d) {
    const auto at = static_cast<std::size_t>(d);
    c.in[d + 1] = image[d + 2];
    c.kernel[d + 1] = call.attributes.ints(first)[at];
    c.dilation[d + 1] = call.attributes.ints(first + 1)[at];
    c.padding[d + 1] = call.attributes.ints(first + 2)[at];
    c.stride[d + 1] = call.attributes.ints(first + 3)[at];
    const std::int64_t span = c.dilation[d + 1] * (c.kernel[d + 1] - 1) + 1;
    c.out[d + 1] = (c.in[d + 1] + 2 * c.padding[d + 1] - span) / c.stride[d + 1] + 1;
  }
  return c;
}

template <bool kBack>
Status columns(KernelCall& call) {
  const TensorArg& out = call.out[0];
  if (out.geometry->numel() == 0) return {};
  const Conv c = kBack ? windows_of(call, out.geometry->shape, 1)
                       : windows_of(call, call.in[0].geometry->shape, 0);
  return with_modular_type(out.dtype, [&](auto a) -> Status {
    using T = decltype(a);
    Status status;
    const Dense<T> from(call, call.in[0], true, status), to(call, out, false, status);
    TT_RETURN_IF_ERROR(status);
    const std::int64_t channels = c.batch * c.in_channels, taps = c.taps(), area = c.out_area();
    const double ns = static_cast<double>(channels) * static_cast<double>(taps * area);
    share(call.parallel, channels, parts_of(ns, channels), [&](std::int64_t i, std::int64_t) {
      if constexpr (kBack) {
        T* const image = to.memory() + i * c.in_area();
        std::fill_n(image, c.in_area(), T{});
        for (std::int64_t k = 0; k < taps; ++k) {
          scatter_tap(c, from.memory() + (i * taps + k) * area, k, 0, area, image);
        }
      } else {
        for (std::int64_t k = 0; k < taps; ++k) {
          gather_tap(c, from.memory() + i * c.in_area(), k, 0, area,
                     to.memory() + (i * taps + k) * area);
        }
      }
    });
    to.store();
    return {};
  });
}

// ---------------------------------------------------------------- resampling

// Element i of the result is the sum of weight * x[index] over its taps.
template <class T>
struct Tap {
  std::int64_t index;
  T weight;
};

std::int64_t to_index(double x, std::int64_t low, std::int64_t high) {
  if (!(x > static_cast<double>(low))) return low;
  if (x >= static_cast<double>(high)) return high;
  return static_cast<std::int64_t>(x);
}

// The taps of all results along one dimension. T is the type in which PyTorch computes the
// positions: the tensor's type, or float for 16-bit floats.
template <class T>
class Table {
 public:
  Table(std::int64_t from, std::int64_t to, ResampleMode mode, bool align, bool antialias,
        double scale)
      : from_(from), mode_(mode) {
    if (align) {
      scale_ = to > 1 ? static_cast<T>(from - 1) / static_cast<T>(to - 1) : T(0);
    } else {
      scale_ = scale > 0 ? static_cast<T>(1.0 / scale) : static_cast<T>(from) / static_cast<T>(to);
    }
    for (std::int64_t i = 0; i < to; ++i) {
      begin_.push_back(taps_.size());
      if (antialias) {
        smooth(i);
      } else {
        sharp(i, align);
      }
    }
    begin_.push_back(taps_.size());
  }
  // The taps of result i.
  std::span<const Tap<T>> taps(std::int64_t i) const {
    const auto at = static_cast<std::size_t>(i);
    return std::span(taps_).subspan(begin_[at], begin_[at + 1] - begin_[at]);
  }

 private:
  static T cubic(T x, T a) {
    x = std::abs(x);
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
    return 0;
  }
  static T near(T x, T a) { return ((a + 2) * x - (a + 3)) * x * x + 1; }
  static T far(T x, T a) { return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a; }
  void add(std::int64_t index, T weight) {
    taps_.push_back({std::clamp<std::int64_t>(index, 0, from_ - 1), weight});
  }
  void sharp(std::int64_t i, bool align) {
    const T at = static_cast<T>(i);
    if (mode_ == ResampleMode::kNearest || mode_ == ResampleMode::kNearestExact) {
      const T place = (mode_ == ResampleMode::kNearest ? at : at + T(0.5)) * scale_;
      add(to_index(std::floor(place), 0, from_ - 1), 1);
      return;
    }
    T place = align ? scale_ * at : scale_ * (at + T(0.5)) - T(0.5);
    if (mode_ == ResampleMode::kLinear) {
      place = std::max(place, T(0));
      const std::int64_t low = to_index(place, 0, from_ - 1);
      const T part = std::clamp(place - static_cast<T>(low), T(0), T(1));
      add(low, T(1) - part);
      add(low + 1, part);
      return;
    }
    const T floor = std::floor(place), t = std::clamp(place - floor, T(0), T(1)), a = T(-0.75);
    const std::int64_t low = to_index(floor + 2, 0, from_ + 4) - 2;
    add(low - 1, far(t + 1, a));
    add(low, near(t, a));
    add(low + 1, near(1 - t, a));
    add(low + 2, far(2 - t, a));
  }
  void smooth(std::int64_t i) {
    const T half = mode_ == ResampleMode::kLinear ? T(1) : T(2);
    const T support = scale_ >= 1 ? half * scale_ : half, inverse = scale_ >= 1 ? 1 / scale_ : T(1);
    const T center = scale_ * (static_cast<T>(i) + T(0.5));
    const std::int64_t first = to_index(center - support + T(0.5), 0, from_ - 1);
    const std::int64_t last = std::max(first + 1, to_index(center + support + T(0.5), 0, from_));
    T total = 0;
    const auto weight = [&](std::int64_t j) {
      const T x = (static_cast<T>(j) - center + T(0.5)) * inverse;
      if (mode_ == ResampleMode::kLinear) return std::max(T(0), 1 - std::abs(x));
      return cubic(x, T(-0.5));
    };
    for (std::int64_t j = first; j < last; ++j) total += weight(j);
    for (std::int64_t j = first; j < last; ++j) add(j, total != 0 ? weight(j) / total : T(0));
  }

  std::int64_t from_;
  ResampleMode mode_;
  T scale_;
  std::vector<std::size_t> begin_;
  std::vector<Tap<T>> taps_;
};

// y[k] = the sum of w[t] * x[j[t]][k] in the order of the taps; their number is a compile-time
// constant.
template <std::size_t kTaps, class T, class P>
void weighted_rows(const T* x, std::span<const Tap<P>> taps, std::int64_t inner, T* y) {
  const T* rows[kTaps];
  T weights[kTaps];
  for (std::size_t t = 0; t < kTaps; ++t) {
    rows[t] = x + taps[t].index * inner;
    weights[t] = static_cast<T>(taps[t].weight);
  }
  for (std::int64_t k = 0; k < inner; ++k) {
    T sum{};
    for (std::size_t t = 0; t < kTaps; ++t) sum += rows[t][k] * weights[t];
    y[k] = sum;
  }
}

// Adds weight * from to `to`. Integers have no weights (they support only nearest neighbours).
template <class T, class P>
void add_weighted(const T* from, P weight, std::int64_t inner, T* to) {
  if constexpr (std::is_integral_v<T>) {
    for (std::int64_t k = 0; k < inner; ++k) {
      to[k] =
          static_cast<T>(static_cast<std::uint64_t>(to[k]) + static_cast<std::uint64_t>(from[k]));
    }
  } else {
    const T w = static_cast<T>(weight);
    for (std::int64_t k = 0; k < inner; ++k) to[k] += from[k] * w;
  }
}

// Computes one line of `wide` results (or, with kBack, the gradients from it) of `inner` numbers
// each.
template <bool kBack, class T, class P>
void resample_line(const Table<P>& table, std::int64_t wide, std::int64_t inner, const T* x, T* y) {
  for (std::int64_t i = 0; i < wide; ++i) {
    const std::span<const Tap<P>> taps = table.taps(i);
    if constexpr (!kBack) {
      T* const to = y + i * inner;
      if (taps.size() == 1) {
        weighted_rows<1>(x, taps, inner, to);
        continue;
      } else if (taps.size() == 2) {
        weighted_rows<2>(x, taps, inner, to);
        continue;
      } else if (taps.size() == 4) {
        weighted_rows<4>(x, taps, inner, to);
        continue;
      }
      std::fill_n(to, inner, T{});
    }
    for (const Tap<P>& tap : taps) {
      add_weighted(x + (kBack ? i : tap.index) * inner, tap.weight, inner,
                   y + (kBack ? tap.index : i) * inner);
    }
  }
}

template <bool kBack>
Status resample(KernelCall& call) {
  const TensorArg &in = call.in[0], &out = call.out[0];
  if (out.geometry->numel() == 0) return {};
  const core::Attributes& a = call.attributes;
  const Dims &shape = in.geometry->shape, &result = out.geometry->shape;
  const int dim = static_cast<int>((a.integer(0) + shape.size()) % shape.size());
  const std::int64_t size = kBack ? result[dim] : shape[dim],
                     wide = kBack ? shape[dim] : result[dim];
  std::int64_t outer = 1, inner = 1;
  for (int d = 0; d < shape.size(); ++d) {
    if (d < dim) outer *= shape[d];
    if (d > dim) inner *= shape[d];
  }
  return with_modular_type(out.dtype, [&](auto type) -> Status {
    using T = decltype(type);
    using P = std::conditional_t<std::is_same_v<T, double>, double, float>;
    const Table<P> table(size, wide, *ops::resample_mode(a.text(2)), a.boolean(3), a.boolean(4),
                         a.has(5) ? a.real(5) : 0);
    Status status;
    const Dense<T> from(call, in, true, status), to(call, out, false, status);
    TT_RETURN_IF_ERROR(status);
    const double ns =
        static_cast<double>(outer) * static_cast<double>(inner) * static_cast<double>(wide) * 2;
    share(call.parallel, outer, parts_of(ns, outer), [&](std::int64_t o, std::int64_t) {
      const T* const x = from.memory() + o * inner * (kBack ? wide : size);
      T* const y = to.memory() + o * inner * (kBack ? size : wide);
      if (kBack) std::fill_n(y, inner * size, T{});
      resample_line<kBack>(table, wide, inner, x, y);
    });
    to.store();
    return {};
  });
}

}  // namespace

void add_spatial_kernels(KernelTable& table) {
  table.add("constant_pad_nd", constant_pad);
  table.add("im2col", columns<false>);
  table.add("col2im", columns<true>);
  table.add("resample", resample<false>);
  table.add("resample_backward", resample<true>);
}

}  // namespace teletensor::backends::cpu
