// Pooling, computed as in cpu/pooling.cc, with one thread per result.
namespace tt {

namespace calls = teletensor::backends::cuda::calls;

// a / b for nonnegative numbers. Uses a 32-bit division if both fit into 32 bits, and otherwise
// divides bit by bit (the compiler's 64-bit division is a call, which costs every kernel
// registers).
inline std::int64_t over(std::int64_t a, std::int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<unsigned>(a) / static_cast<unsigned>(b);
  std::uint64_t q = 0, rest = 0;
#pragma unroll 1
  for (int i = 63; i >= 0; --i) {
    rest = rest << 1 | (static_cast<std::uint64_t>(a) >> i & 1);
    const bool fits = rest >= static_cast<std::uint64_t>(b);
    rest -= fits ? static_cast<std::uint64_t>(b) : 0;
    q = q << 1 | static_cast<std::uint64_t>(fits);
  }
  return static_cast<std::int64_t>(q);
}
// Removes the last coordinate, of a dimension of `size`, from `rest` and returns it.
inline std::int64_t coordinate(std::int64_t& rest, std::int64_t size) {
  const std::int64_t q = over(rest, size), c = rest - q * size;
  rest = q;
  return c;
}

struct Window {
  std::int64_t begin, end, extent;
};
template <bool kAdaptive>
Window window_of(const calls::PoolAxis& a, std::int64_t i) {
  if constexpr (kAdaptive) {
    const std::int64_t whole = over(a.in, a.out), part = a.in - whole * a.out;
    const std::int64_t begin = i * whole + over(i * part, a.out);
    const std::int64_t end = (i + 1) * whole + over((i + 1) * part + a.out - 1, a.out);
    return {begin, end, end - begin};
  } else {
    std::int64_t begin = i * a.stride - a.padding;
    std::int64_t end = begin + (a.kernel - 1) * a.dilation + 1;
    if (end > a.in + a.padding) end = a.in + a.padding;
    const std::int64_t extent = end - begin;
    if (begin < 0) begin += over(-begin + a.dilation - 1, a.dilation) * a.dilation;
    if (end > a.in) end = a.in;
    return {begin, end > begin ? end : begin, extent};
  }
}
struct Windows {
  Window w[3];
  std::int64_t plane;
};
template <bool kAdaptive>
Windows windows_of(const calls::PoolCall& p, std::int64_t at) {
  Windows all;
#pragma unroll
  for (int d = 2; d >= 0; --d) {
    all.w[d] = window_of<kAdaptive>(p.axes[d], coordinate(at, p.axes[d].out));
  }
  all.plane = at;
  return all;
}
inline std::int64_t divisor_of(const calls::PoolCall& p, const Windows& all) {
  if (p.divisor != 0) return p.divisor;
  std::int64_t n = 1;
#pragma unroll
  for (int d = 0; d < 3; ++d) {
    const Window& w = all.w[d];
    const std::int64_t size = p.include_padding ? w.extent : w.end - w.begin;
    // A window of mostly padding; the value is not used.
    const std::int64_t high = __mul64hi(n, size);
    n = high == 0 && n * size >= 0 ? n * size : INT64_MAX;
    if (n == INT64_MAX) return n;
  }
  return n;
}

template <class T, class A, int kAdaptive>
void max_pool(const calls::PoolCall& p, std::int64_t at) {
  const Windows all = windows_of<kAdaptive>(p, at);
  const Window &a = all.w[0], &b = all.w[1], &c = all.w[2];
  const std::int64_t depth = p.axes[0].in, height = p.axes[1].in, width = p.axes[2].in;
  const T* const x = static_cast<const T*>(p.x) + all.plane * depth * height * width;
  const auto inside = [](std::int64_t i, std::int64_t n) { return i < n - 1 ? i : n - 1; };
  A best;
  if constexpr (std::is_floating_point_v<A>) {
    best = -A(__builtin_inf());
  } else {
    best = INT64_MIN;
  }
  // A window that contains no element (large dilation) still gets a valid position.
  std::int64_t place = (inside(a.begin, depth) * height + inside(b.begin, height)) * width +
                       inside(c.begin, width);
#pragma unroll 1
  for (std::int64_t i = a.begin; i < a.end; i += p.axes[0].dilation) {
#pragma unroll 1
    for (std::int64_t j = b.begin; j < b.end; j += p.axes[1].dilation) {
      const std::int64_t row = (i * height + j) * width;
      const std::int64_t step = p.axes[2].dilation;
#pragma unroll 1
      for (std::int64_t k = c.begin; k < c.end; k += 4 * step) {  // four loads at once
        T held[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (k + e * step < c.end) held[e] = x[row + k + e * step];
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const A value = s::to_compute<A>(held[e]);
          if (k + e * step < c.end && (value > best || value != value)) {
            best = value;
            place = row + k + e * step;
          }
        }
      }
    }
  }
  static_cast<T*>(p.y)[at] = s::from_compute<T>(best);
  p.places[at] = place;
}

template <class T, class A, int kAdaptive>
void mean_pool(const calls::PoolCall& p, std::int64_t at) {
  const Windows all = windows_of<kAdaptive>(p, at);
  const Window &a = all.w[0], &b = all.w[1], &c = all.w[2];
  const std::int64_t height = p.axes[1].in, width = p.axes[2].in;
  const T* const x = static_cast<const T*>(p.x) + all.plane * p.axes[0].in * height * width;
  A total = 0;
#pragma unroll 1
  for (std::int64_t i = a.begin; i < a.end; ++i) {
#pragma unroll 1
    for (std::int64_t j = b.begin; j < b.end; ++j) {
      const T* const row = x + (i * height + j) * width;
#pragma unroll 1
      for (std::int64_t k = c.begin; k < c.end; ++k) {
        total = s::Add()(total, s::to_compute<A>(row[k]));
      }
    }
  }
  const std::int64_t n = divisor_of(p, all);
  if constexpr (std::is_floating_point_v<A>) {
    total = n == 0 ? A(0) : total / static_cast<A>(n);
  } else {
    total = n == 0 ? 0 : n == -1 ? s::Neg()(total) : total / n;
  }
  static_cast<T*>(p.y)[at] = s::from_compute<T>(total);
}

// The gradient of mean pooling, one thread per element: adds the shares of all windows that contain
// the element, in order. p.x has the gradients of the windows.
template <class T, class A, int kAdaptive>
void mean_pool_backward(const calls::PoolCall& p, std::int64_t at) {
  std::int64_t rest = at, low[3], high[3];
#pragma unroll
  for (int d = 2; d >= 0; --d) {
    const calls::PoolAxis& a = p.axes[d];
    const std::int64_t e = coordinate(rest, a.in);
    if constexpr (kAdaptive) {
      low[d] = over(e * a.out, a.in);
      high[d] = over((e + 1) * a.out + a.in - 1, a.in);
    } else {
      const std::int64_t first = e + a.padding - a.kernel + 1;
      low[d] = first <= 0 ? 0 : over(first + a.stride - 1, a.stride);
      high[d] = over(e + a.padding, a.stride) + 1;
    }
    if (high[d] > a.out) high[d] = a.out;
  }
  const T* const y = static_cast<const T*>(p.x) +
                     rest * p.axes[0].out * p.axes[1].out * p.axes[2].out;
  A total = 0;
  Windows all;
#pragma unroll 1
  for (std::int64_t i = low[0]; i < high[0]; ++i) {
    all.w[0] = window_of<kAdaptive>(p.axes[0], i);
#pragma unroll 1
    for (std::int64_t j = low[1]; j < high[1]; ++j) {
      all.w[1] = window_of<kAdaptive>(p.axes[1], j);
#pragma unroll 1
      for (std::int64_t k = low[2]; k < high[2]; ++k) {
        all.w[2] = window_of<kAdaptive>(p.axes[2], k);
        const std::int64_t n = divisor_of(p, all);
        const A g = s::to_compute<A>(y[(i * p.axes[1].out + j) * p.axes[2].out + k]);
        total += n == 0 ? A(0) : g / static_cast<A>(n);
      }
    }
  }
  static_cast<T*>(p.y)[at] = s::from_compute<T>(total);
}

// One block per plane. Several elements may go to one position; the last of them stays, or all are
// added in their order. The block takes 256 elements at a time and stores them in rounds. Among the
// remaining elements whose positions have the same remainder, a round stores the first. Adjacent
// positions usually have different remainders, so there are as many rounds as elements that go to
// one position.
template <class T, class A>
void max_unpool(const calls::UnpoolCall& p) {
  constexpr int kSlots = 2048;
  __shared__ int firsts[kSlots];  // by remainder: the first remaining element; 256 if there is none
  if (*p.flag != 0) return;
  const std::int64_t plane = blockIdx.x;
  const int t = threadIdx.x;
  const T* const x = static_cast<const T*>(p.x) + plane * p.in;
  A* const y = static_cast<A*>(p.y) + plane * p.out;
  for (std::int64_t i = t; i < p.out; i += 256) y[i] = A(0);
#pragma unroll
  for (int i = 0; i < kSlots; i += 256) firsts[i + t] = 256;
  __syncthreads();
  const std::int64_t* const places = p.places + plane * p.in;
  std::int64_t place = 0, next_place = t < p.in ? places[t] : 0;
  A value = 0, next = t < p.in ? s::to_compute<A>(x[t]) : A(0);
  for (std::int64_t e = t; e - t < p.in; e += 256) {
    place = next_place;
    value = next;
    bool left = e < p.in;
    if (e + 256 < p.in) {  // loaded early, while the rounds for this element run
      next_place = places[e + 256];
      next = s::to_compute<A>(x[e + 256]);
    }
    int* const slot = firsts + place % kSlots;
    do {
      if (left) atomicMin(slot, t);
      __syncthreads();
      const bool stores = left && *slot == t;
      __syncthreads();
      if (stores) {
        y[place] = p.accumulate ? s::Add()(y[place], value) : value;
        *slot = 256;
        left = false;
      }
    } while (__syncthreads_or(left));
  }
}

}  // namespace tt
