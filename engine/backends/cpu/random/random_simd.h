// Philox4x32-10 and the distributions computed from it, in blocks. Block b of an instruction has
// the four 32-bit words of counter (b, ordinal) under the key `seed`. The arithmetic is plain IEEE
// operations without contraction, so that other devices can reproduce every bit.
#pragma once

#include <cstdint>

namespace teletensor::backends::cpu {

struct Stream {
  std::uint64_t seed = 0, ordinal = 0;
};

// The words 4 * first ... 4 * (first + blocks) of the stream, in order.
void random_words(Stream stream, std::uint64_t first, std::int64_t blocks, std::uint32_t* to);

// The words of the blocks first, first + 2^apart, first + 2 * 2^apart, ... of the stream.
void random_words_apart(Stream stream, std::uint64_t first, int apart, std::int64_t blocks,
                        std::uint32_t* to);

// Standard normal numbers by Box-Muller: each pair of `to` is computed from the two uniform numbers
// of the same words. n is even. f32 uses 1 word per number, f64 uses 2.
void normal_from_words(const std::uint32_t* words, std::int64_t n, float* to);
void normal_from_words(const std::uint32_t* words, std::int64_t n, double* to);

}  // namespace teletensor::backends::cpu
