// std::complex and its functions, as far as scalar/complex.h uses them, with the branch cuts of
// C99. The real functions are the device's. Inverse functions use the formulas of Kahan (1987).
namespace std {

template <class T>
struct complex {
  T re, im;
  complex(T a, T b) : re(a), im(b) {}
  T real() const { return re; }
  T imag() const { return im; }
};

template <class T>
complex<T> exp(complex<T> z) {
  if (z.im == 0) return {exp(z.re), z.im};
  const T size = exp(z.re);
  if (size == 0) return {copysign(T(0), cos(z.im)), copysign(T(0), sin(z.im))};
  return {size * cos(z.im), size * sin(z.im)};
}
template <class T>
complex<T> log(complex<T> z) {
  return {log(hypot(z.re, z.im)), atan2(z.im, z.re)};
}
template <class T>
complex<T> log10(complex<T> z) {
  const T scale = T(0.43429448190325182765);
  return {log10(hypot(z.re, z.im)), atan2(z.im, z.re) * scale};
}
template <class T>
complex<T> sqrt(complex<T> z) {
  if (isinf(z.im)) return {abs(z.im), z.im};
  if (z.re == 0 && z.im == 0) return {T(0), z.im};
  if (isinf(z.re)) {
    const T other = isnan(z.im) ? z.im : T(0);
    if (z.re > 0) return {z.re, isnan(z.im) ? z.im : copysign(T(0), z.im)};
    return {other, copysign(-z.re, z.im)};
  }
  const T huge = sizeof(T) == 4 ? T(0x1p125) : T(0x1p1020);
  const T scale = abs(z.re) > huge || abs(z.im) > huge ? T(0.25) : T(1);
  const T x = z.re * scale, y = z.im * scale, back = scale == T(1) ? T(1) : T(2);
  const T root = sqrt((abs(x) + hypot(x, y)) * T(0.5)), other = y / (T(2) * root);
  if (x >= 0) return {root * back, other * back};
  return {abs(other) * back, copysign(root, y) * back};
}
template <class T>
complex<T> sinh(complex<T> z) {
  if (z.im == 0) return {sinh(z.re), z.im};
  return {sinh(z.re) * cos(z.im), cosh(z.re) * sin(z.im)};
}
template <class T>
complex<T> cosh(complex<T> z) {
  if (z.im == 0) return {cosh(z.re), z.re * z.im};
  return {cosh(z.re) * cos(z.im), sinh(z.re) * sin(z.im)};
}
template <class T>
complex<T> tanh(complex<T> z) {
  const T many = sizeof(T) == 4 ? T(11) : T(22);
  if (abs(z.re) > many) {
    const T small = exp(-T(2) * abs(z.re)) * T(4);
    return {copysign(T(1), z.re), small == 0 ? copysign(T(0), z.im) : small * sin(z.im) * cos(z.im)};
  }
  const T t = tan(z.im), s = sinh(z.re), beta = T(1) + t * t, rho = sqrt(T(1) + s * s);
  if (isinf(t)) return {rho / s, T(1) / t};
  const T below = T(1) + beta * s * s;
  return {beta * rho * s / below, t / below};
}
template <class T>
complex<T> sin(complex<T> z) {
  const complex<T> y = sinh(complex<T>(-z.im, z.re));
  return {y.im, -y.re};
}
template <class T>
complex<T> cos(complex<T> z) {
  return cosh(complex<T>(-z.im, z.re));
}
template <class T>
complex<T> tan(complex<T> z) {
  const complex<T> y = tanh(complex<T>(-z.im, z.re));
  return {y.im, -y.re};
}
template <class T>
bool is_large(complex<T> z) {
  const T large = sizeof(T) == 4 ? T(0x1p62) : T(0x1p510);
  return abs(z.re) > large || abs(z.im) > large;
}
template <class T>
complex<T> asinh(complex<T> z) {
  const T ln2 = T(0.69314718055994530942);
  if (is_large(z)) {
    const T size = log(hypot(z.re * T(0.5), z.im * T(0.5))) + T(2) * ln2;
    return {copysign(size, z.re), atan2(z.im, abs(z.re))};
  }
  const complex<T> a = sqrt(complex<T>(T(1) + z.im, -z.re)), b = sqrt(complex<T>(T(1) - z.im, z.re));
  return {asinh(a.re * b.im - b.re * a.im), atan2(z.im, a.re * b.re - a.im * b.im)};
}
template <class T>
complex<T> acosh(complex<T> z) {
  const T ln2 = T(0.69314718055994530942);
  if (is_large(z)) {
    return {log(hypot(z.re * T(0.5), z.im * T(0.5))) + T(2) * ln2, atan2(z.im, z.re)};
  }
  const complex<T> a = sqrt(complex<T>(z.re - T(1), z.im)), b = sqrt(complex<T>(z.re + T(1), z.im));
  return {asinh(a.re * b.re + a.im * b.im), T(2) * atan2(a.im, b.re)};
}
template <class T>
complex<T> acos(complex<T> z) {
  const T ln2 = T(0.69314718055994530942);
  if (is_large(z)) {
    const T size = log(hypot(z.re * T(0.5), z.im * T(0.5))) + T(2) * ln2;
    return {atan2(abs(z.im), z.re), -copysign(size, z.im)};
  }
  const complex<T> a = sqrt(complex<T>(T(1) - z.re, -z.im)), b = sqrt(complex<T>(T(1) + z.re, z.im));
  return {T(2) * atan2(a.re, b.re), asinh(b.re * a.im - b.im * a.re)};
}
template <class T>
complex<T> asin(complex<T> z) {
  const complex<T> y = asinh(complex<T>(-z.im, z.re));
  return {y.im, -y.re};
}
template <class T>
complex<T> atanh(complex<T> z) {
  const T half_pi = T(1.57079632679489661923);
  if (is_large(z)) {
    const T size = hypot(z.re * T(0.5), z.im * T(0.5));
    return {z.re / T(4) / size / size, copysign(half_pi, z.im)};
  }
  if (abs(z.re) == T(1) && z.im == 0) return {copysign(T(__builtin_inf()), z.re), z.im};
  const T x = abs(z.re), rest = T(1) - x;
  const T re = log1p(T(4) * x / (rest * rest + z.im * z.im)) / T(4);
  const T im = atan2(T(2) * z.im, rest * (T(1) + x) - z.im * z.im) / T(2);
  return {copysign(re, z.re), im};
}
template <class T>
complex<T> atan(complex<T> z) {
  const complex<T> y = atanh(complex<T>(-z.im, z.re));
  return {y.im, -y.re};
}
template <class T>
complex<T> pow(complex<T> x, complex<T> y) {
  const complex<T> l = log(x);
  return exp(complex<T>(y.re * l.re - y.im * l.im, y.re * l.im + y.im * l.re));
}

}  // namespace std
