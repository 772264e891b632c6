#include "engine/core/attributes.h"

#include <cstdio>

namespace teletensor::core {

std::string to_string(const Number& number) {
  switch (number.kind) {
    case Number::Kind::kBool:
      return number.integer ? "True" : "False";
    case Number::Kind::kInt:
      return std::to_string(number.integer);
    case Number::Kind::kFloat:
      break;
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", number.real);
  return text;
}

}  // namespace teletensor::core
