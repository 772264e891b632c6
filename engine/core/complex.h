// Complex: two floats in the layout of complex tensors (real part first). Arithmetic uses the plain
// formulas, as NumPy and PyTorch do, without C99's recovery of infinities from NaNs.
#pragma once

#include <cmath>

namespace teletensor::core {

// T is float or double. A default-constructed number is not initialised. There is no conversion
// between the two types: callers convert the parts.
template <class T>
struct Complex {
  T re, im;

  Complex() = default;
  template <class S>
  constexpr explicit Complex(S real) : re(static_cast<T>(real)), im(0) {}
  constexpr Complex(T real, T imaginary) : re(real), im(imaginary) {}

  friend constexpr Complex operator+(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }
  friend constexpr Complex operator-(Complex a, Complex b) { return {a.re - b.re, a.im - b.im}; }
  friend constexpr Complex operator*(Complex a, Complex b) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
  }
  // Smith's algorithm (1962), which avoids intermediate overflow.
  friend Complex operator/(Complex a, Complex b) {
    const T c = std::fabs(b.re), d = std::fabs(b.im);
    if (c >= d) {
      if (c == 0) return {a.re / c, a.im / d};
      const T ratio = b.im / b.re, scale = T(1) / (b.re + b.im * ratio);
      return {(a.re + a.im * ratio) * scale, (a.im - a.re * ratio) * scale};
    }
    const T ratio = b.re / b.im, scale = T(1) / (b.re * ratio + b.im);
    return {(a.re * ratio + a.im) * scale, (a.im * ratio - a.re) * scale};
  }
  constexpr Complex operator-() const { return {-re, -im}; }
  Complex& operator+=(Complex b) { return *this = *this + b; }
  Complex& operator-=(Complex b) { return *this = *this - b; }
  Complex& operator*=(Complex b) { return *this = *this * b; }
  friend constexpr bool operator==(Complex a, Complex b) { return a.re == b.re && a.im == b.im; }
};

using Complex64 = Complex<float>;
using Complex128 = Complex<double>;

template <class T>
inline constexpr bool kIsComplex = false;
template <class T>
inline constexpr bool kIsComplex<Complex<T>> = true;

template <class T>
constexpr Complex<T> conj(Complex<T> x) {
  return {x.re, -x.im};
}

}  // namespace teletensor::core
