#include "engine/backends/cpu/random/random_simd.h"

#include <algorithm>
#include <cmath>

#include "engine/ops/scalar/random.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/backends/cpu/random/random_simd.cc"
#include "engine/backends/cpu/access/targets.h"
#include "hwy/foreach_target.h"  // compiles the part below once per instruction set
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace teletensor::backends::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Vectors of counters per step: enough independent chains to hide the latency of multiplications.
constexpr int kChains = 2;

// Computes kChains vectors of blocks. Each word is in the low half of a 64-bit lane; the contents
// of the upper halves are never used.
HWY_INLINE void philox(std::uint64_t seed, std::uint64_t ordinal, std::uint64_t first, int apart,
                       std::uint32_t* to) {
  const hn::ScalableTag<std::uint64_t> d;
  using V = hn::Vec<decltype(d)>;
  const std::size_t lanes = hn::Lanes(d);
  // The product of the low halves.
  const auto multiply = [&](V a, V b) {
#if HWY_TARGET == HWY_SCALAR
    return hn::Set(d, (hn::GetLane(a) & 0xffffffffu) * (hn::GetLane(b) & 0xffffffffu));
#else
    const hn::Repartition<std::uint32_t, decltype(d)> d32;
    return hn::MulEven(hn::BitCast(d32, a), hn::BitCast(d32, b));
#endif
  };
  const V a = hn::Set(d, 0xD2511F53u), b = hn::Set(d, 0xCD9E8D57u);
  V x0[kChains], x1[kChains], x2[kChains], x3[kChains];
  for (int i = 0; i < kChains; ++i) {
    const V block = hn::Iota(d, static_cast<std::uint64_t>(i) * lanes);
    const V counter = hn::Add(hn::Set(d, first), hn::ShiftLeftSame(block, apart));
    x0[i] = counter;
    x1[i] = hn::ShiftRight<32>(counter);
    x2[i] = hn::Set(d, ordinal);
    x3[i] = hn::Set(d, ordinal >> 32);
  }
  auto k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const V key0 = hn::Set(d, k0), key1 = hn::Set(d, k1);
    for (int i = 0; i < kChains; ++i) {
      const V p = multiply(x0[i], a), q = multiply(x2[i], b);
      x0[i] = hn::Xor(hn::Xor(hn::ShiftRight<32>(q), x1[i]), key0);
      x1[i] = q;
      x2[i] = hn::Xor(hn::Xor(hn::ShiftRight<32>(p), x3[i]), key1);
      x3[i] = p;
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const V low = hn::Set(d, 0xffffffffu);
  for (int i = 0; i < kChains; ++i) {
    const V front = hn::Or(hn::And(x0[i], low), hn::ShiftLeft<32>(x1[i]));
    const V back = hn::Or(hn::And(x2[i], low), hn::ShiftLeft<32>(x3[i]));
    hn::StoreInterleaved2(
        front, back, d,
        reinterpret_cast<std::uint64_t*>(to) + 2 * lanes * static_cast<std::size_t>(i));
  }
}

void words(std::uint64_t seed, std::uint64_t ordinal, std::uint64_t first, int apart,
           std::int64_t blocks, std::uint32_t* to) {
  const auto step =
      static_cast<std::int64_t>(kChains * hn::Lanes(hn::ScalableTag<std::uint64_t>()));
  for (; blocks >= step;
       blocks -= step, first += static_cast<std::uint64_t>(step) << apart, to += 4 * step) {
    philox(seed, ordinal, first, apart, to);
  }
  if (blocks > 0) {
    alignas(64) std::uint32_t rest[4 * kChains * 8];
    philox(seed, ordinal, first, apart, rest);
    std::copy(rest, rest + 4 * blocks, to);
  }
}

void normal_f32(const std::uint32_t* words, std::int64_t n, float* to) {
  for (std::int64_t i = 0; i + 1 < n; i += 2) {
    // Numbers in (0, 1] and [0, 1) with 24 bits each.
    const float u = static_cast<float>(static_cast<std::int32_t>((words[i] >> 8) + 1)) * 0x1p-24f;
    const float t = static_cast<float>(static_cast<std::int32_t>(words[i + 1] >> 8)) * 0x1p-24f;
    const float r = std::sqrt(ops::scalar::minus_two_log(u));
    float c, s;
    ops::scalar::turn<5>(t, c, s);
    to[i] = r * c;
    to[i + 1] = r * s;
  }
}

void normal_f64(const std::uint32_t* words, std::int64_t n, double* to) {
  for (std::int64_t i = 0; i + 1 < n; i += 2) {
    const std::uint32_t* const w = words + 2 * i;
    const std::uint64_t a = (static_cast<std::uint64_t>(w[1]) << 32 | w[0]) >> 11;
    const std::uint64_t b = (static_cast<std::uint64_t>(w[3]) << 32 | w[2]) >> 11;
    const double u = static_cast<double>(a + 1) * 0x1p-53;
    const double r = std::sqrt(ops::scalar::minus_two_log(u));
    double c, s;
    ops::scalar::turn<10>(static_cast<double>(b) * 0x1p-53, c, s);
    to[i] = r * c;
    to[i + 1] = r * s;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace teletensor::backends::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace teletensor::backends::cpu {

HWY_EXPORT(words);
HWY_EXPORT(normal_f32);
HWY_EXPORT(normal_f64);

void random_words(Stream stream, std::uint64_t first, std::int64_t blocks, std::uint32_t* to) {
  random_words_apart(stream, first, 0, blocks, to);
}
void random_words_apart(Stream stream, std::uint64_t first, int apart, std::int64_t blocks,
                        std::uint32_t* to) {
  HWY_DYNAMIC_DISPATCH(words)(stream.seed, stream.ordinal, first, apart, blocks, to);
}
void normal_from_words(const std::uint32_t* words, std::int64_t n, float* to) {
  HWY_DYNAMIC_DISPATCH(normal_f32)(words, n, to);
}
void normal_from_words(const std::uint32_t* words, std::int64_t n, double* to) {
  HWY_DYNAMIC_DISPATCH(normal_f64)(words, n, to);
}

}  // namespace teletensor::backends::cpu
#endif
