// FftPlan: discrete Fourier transforms of any length n in O(n log n): mixed radix if n has no prime
// factor above 13, and otherwise Bluestein's algorithm. Tables are computed in double precision.
#pragma once

#include <complex>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/backends/cpu/fft/fft_simd.h"

namespace teletensor::backends::cpu {

// exp(-2 pi i k / n), accurate to a rounding error. Precondition: 0 <= k, n <= 2^60.
std::complex<double> root_of_unity(std::int64_t k, std::int64_t n);

// The work arrays of `lines` lines, with separate arrays for real and imaginary parts.
template <class T>
struct SplitLines {
  T *re, *im, *spare_re, *spare_im;  // each array has plan.size() * lines elements
};

// Immutable after construction.
template <class T>
class FftPlan {
 public:
  // The number of numbers in the tables of a plan for n, 1 <= n <= kLargest.
  static std::int64_t table_size(std::int64_t n);
  static constexpr std::int64_t kLargest = std::int64_t{1} << 40;

  // `tables` has table_size(n) numbers and must outlive the plan.
  FftPlan(std::int64_t n, T* tables);

  std::int64_t n() const { return n_; }
  // Elements per line in the work arrays: n, or more for Bluestein's algorithm.
  std::int64_t size() const { return chirp_ ? inner_->n() : n_; }

  // Forward transforms of `lines` lines. Element k of line l is at [k * lines + l], before and
  // after. The result is in x.re and x.im, which may have been exchanged with the spare arrays. For
  // the (unscaled) inverse transform, exchange re and im before and after.
  void run(SplitLines<T>& x, std::int64_t lines) const;

 private:
  void passes(SplitLines<T>& x, std::int64_t lines) const;
  void bluestein(SplitLines<T>& x, std::int64_t lines) const;

  std::int64_t n_;
  std::vector<FftPass<T>> passes_;
  // Bluestein: the chirp exp(-pi i k^2 / n) (n real parts, then n imaginary parts), and the
  // transform of its conjugate divided by the inner length.
  std::unique_ptr<FftPlan> inner_;
  const T* chirp_ = nullptr;
  const T* filter_ = nullptr;
};

}  // namespace teletensor::backends::cpu
