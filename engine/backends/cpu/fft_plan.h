// Discrete Fourier transforms of any length n in O(n log n): mixed radix where n has no prime
// factor above 13, else Bluestein's algorithm. Tables are computed in double precision.
#pragma once

#include <complex>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/backends/cpu/fft_simd.h"

namespace teletensor::backends::cpu {

// exp(-2 pi i k / n), to a rounding error. 0 <= k, n <= 2^60.
std::complex<double> root_of_unity(std::int64_t k, std::int64_t n);

// Numbers of an array for each part of the complex values of `lines` lines.
template <class T>
struct SplitLines {
  T *re, *im, *spare_re, *spare_im;  // each has plan.size() * lines elements
};

// Immutable after construction.
template <class T>
class FftPlan {
 public:
  // Numbers in the tables of a plan for n, 1 <= n <= kLargest.
  static std::int64_t table_size(std::int64_t n);
  static constexpr std::int64_t kLargest = std::int64_t{1} << 40;

  // `tables` has table_size(n) numbers and outlives the plan.
  FftPlan(std::int64_t n, T* tables);

  std::int64_t n() const { return n_; }
  // Elements a line of the work arrays: n, or more for Bluestein's algorithm.
  std::int64_t size() const { return chirp_ ? inner_->n() : n_; }

  // Forward transforms of `lines` lines: element k of line l at [k * lines + l], before and after.
  // The result is in x.re and x.im, which may have changed places with the spares. For the inverse
  // (unscaled) exchange the names of re and im before and after.
  void run(SplitLines<T>& x, std::int64_t lines) const;

 private:
  void passes(SplitLines<T>& x, std::int64_t lines) const;
  void bluestein(SplitLines<T>& x, std::int64_t lines) const;

  std::int64_t n_;
  std::vector<FftPass<T>> passes_;
  // Bluestein: the chirp exp(-pi i k^2 / n) (n real, n imaginary parts), and the transform of its
  // conjugate, divided by the inner length.
  std::unique_ptr<FftPlan> inner_;
  const T* chirp_ = nullptr;
  const T* filter_ = nullptr;
};

}  // namespace teletensor::backends::cpu
