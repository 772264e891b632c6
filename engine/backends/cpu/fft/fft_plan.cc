#include "engine/backends/cpu/fft/fft_plan.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace teletensor::backends::cpu {
namespace {

// The radices of n in the order of the passes; empty if n has another prime factor. A pass of radix
// 4 comes first, because its results can be interleaved efficiently.
std::vector<int> radices_of(std::int64_t n) {
  std::vector<int> out;
  int twos = 0;
  for (; n % 2 == 0; n /= 2) ++twos;
  if (twos == 1) out.push_back(2);
  if (twos >= 2) {
    out.push_back(4);
    twos -= 2;
    for (; twos >= 3; twos -= 3) out.push_back(8);
    if (twos > 0) out.push_back(twos == 2 ? 4 : 2);
  }
  for (int p : {3, 5, 7, 11, 13}) {
    for (; n % p == 0; n /= p) out.push_back(p);
  }
  if (n > 1) out.clear();
  return out;
}

bool mixed(std::int64_t n) { return n == 1 || !radices_of(n).empty(); }

// The smallest 2^a 3^b 5^c that is long enough for a linear convolution of two sequences of length
// n.
std::int64_t padded(std::int64_t n) {
  const std::int64_t least = 2 * n - 1;
  std::int64_t best = 1;
  while (best < least) best *= 2;
  for (std::int64_t five : {1, 5, 25}) {
    for (std::int64_t three : {1, 3, 9, 27}) {
      std::int64_t size = 8 * five * three;
      while (size < least) size *= 2;
      best = std::min(best, size);
    }
  }
  return best;
}

std::int64_t table_of_passes(std::int64_t n) {
  std::int64_t size = 0, left = n;
  for (int radix : radices_of(n)) {
    left /= radix;
    size += 2 * (radix - 1) * left + 2 * radix;
  }
  return size;
}

}  // namespace

std::complex<double> root_of_unity(std::int64_t k, std::int64_t n) {
  // Reduces the angle to an eighth of the circle, where sine and cosine are accurate to a rounding
  // error.
  k %= n;
  const std::int64_t eighth = 8 * k / n;
  const auto angle = [n](std::int64_t part) {  // in units of 1 / (8 n) of the circle
    return 2 * std::numbers::pi * static_cast<double>(part) / (8 * static_cast<double>(n));
  };
  const std::int64_t at = 8 * k - (eighth + 1) / 2 * 2 * n;  // distance to the nearest quarter
  const double c = std::cos(angle(at)), s = std::sin(angle(at));
  switch ((eighth + 1) / 2 % 4) {
    case 0:
      return {c, -s};
    case 1:
      return {-s, -c};
    case 2:
      return {-c, s};
    default:
      return {s, c};
  }
}

template <class T>
std::int64_t FftPlan<T>::table_size(std::int64_t n) {
  if (mixed(n)) return table_of_passes(n);
  const std::int64_t m = padded(n);
  return table_of_passes(m) + 2 * n + 2 * m;
}

template <class T>
FftPlan<T>::FftPlan(std::int64_t n, T* tables) : n_(n) {
  if (mixed(n)) {
    std::int64_t left = n;
    for (int radix : radices_of(n)) {
      const std::int64_t m = left / radix;
      T* const twiddles = tables;
      tables += 2 * (radix - 1) * m;
      for (int j = 1; j < radix && m > 1; ++j) {
        T* const w = twiddles + (j - 1) * 2 * m;
        for (std::int64_t p = 0; p < m; ++p) {
          const std::complex<double> root = root_of_unity(j * p, left);
          w[p] = static_cast<T>(root.real());
          w[m + p] = static_cast<T>(root.imag());
        }
      }
      T* const roots = tables;
      tables += 2 * radix;
      for (int j = 0; j < radix; ++j) {
        const std::complex<double> root = root_of_unity(j, radix);
        roots[j] = static_cast<T>(root.real());
        roots[radix + j] = static_cast<T>(-root.imag());
      }
      passes_.push_back({radix, m, twiddles, roots});
      left = m;
    }
    return;
  }
  const std::int64_t m = padded(n);
  inner_ = std::make_unique<FftPlan>(m, tables);
  tables += table_of_passes(m);
  T* const chirp = tables;
  T* const filter = tables + 2 * n;
  std::vector<T> room(static_cast<std::size_t>(4 * m), T(0));
  SplitLines<T> x{room.data(), room.data() + m, room.data() + 2 * m, room.data() + 3 * m};
  std::int64_t square = 0;  // k^2 modulo 2 n
  for (std::int64_t k = 0; k < n; ++k) {
    const std::complex<double> root = root_of_unity(square, 2 * n);
    chirp[k] = static_cast<T>(root.real());
    chirp[n + k] = static_cast<T>(root.imag());
    const double scale = 1 / static_cast<double>(m);
    for (std::int64_t at : {k, (m - k) % m}) {
      x.re[at] = static_cast<T>(root.real() * scale);
      x.im[at] = static_cast<T>(-root.imag() * scale);
    }
    square = (square + 2 * k + 1) % (2 * n);
  }
  inner_->run(x, 1);
  std::copy(x.re, x.re + m, filter);
  std::copy(x.im, x.im + m, filter + m);
  chirp_ = chirp;
  filter_ = filter;
}

template <class T>
void FftPlan<T>::run(SplitLines<T>& x, std::int64_t lines) const {
  if (chirp_) {
    bluestein(x, lines);
  } else {
    passes(x, lines);
  }
}

template <class T>
void FftPlan<T>::passes(SplitLines<T>& x, std::int64_t lines) const {
  std::int64_t s = lines;
  for (const FftPass<T>& pass : passes_) {
    fft_pass(pass, s, x.re, x.im, x.spare_re, x.spare_im);
    std::swap(x.re, x.spare_re);
    std::swap(x.im, x.spare_im);
    s *= pass.radix;
  }
}

template <class T>
void FftPlan<T>::bluestein(SplitLines<T>& x, std::int64_t lines) const {
  const std::int64_t m = inner_->n();
  // Multiplies element k of every line by wr + i wi.
  const auto multiply = [&](std::int64_t k, T wr, T wi) {
    T* const re = x.re + k * lines;
    T* const im = x.im + k * lines;
    for (std::int64_t l = 0; l < lines; ++l) {
      const T r = re[l], i = im[l];
      re[l] = r * wr - i * wi;
      im[l] = r * wi + i * wr;
    }
  };
  for (std::int64_t k = 0; k < n_; ++k) multiply(k, chirp_[k], chirp_[n_ + k]);
  std::fill(x.re + n_ * lines, x.re + m * lines, T(0));
  std::fill(x.im + n_ * lines, x.im + m * lines, T(0));
  inner_->run(x, lines);
  for (std::int64_t k = 0; k < m; ++k) multiply(k, filter_[k], filter_[m + k]);
  std::swap(x.re, x.im);  // computes the inverse transform
  std::swap(x.spare_re, x.spare_im);
  inner_->run(x, lines);
  std::swap(x.re, x.im);
  std::swap(x.spare_re, x.spare_im);
  for (std::int64_t k = 0; k < n_; ++k) multiply(k, chirp_[k], chirp_[n_ + k]);
}

template class FftPlan<float>;
template class FftPlan<double>;

}  // namespace teletensor::backends::cpu
