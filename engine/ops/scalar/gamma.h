// Gamma functions in double: digamma, Hurwitz zeta, polygamma, incomplete gamma. See
// scalar/special.h.
#pragma once

#include <cmath>
#include <cstdint>

#include "engine/ops/scalar/common.h"

namespace teletensor::ops::scalar {

inline constexpr double kInfinity = __builtin_inf(), kNaN = __builtin_nan("");
inline constexpr double kPi = 3.14159265358979323846;

// lgamma without the global variable for the sign that libm's function sets.
inline double log_gamma(double x) {
#if defined(__GLIBC__)
  int sign = 0;
  return ::lgamma_r(x, &sign);
#else
  return std::lgamma(x);
#endif
}

// The recurrence up to 10, then the asymptotic series with Bernoulli numbers (Abramowitz and Stegun
// 6.3.18); the reflection formula below 0.
inline double digamma(double x) {
  if (x == 0) return std::copysign(kInfinity, -x);
  double sum = 0;
  if (x < 0) {
    if (x == std::floor(x)) return kNaN;
    sum = -kPi / std::tan(kPi * (x - std::rint(x)));
    x = 1 - x;
  }
  for (; x < 10; x += 1) sum -= 1 / x;
  constexpr double kSeries[] = {1.0 / 12,  -1.0 / 120,       1.0 / 252, -1.0 / 240,
                                1.0 / 132, -691.0 / 32760.0, 1.0 / 12};
  const double z = 1 / (x * x);
  double tail = 0;
  for (int k = 6; k >= 0; --k) tail = (tail + kSeries[k]) * z;
  return sum + (std::log(x) - 0.5 / x - tail);
}

// The sum of (q + k)^-s over k >= 0 for q > 0: terms up to q + k = 10 + s, then Euler-Maclaurin (A.
// and S. 23.1.30). The loop ends early when terms no longer matter.
inline double zeta_above_zero(double s, double q) {
  double sum = 0;
  for (; q < 10 + s; q += 1) {
    const double term = std::pow(q, -s);
    sum += term;
    if (term <= sum * 1e-18) return sum;
  }
  // B_2k / (2k)!
  constexpr double kSeries[] = {1.0 / 12,
                                -1.0 / 720,
                                1.0 / 30240,
                                -1.0 / 1209600,
                                2.0876756987868098979e-8,
                                -5.2841901386874931848e-10,
                                1.3382536530684678833e-11,
                                -3.3896802963225828668e-13,
                                8.5860620562778445641e-15,
                                -2.174868698558061873e-16,
                                5.5090028283602295152e-18,
                                -1.3954464685812523341e-19};
  const double power = std::pow(q, -s);
  double tail = q * power / (s - 1) + 0.5 * power, factor = s * power / q;
  for (int k = 0; k < 12; ++k) {
    const double term = kSeries[k] * factor;
    tail += term;
    if (std::abs(term) <= std::abs(tail) * 1e-18) break;
    factor *= (s + (2 * k + 1)) * (s + (2 * k + 2)) / (q * q);
  }
  return sum + tail;
}

// The Hurwitz zeta function. Below 0 it is defined only for integer s, by the terms on both sides
// of 0.
inline double zeta(double s, double q) {
  if (s == 1) return kInfinity;
  if (!(s > 1) || q != q) return kNaN;
  if (q > 0)
    return std::isinf(q)   ? 0.0
           : std::isinf(s) ? (q > 1    ? 0
                              : q == 1 ? 1
                                       : kInfinity)
                           : zeta_above_zero(s, q);
  if (q == std::floor(q)) return kInfinity;
  if (s != std::floor(s) || std::isinf(s)) return kNaN;
  const double part = q - std::floor(q), whole = -std::floor(q);
  const double below = zeta_above_zero(s, 1 - part) - zeta_above_zero(s, whole + 1 - part);
  return zeta_above_zero(s, part) + (std::fmod(s, 2) == 0 ? below : -below);
}

inline double polygamma(double n, double x) {
  if (n == 0) return digamma(x);
  const double sign = std::fmod(n, 2) == 1 ? 1 : -1;
  return sign * std::tgamma(n + 1) * zeta(n + 1, x);
}

// m - log(1 + m) without cancellation: with s = m / (2 + m), log(1 + m) = 2 atanh(s).
inline double minus_log1p(double m) {
  if (std::abs(m) > 0.4) return m - std::log1p(m);
  const double s = m / (2 + m), z = s * s;
  double sum = 0;
  for (int k = 25; k >= 3; k -= 2) sum = sum * z + 1.0 / k;
  return m * s - 2 * s * z * sum;
}

// x^a e^-x / gamma(a + 1). From 10 on by Stirling's series, relative to the peak at x = a.
inline double gamma_density(double a, double x) {
  if (a < 10) return std::exp(a * std::log(x) - x - log_gamma(a + 1));
  constexpr double kSeries[] = {1.0 / 12,   -1.0 / 360,        1.0 / 1260, -1.0 / 1680,
                                1.0 / 1188, -691.0 / 360360.0, 1.0 / 156};
  const double z = 1 / (a * a);
  double stirling = 0;
  for (int k = 6; k >= 0; --k) stirling = stirling * z + kSeries[k];
  const double m = (x - a) / a;
  const double below = std::abs(m) > 0.4 ? m - std::log(x / a) : minus_log1p(m);
  return std::exp(-a * below - stirling / a) / std::sqrt(2 * kPi * a);
}

// Temme's uniform expansion for large a (N. Temme, "The asymptotic expansion of the incomplete
// gamma functions", 1979): the difference of Q from erfc(eta sqrt(a/2)) / 2. Uses the Taylor
// coefficients of C_0, C_1, C_2 at eta = 0. Above a = 1e5 the result is 0 where they are not
// accurate.
inline double temme_rest(double a, double eta) {
  constexpr double kC[3][9] = {
      {-1.0 / 3, 1.0 / 12, -2.0 / 135, 1.0 / 864, 1.0 / 2835, -1.787551440329218107e-4,
       3.9192631785224377817e-5, -2.1854485106799921615e-6, -1.8540622107151599607e-6},
      {-1.0 / 540, -1.0 / 288, 1.0 / 378, -77.0 / 77760, 2.0576131687242798354e-4,
       -4.0187757201646090535e-7, -1.8098550334489977837e-5, 7.6491609160811100846e-6,
       -1.6120900894563446004e-6},
      {25.0 / 6048, -139.0 / 51840, 1.0 / 1296, 1.0 / 497664, -1.0736653226365160522e-4,
       5.2923448829120125416e-5, -1.2760635188618727713e-5, 3.4235787340961380742e-8,
       1.3721957309062933206e-6}};
  double sum = 0;
  for (int i = 2; i >= 0; --i) {
    double c = 0;
    for (int k = 8; k >= 0; --k) c = c * eta + kC[i][k];
    sum = sum / a + c;
  }
  return std::exp(-0.5 * a * eta * eta) / std::sqrt(2 * kPi * a) * sum;
}

// P (lower) or Q (upper), each without cancellation where it is the smaller one. Terms below
// `precision` of the sum are omitted.
inline double regularised_gamma(double a, double x, bool upper, double precision) {
  if (!(a >= 0) || !(x >= 0)) return kNaN;
  if (a == 0) return x > 0 ? (upper ? 0.0 : 1.0) : kNaN;
  if (x == 0) return upper ? 1.0 : 0.0;
  if (std::isinf(a)) return std::isinf(x) ? kNaN : upper ? 1.0 : 0.0;
  if (std::isinf(x)) return upper ? 0.0 : 1.0;
  if (a > 1e5) {
    const double m = (x - a) / a, half = minus_log1p(m);
    const double eta = std::copysign(std::sqrt(2 * half), m);
    if (a * half > 800) return (m > 0) == upper ? 0.0 : 1.0;
    const double rest = temme_rest(a, eta), normal = eta * std::sqrt(a / 2);
    return upper ? 0.5 * std::erfc(normal) + rest : 0.5 * std::erfc(-normal) - rest;
  }
  if (x < a + 1) {
    if (upper && x < 1.1 && a < 0.5) {  // Q near 0 for small a has its own series
      double sum = 0, term = 1;
      for (int n = 1; n < 100; ++n) {
        term *= -x / n;
        sum += term / (a + n);
        if (std::abs(term) < 0.1 * precision * std::abs(sum)) break;
      }
      const double log_x = a * std::log(x);
      return -std::expm1(log_x - log_gamma(1 + a)) - std::exp(log_x - log_gamma(a)) * sum;
    }
    double sum = 1, term = 1;
    for (int n = 1; n < 20000; ++n) {
      term *= x / (a + n);
      sum += term;
      if (term <= sum * precision) break;
    }
    const double p = gamma_density(a, x) * sum;
    return upper ? 1 - p : p;
  }
  // Legendre's continued fraction with Lentz's method.
  constexpr double kTiny = 1e-300;
  double b = x + 1 - a, c = 1 / kTiny, d = 1 / b, fraction = d;
  for (int n = 1; n < 20000; ++n) {
    const double an = -n * (n - a);
    b += 2;
    d = an * d + b;
    if (std::abs(d) < kTiny) d = kTiny;
    c = b + an / c;
    if (std::abs(c) < kTiny) c = kTiny;
    d = 1 / d;
    fraction *= d * c;
    if (std::abs(d * c - 1) < 10 * precision) break;
  }
  const double q = gamma_density(a, x) * a * fraction;
  return upper ? q : 1 - q;
}

}  // namespace teletensor::ops::scalar
