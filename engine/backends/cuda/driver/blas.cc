#include "engine/backends/cuda/driver/blas.h"

#include "engine/backends/cuda/driver/shared_library.h"

namespace teletensor::backends::cuda {
namespace {

using core::Code;
using core::Status;

constexpr std::size_t kOneMajor = 10'000;

Status load(const std::string& path, std::size_t most_major, Blas* blas) {
  void* library = nullptr;
  TT_RETURN_IF_ERROR(open_library(path, &library));
#define TT_FIND(member, name, arguments) \
  TT_RETURN_IF_ERROR(find_symbol(library, path, name, &blas->member));
  TT_CUBLASLT_FUNCTIONS(TT_FIND)
#undef TT_FIND
  std::size_t (*version)() = nullptr;
  TT_RETURN_IF_ERROR(find_symbol(library, path, "cublasLtGetVersion", &version));
  blas->version = version();
  blas->path = path;
  const std::size_t major = blas->version / kOneMajor;
  if (major >= 12 && major <= most_major) return {};
  return Status(Code::kNotFound, path + " is of version " + std::to_string(major) + ", 12 to " +
                                     std::to_string(most_major) + " fits the driver");
}

}  // namespace

Status load_blas(const Driver& driver, const std::string& path, Blas* blas) {
  const std::size_t major = static_cast<std::size_t>(driver.version) / 1000;
  if (!path.empty()) return load(path, major, blas);
  Status status;
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so",
                           "/usr/local/cuda/lib64/libcublasLt.so"}) {
    status = load(name, major, blas);
    if (status.ok()) return status;
  }
  return Status(Code::kNotFound,
                "cuBLASLt is not installed (libcublasLt.so.12 or .13, not later than the driver)");
}

}  // namespace teletensor::backends::cuda
