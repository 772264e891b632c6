// Copies lines of pairs of numbers into and out of the work arrays of transforms. In a work array
// element k of line l is at index k * count + l; the first numbers of the pairs and the second
// numbers are in separate arrays.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "engine/backends/cpu/access/targets.h"
#include "engine/backends/cpu/access/transpose4x4.h"

namespace teletensor::backends::cpu {

inline constexpr std::int64_t kMaxLines = 16;

// Pair k of line l is base[at[l] + k * step] and base[at[l] + k * step + apart].
template <class T>
struct PairLines {
  T* base;
  std::int64_t count, step, apart;
  std::int64_t at[kMaxLines];

  // The distance from one line to the next if it is smaller than the distance between pairs, and
  // otherwise 0.
  std::int64_t across() const {
    const std::int64_t near = count > 1 ? at[1] - at[0] : 0;
    if (near < 0 || near >= step) return 0;
    for (std::int64_t l = 2; l < count; ++l) {
      if (at[l] - at[l - 1] != near) return 0;
    }
    return near;
  }
  bool dense() const { return step == 2 && apart == 1; }
};

template <class T>
struct FourOf;
template <>
struct FourOf<float> {
  using Vector = float __attribute__((vector_size(16)));
};
template <>
struct FourOf<double> {
  using Vector = double __attribute__((vector_size(32)));
};

// Calls f(k, l) for squares of 4 pairs of 4 lines, which cover `count` lines of n pairs as far as
// possible. Returns how many pairs of each line are covered.
template <class F>
std::int64_t each_square(std::int64_t count, std::int64_t n, F&& f) {
  if (count % 4 != 0) return 0;
  const std::int64_t whole = n / 4 * 4;
  for (std::int64_t k = 0; k < whole; k += 4) {
    for (std::int64_t l = 0; l < count; l += 4) f(k, l);
  }
  return whole;
}

// Rows are prefetched this far ahead, because they are too far apart for the hardware to predict.
inline constexpr std::int64_t kAhead = 8;
template <int kForWriting, class T>
void prefetch_row(const T* row, std::int64_t n) {
  constexpr auto kLine = static_cast<std::int64_t>(64 / sizeof(T));
  for (std::int64_t at = 0; at < n; at += kLine) __builtin_prefetch(row + at, kForWriting);
}

// Copies the pairs [0, n) of the lines into the work arrays.
template <class T>
void load_pairs(const PairLines<const T>& lines, std::int64_t n, T* re, T* im) {
  const std::int64_t count = lines.count, step = lines.step, apart = lines.apart;
  if (const std::int64_t near = lines.across()) {
    for (std::int64_t k = 0; k < n; ++k) {
      const T* const from = lines.base + lines.at[0] + k * step;
      if (k + kAhead < n) prefetch_row<0>(from + kAhead * step, near * count);
      T *const r = re + k * count, *const i = im + k * count;
      if (near == 2 && apart == 1) {
        TT_INDEPENDENT
        for (std::int64_t l = 0; l < count; ++l) r[l] = from[2 * l], i[l] = from[2 * l + 1];
      } else {
        TT_INDEPENDENT
        for (std::int64_t l = 0; l < count; ++l)
          r[l] = from[near * l], i[l] = from[near * l + apart];
      }
    }
    return;
  }
  std::int64_t done = 0;
  if (lines.dense()) {
    using V = typename FourOf<T>::Vector;
    done = each_square(count, n, [&](std::int64_t k, std::int64_t l) {
      V r[4], i[4];
      for (int j = 0; j < 4; ++j) {
        V low, high;
        const T* const from = lines.base + lines.at[l + j] + 2 * k;
        std::memcpy(&low, from, sizeof low);
        std::memcpy(&high, from + 4, sizeof high);
        r[j] = __builtin_shufflevector(low, high, 0, 2, 4, 6);
        i[j] = __builtin_shufflevector(low, high, 1, 3, 5, 7);
      }
      turn(r);
      turn(i);
      for (int j = 0; j < 4; ++j) {
        std::memcpy(re + (k + j) * count + l, &r[j], sizeof(V));
        std::memcpy(im + (k + j) * count + l, &i[j], sizeof(V));
      }
    });
  }
  // A few pairs of all lines at a time, so that whole cache lines are used on both sides.
  for (std::int64_t k0 = done; k0 < n; k0 += kMaxLines) {
    const std::int64_t end = std::min(k0 + kMaxLines, n);
    for (std::int64_t l = 0; l < count; ++l) {
      const T* const from = lines.base + lines.at[l];
      for (std::int64_t k = k0; k < end; ++k) {
        re[k * count + l] = from[k * step];
        im[k * count + l] = from[k * step + apart];
      }
    }
  }
}

// The reverse of load_pairs(); multiplies by `scale`.
template <class T>
void store_pairs(const T* re, const T* im, std::int64_t n, T scale, const PairLines<T>& lines) {
  const std::int64_t count = lines.count, step = lines.step, apart = lines.apart;
  if (const std::int64_t near = lines.across()) {
    for (std::int64_t k = 0; k < n; ++k) {
      T* const to = lines.base + lines.at[0] + k * step;
      if (k + kAhead < n) prefetch_row<1>(to + kAhead * step, near * count);
      const T *const r = re + k * count, *const i = im + k * count;
      if (near == 2 && apart == 1) {
        TT_INDEPENDENT
        for (std::int64_t l = 0; l < count; ++l) {
          to[2 * l] = r[l] * scale;
          to[2 * l + 1] = i[l] * scale;
        }
      } else {
        for (std::int64_t l = 0; l < count; ++l) {
          to[near * l] = r[l] * scale;
          to[near * l + apart] = i[l] * scale;
        }
      }
    }
    return;
  }
  std::int64_t done = 0;
  if (lines.dense()) {
    using V = typename FourOf<T>::Vector;
    done = each_square(count, n, [&](std::int64_t k, std::int64_t l) {
      V r[4], i[4];
      for (int j = 0; j < 4; ++j) {
        std::memcpy(&r[j], re + (k + j) * count + l, sizeof(V));
        std::memcpy(&i[j], im + (k + j) * count + l, sizeof(V));
        r[j] *= scale;
        i[j] *= scale;
      }
      turn(r);
      turn(i);
      for (int j = 0; j < 4; ++j) {
        const V low = __builtin_shufflevector(r[j], i[j], 0, 4, 1, 5);
        const V high = __builtin_shufflevector(r[j], i[j], 2, 6, 3, 7);
        T* const to = lines.base + lines.at[l + j] + 2 * k;
        std::memcpy(to, &low, sizeof low);
        std::memcpy(to + 4, &high, sizeof high);
      }
    });
  }
  for (std::int64_t k0 = done; k0 < n; k0 += kMaxLines) {
    const std::int64_t end = std::min(k0 + kMaxLines, n);
    for (std::int64_t l = 0; l < count; ++l) {
      T* const to = lines.base + lines.at[l];
      for (std::int64_t k = k0; k < end; ++k) {
        to[k * step] = re[k * count + l] * scale;
        to[k * step + apart] = im[k * count + l] * scale;
      }
    }
  }
}

// A real signal of 2 * half numbers is transformed as `half` complex numbers, its pairs. This
// replaces their spectrum by the spectrum of the signal, X_0 .. X_{half - 1}, in place; last[l]
// receives X_half, which is real. twist: exp(-pi i k / half).
template <class T>
void split_spectrum(T* re, T* im, std::int64_t half, std::int64_t count, const T* twist, T* last) {
  for (std::int64_t l = 0; l < count; ++l) {
    const T even = re[l], odd = im[l];
    re[l] = even + odd;
    im[l] = 0;
    last[l] = even - odd;
  }
  // X_k = E_k + w^k O_k, and E_k - w^k O_k is the conjugate of X_{half - k}.
  for (std::int64_t k = 1; k <= half - k; ++k) {
    T *const ra = re + k * count, *const ia = im + k * count;
    T *const rb = re + (half - k) * count, *const ib = im + (half - k) * count;
    const T wr = twist[2 * k], wi = twist[2 * k + 1];
    TT_INDEPENDENT
    for (std::int64_t l = 0; l < count; ++l) {
      const T er = (ra[l] + rb[l]) / 2, ei = (ia[l] - ib[l]) / 2;
      const T or_ = (ia[l] + ib[l]) / 2, oi = (rb[l] - ra[l]) / 2;
      const T pr = or_ * wr - oi * wi, pi = or_ * wi + oi * wr;
      ra[l] = er + pr;
      ia[l] = ei + pi;
      rb[l] = er - pr;
      ib[l] = pi - ei;
    }
  }
}

// The reverse, times 2: Z_k = E_k + i O_k, where E and O are the spectra of the even and odd
// elements.
template <class T>
void join_spectrum(T* re, T* im, std::int64_t half, std::int64_t count, const T* twist,
                   const T* last) {
  for (std::int64_t l = 0; l < count; ++l) {
    const T first = re[l];
    re[l] = first + last[l];
    im[l] = first - last[l];
  }
  for (std::int64_t k = 1; k <= half - k; ++k) {
    T *const ra = re + k * count, *const ia = im + k * count;
    T *const rb = re + (half - k) * count, *const ib = im + (half - k) * count;
    const T ar = twist[2 * k], ai = -twist[2 * k + 1];
    const T br = twist[2 * (half - k)], bi = -twist[2 * (half - k) + 1];
    TT_INDEPENDENT
    for (std::int64_t l = 0; l < count; ++l) {
      const T er = ra[l] + rb[l], ei = ia[l] - ib[l];
      const T dr = ra[l] - rb[l], di = ia[l] + ib[l];
      const T pr = dr * ar - di * ai, pi = dr * ai + di * ar;
      const T qr = -dr * br - di * bi, qi = -dr * bi + di * br;
      ra[l] = er - pi;
      ia[l] = ei + pr;
      rb[l] = er - qi;
      ib[l] = qr - ei;
    }
  }
}

}  // namespace teletensor::backends::cpu
