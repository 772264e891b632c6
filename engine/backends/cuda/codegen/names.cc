#include "engine/backends/cuda/codegen/names.h"

namespace teletensor::backends::cuda {

using core::DType;

std::string type_name_of(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return "tt::Bool";
    case DType::kU8:
      return "std::uint8_t";
    case DType::kI8:
      return "std::int8_t";
    case DType::kI16:
      return "std::int16_t";
    case DType::kI32:
      return "std::int32_t";
    case DType::kI64:
      return "std::int64_t";
    case DType::kF16:
      return "tt::Half";
    case DType::kBF16:
      return "tt::BFloat16";
    case DType::kF32:
      return "float";
    case DType::kF64:
      return "double";
    case DType::kC64:
      return "tt::Complex64";
    case DType::kC128:
      return "tt::Complex128";
    case DType::kU16:
      return "std::uint16_t";
    case DType::kU32:
      return "std::uint32_t";
    case DType::kU64:
      return "std::uint64_t";
  }
  return "void";
}

std::string compute_name(DType dtype) { return type_name_of(dtype); }

}  // namespace teletensor::backends::cuda
