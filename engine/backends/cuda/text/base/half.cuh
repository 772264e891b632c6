// The functions of core/half.h with the device's instructions. The bits are the same, except that
// NaNs are canonical.
namespace teletensor::core {

struct Half {
  std::uint16_t bits = 0;

  Half() = default;
  explicit Half(float value) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value)); }
  explicit Half(double value) : Half(static_cast<float>(value)) {}
  explicit operator float() const {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  }
  explicit operator double() const { return static_cast<float>(*this); }
};

struct BFloat16 {
  std::uint16_t bits = 0;

  BFloat16() = default;
  explicit BFloat16(float value) {
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
    const std::uint32_t x = std::bit_cast<std::uint32_t>(value);
    bits = (x & 0x7fffffffu) > 0x7f800000u
               ? static_cast<std::uint16_t>(0x7fffu)
               : static_cast<std::uint16_t>((x + 0x7fffu + ((x >> 16) & 1u)) >> 16);
#endif
  }
  explicit BFloat16(double value) : BFloat16(static_cast<float>(value)) {}
  explicit operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
  explicit operator double() const { return static_cast<float>(*this); }
};

}  // namespace teletensor::core
