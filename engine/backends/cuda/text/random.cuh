// Philox4x32-10 and the distributions made of it, operation by operation as random_simd.cc has them.
namespace tt {

struct Words {
  unsigned w[4];
};
// Block `at` of the stream (seed, ordinal).
inline Words random_block(std::uint64_t seed, std::uint64_t ordinal, std::uint64_t at) {
  unsigned x0 = static_cast<unsigned>(at), x1 = static_cast<unsigned>(at >> 32),
           x2 = static_cast<unsigned>(ordinal), x3 = static_cast<unsigned>(ordinal >> 32);
  unsigned k0 = static_cast<unsigned>(seed), k1 = static_cast<unsigned>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const unsigned p = 0xD2511F53u * x0, p_high = __umulhi(0xD2511F53u, x0);
    const unsigned q = 0xCD9E8D57u * x2, q_high = __umulhi(0xCD9E8D57u, x2);
    x0 = q_high ^ x1 ^ k0;
    x1 = q;
    x2 = p_high ^ x3 ^ k1;
    x3 = p;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{x0, x1, x2, x3}};
}
inline std::uint64_t word_pair(const Words& words, int i) {
  return static_cast<std::uint64_t>(words.w[2 * i + 1]) << 32 | words.w[2 * i];
}

inline float minus_two_log(float u) {
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
inline double minus_two_log(double u) {
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(u);
  const std::uint64_t shifted = bits + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
  const auto exponent = static_cast<std::int64_t>(shifted >> 52) - 1023;
  const double m = std::bit_cast<double>((shifted & 0x000fffffffffffffu) + 0x3fe6a09e667f3bcdu);
  const double s = (m - 1.0) / (m + 1.0), s2 = s * s;
  double series = 2.0 / 23;
#pragma unroll
  for (int k = 21; k >= 1; k -= 2) series = series * s2 + 2.0 / k;
  return -2.0 * (static_cast<double>(exponent) * 0.6931471805599453 + s * series);
}
template <int kTerms, class T>
void turn(T t, T& cosine, T& sine) {
  const T quarter = t * T(4);
  const int q = static_cast<int>(quarter + T(0.5));
  const T x = (quarter - static_cast<T>(q)) * T(1.5707963267948966), x2 = x * x;
  T c = 1, s = 1;
#pragma unroll
  for (int k = kTerms; k >= 1; --k) {
    c = T(1) - c * x2 * (T(1) / static_cast<T>((2 * k - 1) * (2 * k)));
    s = T(1) - s * x2 * (T(1) / static_cast<T>((2 * k) * (2 * k + 1)));
  }
  s *= x;
  const T a = (q & 1) ? s : c, b = (q & 1) ? c : s;
  cosine = (q == 1 || q == 2) ? -a : a;
  sine = (q == 2 || q == 3) ? -b : b;
}

// The numbers of one block: four floats, or two of 8 bytes.
inline void normal_numbers(const Words& words, float (&to)[4]) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const float u =
        static_cast<float>(static_cast<std::int32_t>((words.w[i] >> 8) + 1)) * 0x1p-24f;
    const float t = static_cast<float>(static_cast<std::int32_t>(words.w[i + 1] >> 8)) * 0x1p-24f;
    const float r = std::sqrt(minus_two_log(u));
    float c, s;
    turn<5>(t, c, s);
    to[i] = r * c;
    to[i + 1] = r * s;
  }
}
inline void normal_numbers(const Words& words, double (&to)[2]) {
  const std::uint64_t a = word_pair(words, 0) >> 11, b = word_pair(words, 1) >> 11;
  const double r = std::sqrt(minus_two_log(static_cast<double>(a + 1) * 0x1p-53));
  double c, s;
  turn<10>(static_cast<double>(b) * 0x1p-53, c, s);
  to[0] = r * c;
  to[1] = r * s;
}

}  // namespace tt
