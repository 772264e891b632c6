// Half and BFloat16: storage of 16-bit floats. Arithmetic happens in float; every store rounds to
// nearest even. A number that is too large becomes infinity, and NaN stays NaN. A double is first
// rounded to float, so it may be rounded twice, as in PyTorch.
//
// This file is also compiled for GPUs (engine/backends/cuda/codegen/prelude.cc).
#pragma once

#include <bit>
#include <cstdint>

namespace teletensor::core {

// IEEE 754 binary16: 5 bits of exponent and 10 of mantissa; the largest number is 65504. Subnormal
// numbers are kept.
struct Half {
  std::uint16_t bits = 0;

  Half() = default;
  explicit Half(float value) : bits(from_float(value)) {}
  explicit Half(double value) : Half(static_cast<float>(value)) {}
  explicit operator float() const {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
    const std::uint32_t exponent = (bits >> 10) & 0x1fu, mantissa = bits & 0x3ffu;
    if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
    if (exponent != 0) {
      return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
    }
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  explicit operator double() const { return static_cast<float>(*this); }

  // The bits of the nearest Half. Every NaN becomes the quiet NaN 0x7e00 with the sign of `value`.
  static std::uint16_t from_float(float value) {
    const std::uint32_t x = std::bit_cast<std::uint32_t>(value);
    const std::uint16_t sign = static_cast<std::uint16_t>((x >> 16) & 0x8000u);
    const std::uint32_t magnitude = x & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);
    if (magnitude < 0x38800000u) {  // subnormal half: float addition does the rounding
      const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
      return static_cast<std::uint16_t>(sign |
                                        (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
    }
    const std::uint32_t odd = (magnitude >> 13) & 1u;
    return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
  }
};

// The upper half of a float: the exponents of a float, and 7 bits of mantissa. A NaN becomes quiet
// and keeps its upper bits.
struct BFloat16 {
  std::uint16_t bits = 0;

  BFloat16() = default;
  explicit BFloat16(float value) {
    const std::uint32_t x = std::bit_cast<std::uint32_t>(value);
    if ((x & 0x7fffffffu) > 0x7f800000u) {
      bits = static_cast<std::uint16_t>((x >> 16) | 0x40u);
    } else {
      bits = static_cast<std::uint16_t>((x + 0x7fffu + ((x >> 16) & 1u)) >> 16);
    }
  }
  explicit BFloat16(double value) : BFloat16(static_cast<float>(value)) {}
  explicit operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
  explicit operator double() const { return static_cast<float>(*this); }
};

}  // namespace teletensor::core
