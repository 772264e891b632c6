#include "engine/core/dtype.h"

#include <charconv>
#include <utility>

namespace teletensor::core {

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return "bool";
    case DType::kU8:
      return "uint8";
    case DType::kI32:
      return "int32";
    case DType::kI64:
      return "int64";
    case DType::kF16:
      return "float16";
    case DType::kBF16:
      return "bfloat16";
    case DType::kF32:
      return "float32";
    case DType::kF64:
      return "float64";
    case DType::kI8:
      return "int8";
    case DType::kI16:
      return "int16";
    case DType::kC64:
      return "complex64";
    case DType::kC128:
      return "complex128";
    case DType::kU16:
      return "uint16";
    case DType::kU32:
      return "uint32";
    case DType::kU64:
      return "uint64";
  }
  return "unknown";
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (DType dtype : kAllDTypes) {
    if (name_of(dtype) == name) return dtype;
  }
  return std::nullopt;
}

std::optional<DType> dtype_from_number(std::uint64_t number) {
  for (DType dtype : kAllDTypes) {
    if (static_cast<std::uint64_t>(dtype) == number) return dtype;
  }
  return std::nullopt;
}

namespace {

// The smallest signed type with more bits than an unsigned type; a float if there is none.
DType above(DType unsigned_type) {
  switch (size_of(unsigned_type)) {
    case 1:
      return DType::kI16;
    case 2:
      return DType::kI32;
    case 4:
      return DType::kI64;
    default:
      return DType::kF64;
  }
}

}  // namespace

DType promote(DType a, DType b) {
  if (a == b) return a;
  if (category_of(a) < category_of(b)) std::swap(a, b);
  if (is_complex(a)) {
    const bool wide = a == DType::kC128 || b == DType::kC128 || b == DType::kF64;
    return wide ? DType::kC128 : DType::kC64;
  }
  if (category_of(a) != category_of(b)) return a;
  if (is_floating(a)) {
    const DType low = a < b ? a : b, high = a < b ? b : a;
    return low == DType::kF16 && high == DType::kBF16 ? DType::kF32 : high;
  }
  const bool a_wider = size_of(a) > size_of(b);
  if (is_unsigned(a) == is_unsigned(b)) return a_wider ? a : b;
  const DType no_sign = is_unsigned(a) ? a : b, sign = is_unsigned(a) ? b : a;
  return size_of(sign) > size_of(no_sign) ? sign : above(no_sign);
}

bool can_cast(DType from, DType to) { return category_of(from) <= category_of(to); }

std::string to_string(Device device) {
  switch (device.kind) {
    case DeviceKind::kCpu:
      return device.index == 0 ? "cpu" : "cpu:" + std::to_string(device.index);
    case DeviceKind::kCuda:
      return "cuda:" + std::to_string(device.index);
    case DeviceKind::kSim:
      return "sim:" + std::to_string(device.index);
    case DeviceKind::kMeta:
      return "meta";
  }
  return "unknown";
}

std::optional<Device> device_from_name(std::string_view name) {
  const std::size_t colon = name.find(':');
  const std::string_view kind = name.substr(0, colon);
  Device device;
  if (kind == "cpu") {
    device.kind = DeviceKind::kCpu;
  } else if (kind == "cuda") {
    device.kind = DeviceKind::kCuda;
  } else if (kind == "sim") {
    device.kind = DeviceKind::kSim;
  } else {
    return std::nullopt;
  }
  if (colon == std::string_view::npos) return device;
  const std::string_view digits = name.substr(colon + 1);
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), device.index);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return device;
}

}  // namespace teletensor::core
