// Texts of device kernels, and launches of them.
//
// A *key* contains everything that a kernel's text depends on: the op graph, the dtypes and the
// classes of layouts. It never contains sizes, strides, scalars or addresses; those are parameters
// of the launch. Keys are used in maps in memory only: they contain addresses of this process. The
// cache on disk uses the text instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/backends/backend.h"
#include "engine/backends/cuda/library/convolution.h"
#include "engine/backends/cuda/library/product.h"

namespace teletensor::backends::cuda {

// The source of one `extern "C" __global__` function `name` with one parameter, a struct passed by
// value. The text has no #include; it is compiled after prelude(), by NVRTC with kCompileOptions.
struct KernelSource {
  std::string name;
  std::string text;
};

// The functors, conversions and helpers that all kernels use.
std::string_view prelude();

// Options in addition to --gpu-architecture. Contraction is off because every instruction must
// round to its dtype.
inline constexpr const char* kCompileOptions[] = {"--std=c++20", "--fmad=false",
                                                  "--device-as-default-execution-space"};

inline constexpr std::size_t kMaxParameterBytes = 4096;

struct LaunchShape {
  std::uint32_t grid[3] = {1, 1, 1};
  std::uint32_t block[3] = {1, 1, 1};
  std::uint32_t shared_bytes = 0;  // size of the dynamic shared memory
  friend bool operator==(const LaunchShape&, const LaunchShape&) = default;
};

struct Launch {
  // Set for a call of a library; then the other fields are unused.
  std::optional<Product> product;
  std::optional<Convolution> convolution;
  std::string key;
  LaunchShape shape;
  std::vector<std::byte> params;  // at most kMaxParameterBytes, a multiple of 8
};

// The text of a launch's kernel. Precondition: the key comes from a Launch of this process.
KernelSource print_kernel(std::string_view key);

class Convolutions;
class Products;

// The launches of an instruction or a loop, which run one after another on one stream. The list is
// empty if there is nothing to compute.
struct Work {
  std::vector<Launch> launches;
  // If not null, 4 bytes of scratch memory that must be zero before the first launch. If `checks`
  // is set, a launch may set the flag: then the instruction fails (an index out of range, an
  // integer divided by zero) and nothing was stored. The CPU's kernel, run on copies of the
  // operands, gives the error message.
  void* flag = nullptr;
  bool checks = false;
  // The bounds of an operand that are known if no check fails.
  struct Proof {
    core::Bounds* of;
    core::DType dtype;
    std::int64_t least, most;
  };
  std::vector<Proof> proofs;
  // The device's libraries, for the functions that describe the work; null if the device has none.
  Products* products = nullptr;
  Convolutions* convolutions = nullptr;
};

}  // namespace teletensor::backends::cuda
