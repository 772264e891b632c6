// Names of types in the texts of kernels.
#pragma once

#include <string>

#include "engine/core/dtype.h"

namespace teletensor::backends::cuda {

std::string type_name_of(core::DType dtype);  // the type of elements in memory
// The type in which elements are computed (cpu/block_io.h), for a `dtype` that is such a type;
// int32 is one too.
std::string compute_name(core::DType dtype);
inline std::string str(std::size_t n) { return std::to_string(n); }

}  // namespace teletensor::backends::cuda
