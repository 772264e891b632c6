// Philox4x32-10 and distributions computed from it, with the operations of random_simd.cc in the
// same order.
namespace tt {

struct Words {
  unsigned w[4];
};
// Block number `at` of the stream (seed, ordinal).
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

// The random numbers of one block: four floats, or two numbers of 8 bytes.
inline void normal_numbers(const Words& words, float (&to)[4]) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const float u =
        static_cast<float>(static_cast<std::int32_t>((words.w[i] >> 8) + 1)) * 0x1p-24f;
    const float t = static_cast<float>(static_cast<std::int32_t>(words.w[i + 1] >> 8)) * 0x1p-24f;
    const float r = std::sqrt(s::minus_two_log(u));
    float cosine, sine;
    s::turn<5>(t, cosine, sine);
    to[i] = r * cosine;
    to[i + 1] = r * sine;
  }
}
inline void normal_numbers(const Words& words, double (&to)[2]) {
  const std::uint64_t a = word_pair(words, 0) >> 11, b = word_pair(words, 1) >> 11;
  const double r = std::sqrt(s::minus_two_log(static_cast<double>(a + 1) * 0x1p-53));
  double cosine, sine;
  s::turn<10>(static_cast<double>(b) * 0x1p-53, cosine, sine);
  to[0] = r * cosine;
  to[1] = r * sine;
}

}  // namespace tt
