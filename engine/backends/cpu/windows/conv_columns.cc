// Convolutions as matrix products with columns of windows, one block of windows at a time; and
// im2col and col2im, which unfold and fold use as well.
#include <algorithm>
#include <type_traits>

#include "engine/backends/cpu/access/dense.h"
#include "engine/backends/cpu/linalg/gemm_simd.h"
#include "engine/backends/cpu/windows/conv.h"
#include "engine/backends/scratch_bytes.h"

namespace teletensor::backends::cpu {
namespace {

using core::Status;

// Integer arithmetic wraps.
template <class T>
T add(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  } else {
    return a + b;
  }
}

// Calls f(offset of the first element in the channel, step, valid begin, valid end, window) for
// runs of windows in one row. Only the windows [window + begin, window + end) of a run read
// elements; the others read padding.
template <class F>
void each_run(const Conv& c, std::int64_t tap, std::int64_t begin, std::int64_t end, F&& f) {
  const std::int64_t kz = tap / (c.kernel[1] * c.kernel[2]), ky = tap / c.kernel[2] % c.kernel[1],
                     kx = tap % c.kernel[2];
  const std::int64_t shift = kx * c.dilation[2] - c.padding[2], step = c.stride[2];
  // The windows whose element is inside: 0 <= ox * step + shift < in.
  const std::int64_t low = shift >= 0 ? 0 : (-shift + step - 1) / step;
  const std::int64_t high = c.in[2] <= shift ? 0 : (c.in[2] - shift + step - 1) / step;
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t ox = at % c.out[2], line = at / c.out[2];
    const std::int64_t n = std::min(c.out[2] - ox, end - at);
    const std::int64_t y = line % c.out[1] * c.stride[1] - c.padding[1] + ky * c.dilation[1];
    const std::int64_t z = line / c.out[1] * c.stride[0] - c.padding[0] + kz * c.dilation[0];
    const bool inside = y >= 0 && y < c.in[1] && z >= 0 && z < c.in[0];
    const std::int64_t first = inside ? std::clamp<std::int64_t>(low - ox, 0, n) : n;
    const std::int64_t last = inside ? std::clamp<std::int64_t>(high - ox, first, n) : n;
    const std::int64_t offset =
        first < last ? (z * c.in[1] + y) * c.in[2] + (ox + first) * step + shift : 0;
    f(offset, step, first, last, n, at - begin);
    at += n;
  }
}

}  // namespace

template <class T>
void gather_tap(const Conv& c, const T* channel, std::int64_t tap, std::int64_t begin,
                std::int64_t end, T* to) {
  each_run(c, tap, begin, end,
           [&](std::int64_t offset, std::int64_t step, std::int64_t first, std::int64_t last,
               std::int64_t n, std::int64_t at) {
             T* row = to + at;
             std::fill(row, row + first, T{});
             const T* from = channel + offset;
             if (step == 1) {
               std::copy_n(from, last - first, row + first);
             } else {
               for (std::int64_t i = first; i < last; ++i) row[i] = from[(i - first) * step];
             }
             std::fill(row + last, row + n, T{});
           });
}

template <class T>
void scatter_tap(const Conv& c, const T* from, std::int64_t tap, std::int64_t begin,
                 std::int64_t end, T* channel) {
  each_run(c, tap, begin, end,
           [&](std::int64_t offset, std::int64_t step, std::int64_t first, std::int64_t last,
               std::int64_t, std::int64_t at) {
             T* to = channel + offset;
             for (std::int64_t i = first; i < last; ++i, to += step) *to = add(*to, from[at + i]);
           });
}

namespace {

template <class T>
void product(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef<const T> a,
             MatrixRef<const T> b, T* c, std::int64_t ldc) {
  if constexpr (std::is_floating_point_v<T>) {
    gemm_blocked<T>(m, n, k, a, b, c, ldc);
  } else {
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        std::uint64_t total = 0;
        for (std::int64_t p = 0; p < k; ++p) {
          total += static_cast<std::uint64_t>(a.data[i * a.row + p * a.column]) *
                   static_cast<std::uint64_t>(b.data[p * b.row + j * b.column]);
        }
        c[i * ldc + j] = static_cast<T>(total);
      }
    }
  }
}

template <class T>
class Columns {
 public:
  Columns(KernelCall& call, const Conv& conv, const ConvMemory<T>& memory)
      : call_(call), c_(conv), m_(memory), rows_(conv.group_in() * conv.taps()) {
    area_ = c_.out_area();
    block_ = std::clamp<std::int64_t>((1 << 17) / rows_, 64, area_ < 64 ? 64 : area_);
    block_ = std::min(block_, area_);
  }

  Status run(ConvPass pass) {
    switch (pass) {
      case ConvPass::kOutput:
        return output();
      case ConvPass::kInput:
        return input();
      default:
        return weight();
    }
  }

 private:
  std::int64_t parts(std::int64_t most) const { return parts_of(c_.multiplications() * 0.1, most); }
  void columns(std::int64_t n, std::int64_t g, std::int64_t begin, std::int64_t end, T* to) const {
    for (std::int64_t r = 0; r < rows_; ++r) {
      const std::int64_t channel = g * c_.group_in() + r / c_.taps();
      gather_tap(c_, m_.x + (n * c_.in_channels + channel) * c_.in_area(), r % c_.taps(), begin,
                 end, to + r * (end - begin));
    }
  }
  T* allocate(std::int64_t count, Status& status) const {
    const std::size_t bytes = scratch_bytes(count, sizeof(T));
    void* memory = call_.scratch.allocate(bytes);
    if (!memory) status = out_of_scratch(call_.op.name, bytes);
    return static_cast<T*>(memory);
  }
  MatrixRef<const T> weight_of(std::int64_t g) const {
    return {m_.weight + g * c_.group_out() * rows_, rows_, 1};
  }
  T* y_of(std::int64_t n, std::int64_t g) const {
    return m_.y + (n * c_.out_channels + g * c_.group_out()) * area_;
  }
  Status output() {
    const std::int64_t blocks = (area_ + block_ - 1) / block_;
    const std::int64_t tasks = c_.batch * c_.groups * blocks, count = parts(tasks);
    Status status;
    T* const room = allocate(count * rows_ * block_, status);
    TT_RETURN_IF_ERROR(status);
    share(call_.parallel, tasks, count, [&](std::int64_t t, std::int64_t part) {
      const std::int64_t n = t / (c_.groups * blocks), g = t / blocks % c_.groups,
                         begin = t % blocks * block_, end = std::min(area_, begin + block_);
      T* const seen = room + part * rows_ * block_;
      columns(n, g, begin, end, seen);
      T* const y = y_of(n, g) + begin;
      product<T>(c_.group_out(), end - begin, rows_, weight_of(g), {seen, end - begin, 1}, y,
                 area_);
      if (!m_.bias) return;
      for (std::int64_t o = 0; o < c_.group_out(); ++o) {
        const T bias = m_.bias[g * c_.group_out() + o];
        for (std::int64_t i = 0; i < end - begin; ++i)
          y[o * area_ + i] = add(y[o * area_ + i], bias);
      }
    });
    return {};
  }

  Status input() {
    const std::int64_t tasks = c_.batch * c_.groups, count = parts(tasks);
    Status status;
    T* const room = allocate(count * rows_ * block_, status);
    TT_RETURN_IF_ERROR(status);
    share(call_.parallel, tasks, count, [&](std::int64_t t, std::int64_t part) {
      const std::int64_t n = t / c_.groups, g = t % c_.groups;
      T* const x = m_.x + (n * c_.in_channels + g * c_.group_in()) * c_.in_area();
      std::fill_n(x, c_.group_in() * c_.in_area(), T{});
      T* const seen = room + part * rows_ * block_;
      MatrixRef<const T> turned = weight_of(g);
      std::swap(turned.row, turned.column);
      for (std::int64_t begin = 0; begin < area_; begin += block_) {
        const std::int64_t wide = std::min(block_, area_ - begin);
        product<T>(rows_, wide, c_.group_out(), turned, {y_of(n, g) + begin, area_, 1}, seen, wide);
        for (std::int64_t r = 0; r < rows_; ++r) {
          scatter_tap(c_, seen + r * wide, r % c_.taps(), begin, begin + wide,
                      x + r / c_.taps() * c_.in_area());
        }
      }
    });
    return {};
  }

  // Sums over the batch: in order within a part, then the parts in order.
  Status weight() {
    const std::int64_t size = c_.out_channels * rows_;
    const std::int64_t count = parts(std::min<std::int64_t>(c_.batch, 8));
    const std::int64_t own = rows_ * block_ + c_.group_out() * rows_;
    Status status;
    T* const room = allocate(count * own, status);
    TT_RETURN_IF_ERROR(status);
    T* const sums = allocate(count * size, status);
    TT_RETURN_IF_ERROR(status);
    std::fill_n(sums, count * size, T{});
    share(call_.parallel, c_.batch, count, [&](std::int64_t n, std::int64_t part) {
      T *const seen = room + part * own, *const piece = seen + rows_ * block_;
      for (std::int64_t g = 0; g < c_.groups; ++g) {
        T* const to = sums + part * size + g * c_.group_out() * rows_;
        for (std::int64_t begin = 0; begin < area_; begin += block_) {
          const std::int64_t wide = std::min(block_, area_ - begin);
          columns(n, g, begin, begin + wide, seen);
          product<T>(c_.group_out(), rows_, wide, {y_of(n, g) + begin, area_, 1}, {seen, 1, wide},
                     piece, rows_);
          for (std::int64_t i = 0; i < c_.group_out() * rows_; ++i) to[i] = add(to[i], piece[i]);
        }
      }
    });
    for (std::int64_t i = 0; i < size; ++i) {
      T total = sums[i];
      for (std::int64_t p = 1; p < count; ++p) total = add(total, sums[p * size + i]);
      m_.weight[i] = total;
    }
    return {};
  }

  KernelCall& call_;
  const Conv& c_;
  const ConvMemory<T>& m_;
  const std::int64_t rows_;  // rows of the matrix of windows: channels of a group times taps
  std::int64_t area_, block_;
};

}  // namespace

template <class T>
Status column_conv(KernelCall& call, const Conv& conv, ConvPass pass, const ConvMemory<T>& memory) {
  return Columns<T>(call, conv, memory).run(pass);
}

#define TT_COLUMNS(T)                                                                             \
  template void gather_tap(const Conv&, const T*, std::int64_t, std::int64_t, std::int64_t, T*);  \
  template void scatter_tap(const Conv&, const T*, std::int64_t, std::int64_t, std::int64_t, T*); \
  template Status column_conv(KernelCall&, const Conv&, ConvPass, const ConvMemory<T>&);
TT_COLUMNS(float)
TT_COLUMNS(double)
TT_COLUMNS(std::int64_t)
#undef TT_COLUMNS

}  // namespace teletensor::backends::cpu
