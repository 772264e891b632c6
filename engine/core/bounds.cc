#include "engine/core/bounds.h"

#include <cstring>

namespace teletensor::core {
namespace {

template <class T>
Bounds of(DType dtype, std::string_view bytes) {
  if (bytes.size() < sizeof(T)) return {};
  T least = std::numeric_limits<T>::max(), most = std::numeric_limits<T>::min();
  for (std::size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
    T number;  // bytes of a message need not be aligned
    std::memcpy(&number, bytes.data() + at, sizeof number);
    least = std::min(least, number);
    most = std::max(most, number);
  }
  return {dtype, static_cast<std::int64_t>(least), static_cast<std::int64_t>(most)};
}

}  // namespace

Bounds bounds_of(DType dtype, std::string_view bytes) {
  switch (dtype) {
    case DType::kU8:
      return of<std::uint8_t>(dtype, bytes);
    case DType::kI8:
      return of<std::int8_t>(dtype, bytes);
    case DType::kI16:
      return of<std::int16_t>(dtype, bytes);
    case DType::kU16:
      return of<std::uint16_t>(dtype, bytes);
    case DType::kI32:
      return of<std::int32_t>(dtype, bytes);
    case DType::kU32:
      return of<std::uint32_t>(dtype, bytes);
    case DType::kI64:
    case DType::kU64:
      return of<std::int64_t>(dtype, bytes);
    default:
      return {};
  }
}

}  // namespace teletensor::core
