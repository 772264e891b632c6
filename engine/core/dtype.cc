#include "engine/core/dtype.h"

#include <charconv>

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

DType promote(DType a, DType b) {
  if (a == b) return a;
  const DType low = a < b ? a : b, high = a < b ? b : a;
  if (low == DType::kF16 && high == DType::kBF16) return DType::kF32;
  return high;
}

bool can_cast(DType from, DType to) {
  if (is_floating(from)) return is_floating(to);
  if (from != DType::kBool) return to != DType::kBool;
  return true;
}

std::string to_string(Device device) {
  switch (device.kind) {
    case DeviceKind::kCpu:
      return "cpu";
    case DeviceKind::kCuda:
      return "cuda:" + std::to_string(device.index);
    case DeviceKind::kSim:
      return "sim:" + std::to_string(device.index);
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
