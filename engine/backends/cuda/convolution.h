// Convolution: the description of a convolution for a library such as cuDNN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "engine/core/dtype.h"

namespace teletensor::backends::cuda {

struct DnnPlan;

enum class ConvolutionPass : std::uint8_t { kOutput, kInput, kWeight };  // what is computed

// x [N, C, ...], weight [K, C / groups, ...] and y [N, K, ...] of two or three dimensions in space.
struct Convolution {
  static constexpr int kMaxRank = 5;
  struct Side {
    const void* data = nullptr;
    std::int64_t sizes[kMaxRank] = {}, strides[kMaxRank] = {};
    friend bool operator==(const Side&, const Side&) = default;
  };

  ConvolutionPass pass = ConvolutionPass::kOutput;
  core::DType dtype = core::DType::kF32;
  bool tf32 = false;  // products of f32 by tensor cores, which round them to 10 bits
  int rank = 4;
  Side x, weight, y;           // one of them is the result
  const void* bias = nullptr;  // of y's channels, of the same dtype; kOutput alone
  std::int64_t stride[3] = {}, padding[3] = {}, dilation[3] = {};
  std::shared_ptr<const DnnPlan> plan;  // the library's for all of this but the addresses
  void* workspace = nullptr;            // as much as the plan wants
  friend bool operator==(const Convolution&, const Convolution&) = default;
};

}  // namespace teletensor::backends::cuda
