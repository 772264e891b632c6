// The functions from which normal random numbers are computed. The kernels of the CPU and of
// devices share them, so that the bits are the same on every instruction set.
#pragma once

#include <bit>
#include <cstdint>

// Inlines a function into loops of any instruction set. Without flatten, std::bit_cast stays a call
// to code of another instruction set, and the loops do not vectorise (six times slower).
#if defined(TELETENSOR_DEVICE_TEXT)
#define TT_INTO_LOOPS inline
#else
#define TT_INTO_LOOPS inline __attribute__((always_inline, flatten))
#endif

namespace teletensor::ops::scalar {

// -2 ln(u) for u in (0, 1]: u = 2^e * m with m in [sqrt(1/2), sqrt(2)), and ln m as the series of 2
// atanh(s), s = (m - 1) / (m + 1), |s| < 0.172. The relative error is below 2e-7.
TT_INTO_LOOPS float minus_two_log(float u) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(u);
  const std::uint32_t shifted = bits + (0x3f800000u - 0x3f3504f3u);
  const auto exponent = static_cast<std::int32_t>(shifted >> 23) - 127;
  const float m = std::bit_cast<float>((shifted & 0x007fffffu) + 0x3f3504f3u);
  const float s = (m - 1.0f) / (m + 1.0f), s2 = s * s;
  const float series =
      2.0f + s2 * (0.66666669f + s2 * (0.4f + s2 * (0.28571430f + s2 * 0.22222222f)));
  const float e = static_cast<float>(exponent);
  return -2.0f * (e * 0.69314718f + s * series);
}

TT_INTO_LOOPS double minus_two_log(double u) {
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(u);
  const std::uint64_t shifted = bits + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
  const auto exponent = static_cast<std::int64_t>(shifted >> 52) - 1023;
  const double m = std::bit_cast<double>((shifted & 0x000fffffffffffffu) + 0x3fe6a09e667f3bcdu);
  const double s = (m - 1.0) / (m + 1.0), s2 = s * s;
  double series = 2.0 / 23;
  for (int k = 21; k >= 1; k -= 2) series = series * s2 + 2.0 / k;
  return -2.0 * (static_cast<double>(exponent) * 0.6931471805599453 + s * series);
}

// cos and sin of 2 pi t for t in [0, 1): reduces the angle to an eighth of a turn, then selects the
// quadrant.
template <int kTerms, class T>
TT_INTO_LOOPS void turn(T t, T& cosine, T& sine) {
  const T quarter = t * T(4);
  const int q = static_cast<int>(quarter + T(0.5));
  const T x = (quarter - static_cast<T>(q)) * T(1.5707963267948966), x2 = x * x;
  T c = 1, s = 1;
  for (int k = kTerms; k >= 1; --k) {
    c = T(1) - c * x2 * (T(1) / static_cast<T>((2 * k - 1) * (2 * k)));
    s = T(1) - s * x2 * (T(1) / static_cast<T>((2 * k) * (2 * k + 1)));
  }
  s *= x;
  const T a = (q & 1) ? s : c, b = (q & 1) ? c : s;
  cosine = (q == 1 || q == 2) ? -a : a;
  sine = (q == 2 || q == 3) ? -b : b;
}

}  // namespace teletensor::ops::scalar
