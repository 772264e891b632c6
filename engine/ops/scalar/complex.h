// The functions of scalar/math.h for complex numbers. They use std::complex, and so libm, with
// C99's branch cuts and special values; see scalar.h.
#pragma once

#include <complex>

#include "engine/core/complex.h"
#include "engine/ops/scalar/math.h"

namespace teletensor::ops::scalar {

using core::Complex;

template <class T>
std::complex<T> to_std(Complex<T> x) {
  return {x.re, x.im};
}
template <class T>
Complex<T> from_std(std::complex<T> x) {
  return {x.real(), x.imag()};
}

#define TT_COMPLEX_FUNCTION(name)          \
  template <class T>                       \
  Complex<T> name(Complex<T> x) {          \
    return from_std(std::name(to_std(x))); \
  }
TT_COMPLEX_FUNCTION(exp)
TT_COMPLEX_FUNCTION(log)
TT_COMPLEX_FUNCTION(sqrt)
TT_COMPLEX_FUNCTION(sin)
TT_COMPLEX_FUNCTION(cos)
TT_COMPLEX_FUNCTION(tan)
TT_COMPLEX_FUNCTION(asin)
TT_COMPLEX_FUNCTION(acos)
TT_COMPLEX_FUNCTION(atan)
TT_COMPLEX_FUNCTION(sinh)
TT_COMPLEX_FUNCTION(cosh)
TT_COMPLEX_FUNCTION(tanh)
TT_COMPLEX_FUNCTION(asinh)
TT_COMPLEX_FUNCTION(acosh)
TT_COMPLEX_FUNCTION(atanh)
#undef TT_COMPLEX_FUNCTION

template <class T>
T modulus(Complex<T> x) {
  return std::hypot(x.re, x.im);
}
template <class T>
T argument(Complex<T> x) {
  return std::atan2(x.im, x.re);
}
template <class T>
Complex<T> exp2(Complex<T> x) {
  return exp(Complex<T>{x.re * T(0.6931471805599453), x.im * T(0.6931471805599453)});
}
template <class T>
Complex<T> log2(Complex<T> x) {
  const Complex<T> y = log(x);
  return {y.re / T(0.6931471805599453), y.im / T(0.6931471805599453)};
}
template <class T>
Complex<T> log10(Complex<T> x) {
  return from_std(std::log10(to_std(x)));
}
template <class T>
Complex<T> expm1(Complex<T> x) {
  const T s = std::sin(x.im / 2);
  return {std::expm1(x.re) * std::cos(x.im) - 2 * s * s, std::exp(x.re) * std::sin(x.im)};
}
template <class T>
Complex<T> log1p(Complex<T> x) {
  const T angle = std::atan2(x.im, x.re + 1);
  if (modulus(x) < T(0.5)) return {std::log1p(x.re * (2 + x.re) + x.im * x.im) / 2, angle};
  return {std::log(std::hypot(x.re + 1, x.im)), angle};
}
// 0 to the power of 0 is 1, as in NumPy.
template <class T>
Complex<T> pow(Complex<T> x, Complex<T> y) {
  if (y == Complex<T>(0)) return Complex<T>(1);
  if (x == Complex<T>(0) && y.re > 0) return Complex<T>(0);
  return from_std(std::pow(to_std(x), to_std(y)));
}

}  // namespace teletensor::ops::scalar
