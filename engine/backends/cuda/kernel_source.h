// Kernels of the device as text, and launches of them.
//
// A *key* says everything that a kernel's text depends on: the op graph, dtypes, layout classes;
// never sizes, strides, scalars or addresses, which stand in the launch's parameters. Keys are for
// maps in memory: they hold addresses of this process and mean nothing outside it. The text is what
// a cache on disk goes by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/backends/backend.h"
#include "engine/backends/cuda/convolution.h"
#include "engine/backends/cuda/product.h"

namespace teletensor::backends::cuda {

// One `extern "C" __global__` function `name` that takes one parameter, a struct by value. The text
// has no #include; prelude() comes before it. Compiled by NVRTC with kCompileOptions.
struct KernelSource {
  std::string name;
  std::string text;
};

// The functors, conversions and helpers that the texts use; the same for all of them.
std::string_view prelude();

// Besides --gpu-architecture. Every instruction rounds to its dtype, hence no contraction.
inline constexpr const char* kCompileOptions[] = {"--std=c++20", "--fmad=false",
                                                  "--device-as-default-execution-space"};

inline constexpr std::size_t kMaxParameterBytes = 4096;

struct LaunchShape {
  std::uint32_t grid[3] = {1, 1, 1};
  std::uint32_t block[3] = {1, 1, 1};
  std::uint32_t shared_bytes = 0;  // dynamic shared memory
  friend bool operator==(const LaunchShape&, const LaunchShape&) = default;
};

struct Launch {
  // By a library; then nothing else is here.
  std::optional<Product> product;
  std::optional<Convolution> convolution;
  std::string key;
  LaunchShape shape;
  std::vector<std::byte> params;  // at most kMaxParameterBytes, aligned to 8
};

// The text of a launch's kernel. Precondition: a key that a Launch of this process had.
KernelSource print_kernel(std::string_view key);

class Convolutions;
class Products;

// What an instruction or a loop is on the device: launches, one after the other on one stream. None
// where there is nothing to compute.
struct Work {
  std::vector<Launch> launches;
  // Not null: 4 bytes of scratch that must be zero before the first launch. With `checks` a launch
  // may set them: the instruction refuses (an index out of range, an integer divided by zero);
  // nothing was stored, and the CPU's kernel, called with copies of the operands, has the error's
  // text.
  void* flag = nullptr;
  bool checks = false;
  // What is known of operands where it does not refuse.
  struct Proof {
    core::Bounds* of;
    core::DType dtype;
    std::int64_t least, most;
  };
  std::vector<Proof> proofs;
  // The device's libraries, for whoever describes the work; null: it has none.
  Products* products = nullptr;
  Convolutions* convolutions = nullptr;
};

}  // namespace teletensor::backends::cuda
