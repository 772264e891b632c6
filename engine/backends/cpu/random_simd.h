// Philox4x32-10 and the distributions made of it, in blocks. Block b of an instruction holds the
// four 32-bit words of counter (b, ordinal) under key `seed`. The arithmetic is plain IEEE
// operations without contraction, so that another device can reproduce every bit.
#pragma once

#include <cstdint>

namespace teletensor::backends::cpu {

struct Stream {
  std::uint64_t seed = 0, ordinal = 0;
};

// Words 4 * first ... 4 * (first + blocks) of the stream, in order.
void random_words(Stream stream, std::uint64_t first, std::int64_t blocks, std::uint32_t* to);

// The same of the blocks first, first + 2^apart, first + 2 * 2^apart, ...
void random_words_apart(Stream stream, std::uint64_t first, int apart, std::int64_t blocks,
                        std::uint32_t* to);

// Standard normal numbers by Box-Muller: each pair of `to` from the pair of uniform numbers made of
// the same words. n is even. f32: 1 word a number; f64: 2 words a number.
void normal_from_words(const std::uint32_t* words, std::int64_t n, float* to);
void normal_from_words(const std::uint32_t* words, std::int64_t n, double* to);

}  // namespace teletensor::backends::cpu
