// Element types, devices, and how types promote.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace teletensor::core {

// The numbers travel on the wire and stand in files: never renumber. 2, 3, 11 to 15 are kept for
// the 8- and 16-bit integers, complex and the wider unsigned types.
enum class DType : std::uint8_t {
  kBool = 1,
  kU8 = 2,
  kI32 = 5,
  kI64 = 6,
  kF16 = 7,
  kBF16 = 8,
  kF32 = 9,
  kF64 = 10,
};
inline constexpr DType kAllDTypes[] = {DType::kBool, DType::kU8,   DType::kI32, DType::kI64,
                                       DType::kF16,  DType::kBF16, DType::kF32, DType::kF64};

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kU8:
      return 1;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kI32:
    case DType::kF32:
      return 4;
    case DType::kI64:
    case DType::kF64:
      return 8;
  }
  return 0;
}

constexpr bool is_floating(DType dtype) { return dtype >= DType::kF16; }
constexpr bool is_integral(DType dtype) { return dtype > DType::kBool && dtype < DType::kF16; }

// "float32", "bool", ...: PyTorch's names.
std::string_view name_of(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);
// nullopt for a number that no dtype has.
std::optional<DType> dtype_from_number(std::uint64_t number);

// The smallest dtype that both convert to (same-rank promotion, PyTorch's lattice).
DType promote(DType a, DType b);
// True where an in-place result of type `from` may be stored into `to`: never float to integer,
// never a number to bool.
bool can_cast(DType from, DType to);

enum class DeviceKind : std::uint8_t { kCpu = 0, kCuda = 1, kSim = 2 };

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  std::uint8_t index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

// "cpu", "cuda:0", "sim:0".
std::string to_string(Device device);
// Accepts "cuda" for "cuda:0"; nullopt for anything that is not a device's name.
std::optional<Device> device_from_name(std::string_view name);

}  // namespace teletensor::core
