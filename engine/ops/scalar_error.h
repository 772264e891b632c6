// The error function's family, in double: erfcx, the inverses of erf and of the normal
// distribution, its logarithm. See scalar_special.h.
#pragma once

#include <cmath>

#include "engine/ops/scalar_gamma.h"

namespace teletensor::ops::scalar {

inline constexpr double kRootHalf = 0.70710678118654752440, kRootPi = 1.7724538509055160273;

// exp(x^2) erfc(x). The square is taken in two parts, so that its rounding does not show; beyond 25
// the asymptotic series (A. and S. 7.1.23).
inline double erfcx(double x) {
  if (x > 25) {
    if (x > 1e8) return 1 / (kRootPi * x);
    const double z = 1 / (2 * x * x);
    double sum = 0;
    for (int k = 8; k >= 1; --k) sum = -(2 * k - 1) * z * (1 + sum);
    return (1 + sum) / (kRootPi * x);
  }
  if (x < -27) return kInfinity;
  const double square = x * x, rest = std::fma(x, x, -square);
  return std::exp(square) * (1 + rest) * std::erfc(x);
}

// The y > 0 with erfc(y) = c, 0 < c <= 1: Winitzki's estimate (2008), then Newton's method on
// log(erfc), which stays exact where erfc is tiny.
inline double inverse_erfc_above(double c) {
  const double b = std::log(c * (2 - c)), a = 2 / (kPi * 0.147) + b / 2;
  double y = std::sqrt(std::sqrt(a * a - b / 0.147) - a);
  for (int i = 0; i < 4; ++i) {
    const double scaled = erfcx(y);
    y += (std::log(scaled) - y * y - std::log(c)) * scaled * (kRootPi / 2);
  }
  return y;
}

inline double erfinv(double x) {
  const double size = std::abs(x);
  if (!(size < 1)) return size == 1 ? std::copysign(kInfinity, x) : kNaN;
  if (size > 0.5) return std::copysign(inverse_erfc_above(1 - size), x);
  if (size < 1e-9) return x * (kRootPi / 2);
  const double b = std::log1p(-x * x), a = 2 / (kPi * 0.147) + b / 2;
  double y = std::copysign(std::sqrt(std::sqrt(a * a - b / 0.147) - a), x);
  for (int i = 0; i < 3; ++i) {  // Halley
    const double step = (std::erf(y) - x) * (kRootPi / 2) * std::exp(y * y);
    y -= step / (1 + y * step);
  }
  return y;
}

// The inverse of the normal distribution function.
inline double ndtri(double p) {
  if (!(p > 0 && p < 1)) return p == 0 ? -kInfinity : p == 1 ? kInfinity : kNaN;
  if (p > 0.25 && p < 0.75) return erfinv(2 * p - 1) / kRootHalf;
  return p < 0.5 ? -inverse_erfc_above(2 * p) / kRootHalf
                 : inverse_erfc_above(2 * (1 - p)) / kRootHalf;
}

inline double ndtr(double x) { return 0.5 * std::erfc(-x * kRootHalf); }

inline double log_ndtr(double x) {
  if (x < -1) return std::log(erfcx(-x * kRootHalf) / 2) - x * x / 2;
  return std::log1p(-std::erfc(x * kRootHalf) / 2);
}

}  // namespace teletensor::ops::scalar
