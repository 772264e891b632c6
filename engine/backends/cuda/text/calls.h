// The parameters of recipes (recipes.h): the host fills them in, the texts read them. Tensors are
// row-major; `n` is the number of tasks.
#pragma once

#include <cstdint>

#include "engine/ops/scalar_steps.h"

namespace teletensor::backends::cuda::calls {

struct PoolAxis {
  std::int64_t in, out, kernel, stride, padding, dilation;
};
// Windows over the last three dimensions; planes are what comes before.
struct PoolCall {
  std::int64_t n;
  const void* x;
  void* y;
  std::int64_t* places;
  PoolAxis axes[3];
  std::int64_t divisor;  // given, or 0
  bool include_padding;
};
struct UnpoolCall {
  std::int64_t n;
  const void* x;
  const std::int64_t* places;
  void* y;
  const int* flag;
  std::int64_t in, out;  // elements of a plane
  bool accumulate;
};

// Parts of gates: in[i] and out[i] have `size` elements a row and part.
struct GateCall {
  std::int64_t n, size;
  const void* in[5];
  void* out[3];
};

// start + i * step; of linspace from both ends.
struct RangeCall {
  std::int64_t n;
  void* y;
  std::int64_t whole_start, whole_step;
  double start, end, step;
};
struct TriangleCall {
  std::int64_t n, rows, columns, diagonal;
  const void* x;
  void* y;
};
struct OneHotCall {
  std::int64_t n, classes;
  const std::int64_t* index;
  std::int64_t* y;
  const int* flag;
};

inline constexpr int kStepTensors = 36;
struct StepTensor {
  const void* in[5];
  void* out[5];
  std::int64_t n, first_block;
};
struct StepCall {
  std::int64_t n;                         // blocks
  const ops::scalar::Step<double>* made;  // null: `step`
  float* found;
  ops::scalar::Step<double> step;
  int count, unused;
  StepTensor tensors[kStepTensors];
};
struct HyperCall {
  std::int64_t n;
  ops::scalar::Step<double>* to;
  const double* tensors;  // those that the mask names
  double numbers[ops::scalar::kMostHypers];
  std::uint32_t mask;
  ops::scalar::Rule rule;
  bool flags[3];
};
struct FoundCall {
  std::int64_t n;
  const float* found;
  void* to;
};

}  // namespace teletensor::backends::cuda::calls
