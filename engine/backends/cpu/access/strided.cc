#include "engine/backends/cpu/access/strided.h"

#include <algorithm>
#include <cstring>

#include "engine/backends/cpu/access/block_io.h"
#include "engine/backends/cpu/access/transpose4x4.h"

namespace teletensor::backends::cpu {

using core::DType;

LinearOrder::LinearOrder(const core::Geometry& result) {
  for (int d = result.rank() - 1; d >= 0; --d) {
    if (result.shape[d] == 1) continue;
    count *= result.shape[d];
    int at = rank++;
    for (; at > 0 && result.strides[d] < result.strides[dims[at - 1]]; --at)
      dims[at] = dims[at - 1];
    dims[at] = d;
  }
  for (int i = 0; i < rank; ++i) sizes[i] = result.shape[dims[i]];
}

Walk::Walk(const core::Geometry& operand, const LinearOrder& order, int rank) {
  const int lead = rank - operand.rank();
  for (int i = 0; i < order.rank; ++i) {
    const int d = order.dims[i] - lead;
    const std::int64_t stride = d < 0 || operand.shape[d] == 1 ? 0 : operand.strides[d];
    if (rank_ > 0 && strides_[rank_ - 1] * sizes_[rank_ - 1] == stride) {
      sizes_[rank_ - 1] *= order.sizes[i];
    } else {
      sizes_[rank_] = order.sizes[i];
      strides_[rank_++] = stride;
    }
  }
}

namespace {

constexpr std::int64_t kBlockElements = 1024;

// The axes of both sides of a copy, with the innermost axis of `to` first. Axes that are uniformly
// strided on both sides are merged.
struct Axes {
  int rank = 0;
  std::int64_t sizes[core::kMaxRank], from[core::kMaxRank], to[core::kMaxRank];
  std::int64_t count = 1;

  Axes(const core::Geometry* source, const core::Geometry& target) {
    const LinearOrder order(target);
    const int lead = source ? target.rank() - source->rank() : 0;
    for (int i = 0; i < order.rank; ++i) {
      const int d = order.dims[i], s = d - lead;
      const bool repeated = source == nullptr || s < 0 || source->shape[s] == 1;
      const std::int64_t from_stride = repeated ? 0 : source->strides[s];
      // Along this axis one value is written to one place again and again. It is written only once,
      // because an expanded view may have more elements than would fit into memory.
      if (from_stride == 0 && target.strides[d] == 0 && order.sizes[i] > 0) continue;
      count *= order.sizes[i];
      add(order.sizes[i], from_stride, target.strides[d]);
    }
    if (rank == 0) add(1, 1, 1);
  }

  // Calls run(from offset, to offset, length) for the runs along axis 0 within [start, start + n).
  template <class F>
  void runs(std::int64_t start, std::int64_t n, F&& run) const {
    std::int64_t index[core::kMaxRank], a = 0, b = 0;
    for (int d = 0; d < rank; ++d) {
      index[d] = d + 1 < rank ? start % sizes[d] : start;
      start /= sizes[d];
      a += index[d] * from[d];
      b += index[d] * to[d];
    }
    while (n > 0) {
      const std::int64_t length = std::min(sizes[0] - index[0], n);
      run(a, b, length);
      n -= length;
      a -= index[0] * from[0];
      b -= index[0] * to[0];
      index[0] = 0;
      for (int d = 1; d < rank; ++d) {
        a += from[d];
        b += to[d];
        if (++index[d] < sizes[d] || d + 1 == rank) break;
        a -= sizes[d] * from[d];
        b -= sizes[d] * to[d];
        index[d] = 0;
      }
    }
  }

 private:
  void add(std::int64_t size, std::int64_t from_stride, std::int64_t to_stride) {
    if (rank > 0 && from[rank - 1] * sizes[rank - 1] == from_stride &&
        to[rank - 1] * sizes[rank - 1] == to_stride) {
      sizes[rank - 1] *= size;
      return;
    }
    sizes[rank] = size;
    from[rank] = from_stride;
    to[rank++] = to_stride;
  }
};

// Elements of equal dtype are moved as unsigned integers of their size.
template <class T>
void copy_run(const T* from, std::int64_t from_stride, T* to, std::int64_t to_stride,
              std::int64_t n) {
  if (to_stride == 1 && from_stride == 1) {
    std::memmove(to, from, static_cast<std::size_t>(n) * sizeof(T));
  } else if (to_stride == 1 && from_stride == 0) {
    constexpr std::int64_t kPattern = 4096 / sizeof(T);  // memcpy has the widest stores
    std::fill_n(to, std::min(n, kPattern), *from);
    for (std::int64_t i = kPattern; i < n; i += kPattern) {
      std::memcpy(to + i, to, static_cast<std::size_t>(std::min(kPattern, n - i)) * sizeof(T));
    }
  } else {
    for (std::int64_t i = 0; i < n; ++i) to[i * to_stride] = from[i * from_stride];
  }
}

// square[i][j] = source[i + j * stride].
template <class T, std::int64_t kSide>
void transpose_square(const T* source, std::int64_t stride, T (&square)[kSide][kSide]) {
  if constexpr (sizeof(T) == 4) {  // 4 x 4 at a time in registers
    using V = std::uint32_t __attribute__((vector_size(16)));
    for (std::int64_t j = 0; j < kSide; j += 4) {
      for (std::int64_t i = 0; i < kSide; i += 4) {
        V r[4];
        for (int k = 0; k < 4; ++k) std::memcpy(&r[k], source + (j + k) * stride + i, 16);
        turn(r);
        for (int k = 0; k < 4; ++k) std::memcpy(&square[i + k][j], &r[k], 16);
      }
    }
  } else {
    for (std::int64_t j = 0; j < kSide; ++j) {
      for (std::int64_t i = 0; i < kSide; ++i) square[i][j] = source[j * stride + i];
    }
  }
}

// to[i * to_i + j] = from[i + j * from_j], in squares as wide as a cache line, through a small
// buffer: with strides of a power of two, the lines of a square would evict each other from the
// cache.
template <class T>
void copy_tiles(const T* from, std::int64_t from_j, T* to, std::int64_t to_i, std::int64_t rows,
                std::int64_t columns) {
  constexpr std::int64_t kSide = 64 / sizeof(T);
  T square[kSide][kSide];
  for (std::int64_t i0 = 0; i0 < rows; i0 += kSide) {
    const std::int64_t m = std::min(kSide, rows - i0);
    for (std::int64_t j0 = 0; j0 < columns; j0 += kSide) {
      const std::int64_t n = std::min(kSide, columns - j0);
      const T* source = from + i0 + j0 * from_j;
      T* target = to + i0 * to_i + j0;
      if (m == kSide && n == kSide) {
        transpose_square(source, from_j, square);
        for (std::int64_t i = 0; i < kSide; ++i) {
          std::memcpy(target + i * to_i, square[i], sizeof square[i]);
        }
      } else {
        for (std::int64_t i = 0; i < m; ++i) {
          for (std::int64_t j = 0; j < n; ++j) target[i * to_i + j] = source[j * from_j + i];
        }
      }
    }
  }
}

// The axis along which `from` is dense, if `to` is dense along axis 0; 0 if there is no such axis.
int transposed_axis(const Axes& axes) {
  if (axes.to[0] != 1 || axes.from[0] == 1 || axes.from[0] == 0 || axes.sizes[0] < 8) return 0;
  for (int d = 1; d < axes.rank; ++d) {
    if (axes.from[d] == 1 && axes.sizes[d] >= 8) return d;
  }
  return 0;
}

template <class T>
void copy_transposed(const T* from, T* to, const Axes& axes, int across, Parallel& parallel) {
  constexpr std::int64_t kBand = 64;  // rows that one unit of work covers
  const std::int64_t columns = axes.sizes[0], rows = axes.sizes[across];
  const std::int64_t bands = (rows + kBand - 1) / kBand;
  const double cost =
      static_cast<double>(columns) * static_cast<double>(std::min(rows, kBand)) * 0.6;
  split(parallel, axes.count / columns / rows * bands, cost, 1,
        [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t p = begin; p < end; ++p) {
            const std::int64_t row = p % bands * kBand;
            std::int64_t rest = p / bands, a = row, b = row * axes.to[across];
            for (int d = 1; d < axes.rank; ++d) {
              if (d == across) continue;
              a += rest % axes.sizes[d] * axes.from[d];
              b += rest % axes.sizes[d] * axes.to[d];
              rest /= axes.sizes[d];
            }
            copy_tiles(from + a, axes.from[0], to + b, axes.to[across], std::min(kBand, rows - row),
                       columns);
          }
        });
}

template <class T>
void copy_same(const void* source, void* target, const Axes& axes, Parallel& parallel) {
  const T* from = static_cast<const T*>(source);
  T* to = static_cast<T*>(target);
  if (const int across = transposed_axis(axes)) {
    return copy_transposed(from, to, axes, across, parallel);
  }
  const bool rows = axes.from[0] <= 1 && axes.to[0] == 1;
  const double cost = rows ? 0.04 * sizeof(T) : 0.8;
  split(parallel, axes.count, cost, 4096, [&](std::int64_t begin, std::int64_t end) {
    axes.runs(begin, end - begin, [&](std::int64_t a, std::int64_t b, std::int64_t n) {
      copy_run(from + a, axes.from[0], to + b, axes.to[0], n);
    });
  });
}

template <class A>
void copy_converted(const TensorArg& from, const TensorArg& to, const Axes& axes,
                    Parallel& parallel) {
  const LoadBlock<A> load = load_block<A>(from.dtype);
  const StoreBlock<A> store = store_block<A>(to.dtype);
  const auto from_size = static_cast<std::int64_t>(core::size_of(from.dtype));
  const auto to_size = static_cast<std::int64_t>(core::size_of(to.dtype));
  const char* source = from.first<char>();
  char* target = to.first<char>();
  split(parallel, axes.count, 1.0, 4096, [&](std::int64_t begin, std::int64_t end) {
    A block[kBlockElements];
    axes.runs(begin, end - begin, [&](std::int64_t a, std::int64_t b, std::int64_t n) {
      for (std::int64_t i = 0; i < n; i += kBlockElements) {
        const std::int64_t m = std::min(kBlockElements, n - i);
        load(source + (a + i * axes.from[0]) * from_size, axes.from[0], m, block);
        store(block, m, target + (b + i * axes.to[0]) * to_size, axes.to[0]);
      }
    });
  });
}

}  // namespace

void number_bytes(const core::Number& number, DType dtype, void* to) {
  switch (number.kind) {
    case core::Number::Kind::kFloat:
      return store_block<double>(dtype)(&number.real, 1, to, 1);
    case core::Number::Kind::kComplex: {
      const core::Complex128 value(number.real, number.imaginary);
      return store_block<core::Complex128>(dtype)(&value, 1, to, 1);
    }
    case core::Number::Kind::kUInt: {
      const auto value = static_cast<std::uint64_t>(number.integer);
      return store_block<std::uint64_t>(dtype)(&value, 1, to, 1);
    }
    case core::Number::Kind::kBool:
    case core::Number::Kind::kInt:
      return store_block<std::int64_t>(dtype)(&number.integer, 1, to, 1);
  }
}

void strided_copy(const TensorArg& from, const TensorArg& to, Parallel& parallel) {
  const bool number = from.kind == TensorArg::Kind::kNumber;
  const Axes axes(number ? nullptr : from.geometry, *to.geometry);
  if (axes.count == 0) return;
  alignas(16) char value[16];
  const void* source = value;
  if (number) {
    number_bytes(from.number, to.dtype, value);
  } else if (from.dtype == to.dtype) {
    source = from.first();
    if (source == to.first() && *from.geometry == *to.geometry) return;
  } else {
    return with_any_compute_type(
        from.dtype, [&](auto a) { copy_converted<decltype(a)>(from, to, axes, parallel); });
  }
  with_bytes(core::size_of(to.dtype),
             [&](auto t) { copy_same<decltype(t)>(source, to.first(), axes, parallel); });
}

}  // namespace teletensor::backends::cpu
