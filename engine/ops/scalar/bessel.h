// Bessel and Airy functions in double; see scalar/special.h. J and Y are those of libm.
#pragma once

#include <cmath>
#include <cstddef>

#include "engine/ops/scalar/gamma.h"

namespace teletensor::ops::scalar {

inline constexpr double kEuler = 0.57721566490153286061, kRootOfPi = 1.7724538509055160273;

inline double bessel_j(int order, double x) {
  if (std::isinf(x)) return kNaN;  // as in PyTorch and SciPy
  return order == 0 ? ::j0(x) : ::j1(x);
}

inline double bessel_y(int order, double x) {
  if (x == 0) return -kInfinity;
  if (!(x > 0)) return kNaN;
  return order == 0 ? ::y0(x) : ::y1(x);
}

// The modified Bessel function I_0 or I_1, times exp(-|x|) if scaled. Below |x| = 30 it is computed
// by the power series (A. and S. 9.6.10), which has no cancellation, and from there on by the
// asymptotic series (A. and S. 9.7.1).
inline double bessel_i(int order, double x, bool scaled) {
  const double size = std::abs(x);
  double result;
  if (size < 30) {
    const double z = size * size / 4;
    double term = order == 0 ? 1 : size / 2, sum = term;
    for (int k = 1; k < 100; ++k) {
      term *= z / (k * (k + static_cast<double>(order)));
      sum += term;
      if (term <= sum * 1e-17) break;
    }
    result = scaled ? sum * std::exp(-size) : sum;
  } else {
    double term = 1, sum = 1;
    for (int k = 1; k < 30; ++k) {
      const double odd = 2 * k - 1;
      term *= -(4.0 * order - odd * odd) / (8 * k * size);
      sum += term;
      if (std::abs(term) < 1e-17) break;
    }
    result = sum / (std::sqrt(2 * kPi) * std::sqrt(size));
    if (!scaled) result = result * std::exp(size / 2) * std::exp(size / 2);
  }
  if (std::isinf(size)) result = scaled ? 0.0 : kNaN;  // as in PyTorch and SciPy
  return order == 1 && x < 0 ? -result : result;
}

// exp(x) K_order(x) for x >= 1: the trapezoidal rule on the integral of exp(-x (cosh t - 1))
// cosh(order t), whose error falls exponentially with the step (A. and S. 9.6.24).
inline double scaled_k_by_integral(double order, double x) {
  const double h = std::fmin(0.2, 0.7 / std::sqrt(x));
  double sum = 0.5;
  for (int i = 1; i < 200; ++i) {
    const double t = i * h, s = std::sinh(t / 2);
    const double term = std::exp(-2 * x * s * s) * std::cosh(order * t);
    sum += term;
    if (term < sum * 1e-18) break;
  }
  return sum * h;
}

// exp(x) sqrt(x) K_0(x) and K_1(x) for x >= 2 as Chebyshev series of 4 / x - 1; the coefficients
// were computed with 40 digits.
inline constexpr double kScaledK0[] = {
    2.4403030820659554547,      -3.1448101311964500543e-2,  1.5698838857300533749e-3,
    -1.2849549581627802638e-4,  1.3949813718876499364e-5,   -1.8317555227191194848e-6,
    2.7668136394450150761e-7,   -4.6604898976879476656e-8,  8.5740340174142260858e-9,
    -1.6975345093890615156e-9,  3.5773972814003284472e-10,  -7.9574892444773970377e-11,
    1.855949114954926555e-11,   -4.5145978833745191751e-12, 1.1403405882073442347e-12,
    -2.9800969231481783548e-13, 8.0328907750683743694e-14,  -2.2275133267462963604e-14,
    6.3400764762766459661e-15,  -1.8485933779209071694e-15, 5.5120559994043333649e-16,
    -1.6782311257549006383e-16, 5.2103917776435541125e-17,  -1.6475805939842632815e-17,
    5.3004337711773357703e-18,  -1.7331712005821000263e-18};
inline constexpr double kScaledK1[] = {
    2.7206261904844426694,      1.0392373657681723844e-1,   -2.8578168596227793868e-3,
    1.9521551847135163111e-4,   -1.93619797416608296e-5,    2.4064849478372171171e-6,
    -3.5019606030878125421e-7,  5.7410841254500492923e-8,   -1.0345762465678097027e-8,
    2.0150497551970346161e-9,   -4.1903547593419255842e-10, 9.2183151876053141258e-11,
    -2.1299678384277910216e-11, 5.1396396734823435404e-12,  -1.2891739609498229352e-12,
    3.3484196660522431201e-13,  -8.9767051820101460692e-14, 2.4771544242195986813e-14,
    -7.0198370892147688513e-15, 2.0387031662398608799e-15,  -6.0570472706430178228e-16,
    1.8380935752430454256e-16,  -5.6894628491936483742e-17, 1.7940510478863572914e-17,
    -5.7567444820733024496e-18, 1.8778651901623267386e-18};
template <std::size_t kTerms>
double chebyshev_sum(const double (&c)[kTerms], double u) {  // Clenshaw's algorithm
  double b1 = 0, b2 = 0;
  for (std::size_t k = kTerms - 1; k >= 1; --k) {
    const double b = 2 * u * b1 - b2 + c[k];
    b2 = b1;
    b1 = b;
  }
  return u * b1 - b2 + c[0] / 2;
}

// The modified Bessel function K_0 or K_1, times exp(x) if scaled. Below x = 2 it is computed by
// the series of A. and S. 9.6.11 and 9.6.13, and from there on by the Chebyshev series above.
inline double bessel_k(int order, double x, bool scaled) {
  if (x == 0) return kInfinity;
  if (!(x > 0)) return kNaN;
  if (std::isinf(x)) return 0;
  if (x >= 2) {
    const double u = 4 / x - 1;
    const double k =
        (order == 0 ? chebyshev_sum(kScaledK0, u) : chebyshev_sum(kScaledK1, u)) / std::sqrt(x);
    return scaled ? k : k * std::exp(-x / 2) * std::exp(-x / 2);
  }
  const double z = x * x / 4, log_half = std::log(x / 2);
  double term = 1, harmonic = 0, sum = 0;
  for (int k = 0; k < 30; ++k) {
    if (k > 0) {
      harmonic += 1.0 / k;
      term *= z / (k * (k + static_cast<double>(order)));
    }
    sum += term * (order == 0 ? harmonic : 2 * harmonic + 1.0 / (k + 1));
    if (k > 0 && term < 1e-18) break;
  }
  const double i = bessel_i(order, x, false), lead = (log_half + kEuler) * i;
  const double result = order == 0 ? sum - lead : 1 / x + lead - x / 4 * sum;
  return scaled ? result * std::exp(x) : result;
}

inline double spherical_bessel_j0(double x) {
  if (std::isinf(x)) return 0;
  if (std::abs(x) < 0.5) {
    const double z = x * x;
    double sum = 1;
    for (int k = 9; k >= 1; --k) sum = 1 - sum * z / (2 * k * (2 * k + 1));
    return sum;
  }
  return std::sin(x) / x;
}

// The Airy function Ai. From -10.5 to 3.5 it is computed by the Taylor series of y'' = x y around
// the nearest integer, whose value and slope there are tabulated; above 3.5 by K_1/3 (A. and S.
// 10.4.14), and below -10.5 by the asymptotic series (A. and S. 10.4.60).
inline double airy_ai(double x) {
  if (std::isinf(x) || x != x) return kNaN;
  const double size = std::abs(x), zeta = 2 * size * std::sqrt(size) / 3;
  if (x > 3.5) {
    if (x > 110) return 0;
    return std::sqrt(x / 3) / kPi * std::exp(-zeta) * scaled_k_by_integral(1.0 / 3, zeta);
  }
  if (x < -10.5) {
    double u = 1, even = 0, odd = 0;
    for (int k = 0; k < 40; k += 2) {
      const double sign = k % 4 == 0 ? 1 : -1;
      const auto next = [&](int i) {
        u *= (6.0 * i + 5) * (6.0 * i + 3) * (6.0 * i + 1) / (216.0 * (i + 1) * (2 * i + 1) * zeta);
      };
      even += sign * u;
      next(k);
      odd += sign * u;
      next(k + 1);
      if (u < 1e-17) break;
    }
    const double angle = zeta - kPi / 4;
    return (std::cos(angle) * even + std::sin(angle) * odd) /
           (kRootOfPi * std::sqrt(std::sqrt(size)));
  }
  constexpr double kAt[][2] = {{0.040241238486443190689, 0.9962650441327900559},
                               {-0.022133721547341403674, -0.97566398092633159471},
                               {-0.052705050356386202622, 0.93556093819830655103},
                               {0.18428083525050563728, -0.77100816841012654773},
                               {-0.32914517362982310523, 0.34593548728134289493},
                               {0.35076100902411431979, 0.32719281855444313679},
                               {-0.070265532949289515099, -0.7906285753685813803},
                               {-0.37881429367765807435, 0.31458376921659881365},
                               {0.22740742820168557599, 0.61825902074169104141},
                               {0.5355608832923521188, -0.010160567116645209395},
                               {0.35502805388781723926, -0.25881940379280679841},
                               {0.13529241631288141552, -0.15914744129679321279},
                               {0.034924130423274379135, -0.053090384433653631704},
                               {0.0065911393574607191443, -0.011912976705951318474}};
  const double centre = std::fmin(3, std::fmax(-10, std::rint(x))), h = x - centre;
  const double* const known = kAt[static_cast<int>(centre) + 10];
  // The coefficients c_n of h^n: (n + 1)(n + 2) c_{n+2} = centre c_n + c_{n-1}.
  double before = 0, c = known[0], after = known[1], power = h;
  double sum = c + after * h;
  for (int n = 0; n < 40; ++n) {
    const double next = (centre * c + before) / ((n + 1.0) * (n + 2.0));
    before = c;
    c = after;
    after = next;
    power *= h;
    sum += after * power;
  }
  return sum;
}

}  // namespace teletensor::ops::scalar
