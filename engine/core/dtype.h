// Element types, devices, and the rules of type promotion.
//
// Daemon and client compute with these functions, and must get the same results: a change is a
// change of the protocol (proto/wire/protocol.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace teletensor::core {

// The numbers are used on the wire and in files and must never change.
enum class DType : std::uint8_t {
  kBool = 1,
  kU8 = 2,
  kI8 = 3,
  kI16 = 4,
  kI32 = 5,
  kI64 = 6,
  kF16 = 7,
  kBF16 = 8,
  kF32 = 9,
  kF64 = 10,
  kC64 = 11,   // two f32
  kC128 = 12,  // two f64
  kU16 = 13,
  kU32 = 14,
  kU64 = 15,
};
// All of them, in the order of their numbers.
inline constexpr DType kAllDTypes[] = {DType::kBool, DType::kU8,  DType::kI8,  DType::kI16,
                                       DType::kI32,  DType::kI64, DType::kF16, DType::kBF16,
                                       DType::kF32,  DType::kF64, DType::kC64, DType::kC128,
                                       DType::kU16,  DType::kU32, DType::kU64};

// Size of an element in bytes. 0 if the number is not that of a dtype.
constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kU8:
    case DType::kI8:
      return 1;
    case DType::kF16:
    case DType::kBF16:
    case DType::kI16:
    case DType::kU16:
      return 2;
    case DType::kI32:
    case DType::kU32:
    case DType::kF32:
      return 4;
    case DType::kI64:
    case DType::kU64:
    case DType::kF64:
    case DType::kC64:
      return 8;
    case DType::kC128:
      return 16;
  }
  return 0;
}

// Real floating types only; see is_inexact.
constexpr bool is_floating(DType dtype) { return dtype >= DType::kF16 && dtype <= DType::kF64; }
constexpr bool is_complex(DType dtype) { return dtype == DType::kC64 || dtype == DType::kC128; }
// Floating or complex types, whose tensors can require grad.
constexpr bool is_inexact(DType dtype) { return dtype >= DType::kF16 && dtype <= DType::kC128; }
constexpr bool is_signed_integral(DType dtype) {
  return dtype >= DType::kI8 && dtype <= DType::kI64;
}
constexpr bool is_unsigned(DType dtype) {  // bool does not count
  return dtype == DType::kU8 || dtype >= DType::kU16;
}
constexpr bool is_integral(DType dtype) {  // bool does not count
  return is_signed_integral(dtype) || is_unsigned(dtype);
}
// The categories of type promotion: bool < integers < floats < complex.
constexpr int category_of(DType dtype) {
  return dtype == DType::kBool ? 0 : is_integral(dtype) ? 1 : is_floating(dtype) ? 2 : 3;
}
// The dtype of the parts of a complex dtype; other dtypes are returned unchanged.
constexpr DType real_of(DType dtype) {
  return dtype == DType::kC64 ? DType::kF32 : dtype == DType::kC128 ? DType::kF64 : dtype;
}
// The complex dtype for a floating dtype (complex64 for 16-bit floats); complex dtypes are returned
// unchanged.
constexpr DType complex_of(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kC128 ? DType::kC128 : DType::kC64;
}

// The range of an integer dtype or bool, with both ends. Other dtypes have the range of bool.
struct IntegerRange {
  std::int64_t least = 0;
  std::uint64_t most = 1;
};
constexpr IntegerRange range_of(DType dtype) {
  if (!is_integral(dtype)) return {};
  const int bits = static_cast<int>(size_of(dtype)) * 8;
  if (is_unsigned(dtype)) return {0, ~std::uint64_t{0} >> (64 - bits)};
  const std::uint64_t most = (std::uint64_t{1} << (bits - 1)) - 1;
  return {-static_cast<std::int64_t>(most) - 1, most};
}
// The largest finite number of a floating dtype, or of the parts of a complex dtype.
constexpr double largest_of(DType dtype) {
  switch (real_of(dtype)) {
    case DType::kF16:
      return 65504;
    case DType::kBF16:
      return 0x1.fep127;
    case DType::kF32:
      return std::numeric_limits<float>::max();
    default:
      return std::numeric_limits<double>::max();
  }
}

// PyTorch's names: "float32", "bool", ... "unknown" if the number is not that of a dtype.
std::string_view name_of(DType dtype);
// Returns nullopt if no dtype has this name. Other names of PyTorch, such as "float", have none.
std::optional<DType> dtype_from_name(std::string_view name);
// Returns nullopt if no dtype has this number.
std::optional<DType> dtype_from_number(std::uint64_t number);

// The smallest dtype to which both can be converted (same-rank promotion). Follows PyTorch's rules,
// and NumPy's where PyTorch refuses (uint16, uint32, uint64 with other integers).
DType promote(DType a, DType b);
// Returns true if an in-place result of type `from` may be stored into `to`: its category must not
// be higher. Any two integer types are compatible.
bool can_cast(DType from, DType to);

// The kinds up to kSim are those of a daemon's devices, and their numbers are used on the wire and
// in files. kMeta is the device of tensors without data, which exist in a client only; no message
// may contain it.
enum class DeviceKind : std::uint8_t { kCpu = 0, kCuda = 1, kSim = 2, kMeta = 3 };

// A device of a daemon, or of a client if it is kMeta.
struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  std::uint8_t index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

// Returns "cpu", "cuda:0", "sim:0", "meta", ...
std::string to_string(Device device);
// Accepts "cuda" for "cuda:0". Returns nullopt if it is not the name of a device of a daemon.
std::optional<Device> device_from_name(std::string_view name);

}  // namespace teletensor::core
