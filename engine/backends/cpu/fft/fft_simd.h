// One pass of a mixed-radix Fourier transform over many lines at once (Stockham's autosort form).
//
// Real and imaginary parts of complex numbers are in separate arrays. A pass of radix R reads x as
// [R][m][s] and writes y as [m][R][s]. With n the remaining length (R m) and w = exp(-2 pi i / n),
// it computes
//   y[p][j][q] = w^(j p) sum over k of x[k][p][q] exp(-2 pi i j k / R).
// s is the number of lines in the first pass and grows by the factor R in each pass.
#pragma once

#include <cstdint>

namespace teletensor::backends::cpu {

inline constexpr int kFftRadices[] = {2, 3, 4, 5, 7, 8, 11, 13};

template <class T>
struct FftPass {
  int radix;
  std::int64_t m;
  // For j = 1 to radix - 1: m real parts and m imaginary parts of w^(j p). Not read if m is 1.
  const T* twiddles;
  // For odd radices: cos(2 pi j / radix), then sin(2 pi j / radix), for each j < radix.
  const T* roots;
};

template <class T>
void fft_pass(const FftPass<T>& pass, std::int64_t s, const T* xr, const T* xi, T* yr, T* yi);

}  // namespace teletensor::backends::cpu
