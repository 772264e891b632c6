#include "engine/backends/cuda/driver/dnn.h"

#include "engine/backends/cuda/driver/shared_library.h"

namespace teletensor::backends::cuda {
namespace {

using core::Code;
using core::Status;

// In another major version the numbers in dnn.h may have other meanings.
constexpr std::size_t kMajor = 9;

Status load(const std::string& path, std::size_t most_cuda, Dnn* dnn) {
  void* library = nullptr;
  TT_RETURN_IF_ERROR(open_library(path, &library));
#define TT_FIND(member, name, arguments) \
  TT_RETURN_IF_ERROR(find_symbol(library, path, name, &dnn->member));
  TT_CUDNN_FUNCTIONS(TT_FIND)
#undef TT_FIND
  std::size_t (*version)() = nullptr;
  std::size_t (*cuda)() = nullptr;
  TT_RETURN_IF_ERROR(find_symbol(library, path, "cudnnGetVersion", &version));
  TT_RETURN_IF_ERROR(find_symbol(library, path, "cudnnGetCudartVersion", &cuda));
  dnn->version = version();
  dnn->path = path;
  if (dnn->version / 10'000 != kMajor) {
    return Status(Code::kNotFound,
                  path + " is of version " + std::to_string(dnn->version) + ", not 9");
  }
  if (cuda() / 1000 <= most_cuda) return {};
  return Status(Code::kNotFound, path + " is made for CUDA " + std::to_string(cuda() / 1000) +
                                     ", the driver for " + std::to_string(most_cuda));
}

}  // namespace

Status load_dnn(const Driver& driver, const std::string& path, Dnn* dnn) {
  const std::size_t major = static_cast<std::size_t>(driver.version) / 1000;
  if (!path.empty()) return load(path, major, dnn);
  Status status;
  for (const char* name : {"libcudnn.so.9", "/usr/local/cuda/lib64/libcudnn.so.9"}) {
    status = load(name, major, dnn);
    if (status.ok()) return status;
  }
  return Status(
      Code::kNotFound,
      "cuDNN is not installed (libcudnn.so.9, made for a CUDA not later than the driver's)");
}

}  // namespace teletensor::backends::cuda
