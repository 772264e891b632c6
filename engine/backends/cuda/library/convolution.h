// Convolution: the description of a convolution for a library such as cuDNN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "engine/core/dtype.h"

namespace teletensor::backends::cuda {

struct DnnPlan;

// Which of the three tensors is computed.
enum class ConvolutionPass : std::uint8_t { kOutput, kInput, kWeight };

// x [N, C, ...], weight [K, C / groups, ...] and y [N, K, ...] with two or three spatial
// dimensions.
struct Convolution {
  static constexpr int kMaxRank = 5;
  struct Side {
    const void* data = nullptr;
    std::int64_t sizes[kMaxRank] = {}, strides[kMaxRank] = {};
    friend bool operator==(const Side&, const Side&) = default;
  };

  ConvolutionPass pass = ConvolutionPass::kOutput;
  core::DType dtype = core::DType::kF32;
  bool tf32 = false;  // f32: tensor cores may be used, which round factors to 10 bits
  int rank = 4;
  Side x, weight, y;           // one of them is the result, depending on the pass
  const void* bias = nullptr;  // one number per channel of y, of the same dtype; only for kOutput
  std::int64_t stride[3] = {}, padding[3] = {}, dilation[3] = {};
  std::shared_ptr<const DnnPlan> plan;  // the library's plan; it does not depend on the addresses
  void* workspace = nullptr;            // memory of the size that the plan needs
  friend bool operator==(const Convolution&, const Convolution&) = default;
};

}  // namespace teletensor::backends::cuda
