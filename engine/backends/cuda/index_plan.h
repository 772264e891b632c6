// The index skeleton: elements picked by index tensors, and the checks that come before a kernel
// which may refuse: a check sets the call's flag, the storing kernel obeys it.
#pragma once

#include <string>
#include <string_view>

#include "engine/backends/cuda/device_table.h"

namespace teletensor::backends::cuda {

inline constexpr int kMaxIndices = 4;

struct CheckGraph {
  core::DType dtype = core::DType::kI64;
  bool zero = false;  // refuses zeros, else what lies outside [least, most]
  bool wide = false;
  std::uint8_t axes = 0;

  std::string key() const;
  static CheckGraph of_key(std::string_view key);
};

struct IndexGraph {
  std::uint8_t bytes = 4;  // of an element
  std::uint8_t indices = 1;
  core::DType dtypes[kMaxIndices] = {};
  bool wide = false;
  std::uint8_t axes = 0;

  std::string key() const;
  static IndexGraph of_key(std::string_view key);
};

KernelSource print_check(const CheckGraph& graph);
KernelSource print_index(const IndexGraph& graph);

// Work::flag, asked for once.
core::Status need_flag(KernelCall& call, Work& work);
// Refuses a value outside [least, most], or with `zero` a zero, of integers; looks only where that
// is not known.
core::Status describe_check(KernelCall& call, const TensorArg& values, bool zero,
                            std::int64_t least, std::int64_t most, Work& work);

}  // namespace teletensor::backends::cuda
