#include "engine/core/attributes.h"

#include <cstdio>

namespace teletensor::core {

std::string to_string(const Number& number) {
  switch (number.kind) {
    case Number::Kind::kBool:
      return number.integer ? "True" : "False";
    case Number::Kind::kInt:
      return std::to_string(number.integer);
    case Number::Kind::kUInt:
      return std::to_string(static_cast<std::uint64_t>(number.integer));
    case Number::Kind::kFloat:
    case Number::Kind::kComplex:
      break;
  }
  char text[64];
  std::snprintf(text, sizeof text, "%.17g", number.real);
  if (!number.is_complex()) return text;
  std::snprintf(text, sizeof text, "(%.17g%+.17gj)", number.real, number.imaginary);
  return text;
}

}  // namespace teletensor::core
