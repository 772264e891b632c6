// How kernels' texts name types.
#pragma once

#include <string>

#include "engine/core/dtype.h"

namespace teletensor::backends::cuda {

std::string type_name_of(core::DType dtype);  // of elements in memory
// Of the type that `dtype` is computed in (cpu/block_io.h), for a dtype that is one: int32 too.
std::string compute_name(core::DType dtype);
inline std::string str(std::size_t n) { return std::to_string(n); }

}  // namespace teletensor::backends::cuda
