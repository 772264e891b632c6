// The index skeleton: kernels that pick elements by index tensors, and kernels that check data
// first. A check sets the call's flag if it fails, and the storing kernel does nothing if the flag
// is set.
#pragma once

#include <string>
#include <string_view>

#include "engine/backends/cuda/device_table.h"

namespace teletensor::backends::cuda {

inline constexpr int kMaxIndices = 4;

struct CheckGraph {
  core::DType dtype = core::DType::kI64;
  bool zero = false;  // true: refuses zeros; false: refuses values outside of [least, most]
  bool wide = false;
  std::uint8_t axes = 0;

  std::string key() const;
  static CheckGraph of_key(std::string_view key);
};

struct IndexGraph {
  std::uint8_t bytes = 4;  // size of an element
  std::uint8_t indices = 1;
  core::DType dtypes[kMaxIndices] = {};
  bool wide = false;
  std::uint8_t axes = 0;

  std::string key() const;
  static IndexGraph of_key(std::string_view key);
};

KernelSource print_check(const CheckGraph& graph);
KernelSource print_index(const IndexGraph& graph);

// Allocates Work::flag on the first call.
core::Status need_flag(KernelCall& call, Work& work);
// Adds a check that refuses integers outside of [least, most], or with `zero` integers equal to
// zero. Adds nothing if the known bounds already prove it.
core::Status describe_check(KernelCall& call, const TensorArg& values, bool zero,
                            std::int64_t least, std::int64_t most, Work& work);

}  // namespace teletensor::backends::cuda
