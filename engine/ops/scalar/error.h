// Functions related to the error function, in double: erfcx, the inverses of erf and of the normal
// distribution function, and its logarithm. See scalar/special.h.
#pragma once

#include <cmath>

#include "engine/ops/scalar/gamma.h"

namespace teletensor::ops::scalar {

inline constexpr double kRootHalf = 0.70710678118654752440, kRootPi = 1.7724538509055160273;

// exp(x^2) erfc(x). The square is computed in two parts, so that its rounding has no effect; beyond
// 25 by the asymptotic series (A. and S. 7.1.23).
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

// The inverse of the normal distribution function at 0.5 + q, where `tail` is the smaller side.
// Wichura's algorithm AS241 (1988), accurate to 1e-16, in a form that vectorises. Precondition
// without kFar: tail is at least exp(-25).
template <bool kFar>
inline double normal_quantile(double q, double tail) {
  const auto polynomial = [](double r, const double(&a)[8]) {
    double sum = a[7];
    for (int i = 6; i >= 0; --i) sum = sum * r + a[i];
    return sum;
  };
  constexpr double kA[] = {3.3871328727963666080e0, 1.3314166789178437745e2,
                           1.9715909503065514427e3, 1.3731693765509461125e4,
                           4.5921953931549871457e4, 6.7265770927008700853e4,
                           3.3430575583588128105e4, 2.5090809287301226727e3};
  constexpr double kB[] = {1.0,
                           4.2313330701600911252e1,
                           6.8718700749205790830e2,
                           5.3941960214247511077e3,
                           2.1213794301586595867e4,
                           3.9307895800092710610e4,
                           2.8729085735721942674e4,
                           5.2264952788528545610e3};
  constexpr double kC[] = {1.42343711074968357734e0,  4.63033784615654529590e0,
                           5.76949722146069140550e0,  3.64784832476320460504e0,
                           1.27045825245236838258e0,  2.41780725177450611770e-1,
                           2.27238449892691845833e-2, 7.74545014278341407640e-4};
  constexpr double kD[] = {1.0,
                           2.05319162663775882187e0,
                           1.67638483018380384940e0,
                           6.89767334985100004550e-1,
                           1.48103976427480074590e-1,
                           1.51986665636164571966e-2,
                           5.47593808499534494600e-4,
                           1.05075007164441684324e-9};
  constexpr double kE[] = {6.65790464350110377720e0,  5.46378491116411436990e0,
                           1.78482653991729133580e0,  2.96560571828504891230e-1,
                           2.65321895265761230930e-2, 1.24266094738807843860e-3,
                           2.71155556874348757815e-5, 2.01033439929228813265e-7};
  constexpr double kF[] = {1.0,
                           5.99832206555887937690e-1,
                           1.36929880922735805310e-1,
                           1.48753612908506148525e-2,
                           7.86869131145613259100e-4,
                           1.84631831751005468180e-5,
                           1.42151175831644588870e-7,
                           2.04426310338993978564e-15};
  const double m = 0.180625 - q * q, r = sqrt(-log(tail));
  double above = polynomial(r - 1.6, kC), below = polynomial(r - 1.6, kD);
  if constexpr (kFar) {
    const double far_above = polynomial(r - 5, kE), far_below = polynomial(r - 5, kF);
    above = r <= 5 ? above : far_above;
    below = r <= 5 ? below : far_below;
  }
  const double middle_above = polynomial(m, kA), middle_below = polynomial(m, kB);
  const bool middle = abs(q) <= 0.425;
  const double ratio = (middle ? middle_above : above) / (middle ? middle_below : below);
  const double found = middle ? q * ratio : copysign(ratio, q);
  const double edge = tail == 0 ? copysign(kInfinity, q) : kNaN;
  return tail > 0 ? found : edge;
}

inline double log_ndtr(double x) {
  if (x < -1) return std::log(erfcx(-x * kRootHalf) / 2) - x * x / 2;
  return std::log1p(-std::erfc(x * kRootHalf) / 2);
}

}  // namespace teletensor::ops::scalar
