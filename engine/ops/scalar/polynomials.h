// Orthogonal polynomials by their three-term recurrences, with PyTorch's conventions: 0 for a
// negative degree, and the cos and sin forms of Chebyshev's polynomials inside (-1, 1) above a few
// degrees. See scalar/special.h.
#pragma once

#include <cmath>

#include "engine/ops/scalar/gamma.h"

namespace teletensor::ops::scalar {

// Above this degree the result is NaN, because a recurrence may not end early.
inline constexpr Int kMaxTerms = 1'000'000;

enum class Chebyshev { kT, kU, kV, kW };

// Precondition: |x| is 1.
inline double chebyshev_at_end(Chebyshev kind, double x, std::int64_t n) {
  const bool even = n % 2 == 0;
  const double wide = static_cast<double>(n) + static_cast<double>(n) + 1;
  switch (kind) {
    case Chebyshev::kT:
      return x > 0 || even ? 1 : -1;
    case Chebyshev::kU:
      return x > 0 || even ? static_cast<double>(n) + 1 : -(static_cast<double>(n) + 1);
    case Chebyshev::kV:
      return x > 0 ? 1 : even ? wide : -wide;
    default:
      return x > 0 ? wide : even ? 1 : -1;
  }
}

inline double chebyshev(Chebyshev kind, double x, double degree) {
  const Int n = to_int(degree);
  if (n < 0) return 0;
  if (std::abs(x) == 1) return chebyshev_at_end(kind, x, n);
  if (n > (kind == Chebyshev::kT ? 6 : 8) && std::abs(x) < 1) {
    const double angle = std::acos(x), m = static_cast<double>(n);
    switch (kind) {
      case Chebyshev::kT:
        return std::cos(m * angle);
      case Chebyshev::kU:
        return std::sin((m + 1) * angle) / std::sin(angle);
      case Chebyshev::kV:
        return std::cos((m + 0.5) * angle) / std::cos(angle / 2);
      default:
        return std::sin((m + 0.5) * angle) / std::sin(angle / 2);
    }
  }
  const double first = kind == Chebyshev::kT   ? x
                       : kind == Chebyshev::kU ? x + x
                       : kind == Chebyshev::kV ? x + x - 1
                                               : x + x + 1;
  if (n == 0) return 1;
  if (n > kMaxTerms) return kNaN;
  double p = 1, q = first;
  // Outside of [-1, 1] it soon overflows and then becomes NaN.
  for (Int k = 2; k <= n && q == q; ++k) {
    const double r = (x + x) * q - p;
    p = q;
    q = r;
  }
  return q;
}

// Above the degree `limit` PyTorch gives NaN.
inline double hermite(double x, double degree, bool physicist, Int limit) {
  const Int n = to_int(degree);
  if (n < 0) return 0;
  if (n == 0) return 1;
  if (n > limit) return kNaN;
  const double scale = physicist ? 2 : 1;
  double p = 1, q = scale * x;
  for (Int k = 1; k < n; ++k) {
    const double r = scale * (x * q - static_cast<double>(k) * p);
    p = q;
    q = r;
  }
  return q;
}

inline double laguerre(double x, double degree) {
  const Int n = to_int(degree);
  if (n < 0) return 0;
  if (n == 0 || x == 0) return 1;
  if (n > kMaxTerms) return kNaN;
  double p = 1, q = 1 - x;
  for (Int k = 1; k < n && q == q; ++k) {
    const double m = static_cast<double>(k), r = ((m + m + (1 - x)) * q - m * p) / (m + 1);
    p = q;
    q = r;
  }
  return q;
}

inline double legendre(double x, double degree) {
  const Int n = to_int(degree);
  if (n < 0) return 0;
  if (std::abs(x) == 1) return x > 0 || n % 2 == 0 ? 1 : -1;
  if (n == 0) return 1;
  if (n > kMaxTerms) return kNaN;
  double p = 1, q = x;
  for (Int k = 1; k < n && q == q; ++k) {
    const double m = static_cast<double>(k), r = ((m + m + 1) * x * q - m * p) / (m + 1);
    p = q;
    q = r;
  }
  return q;
}

}  // namespace teletensor::ops::scalar
