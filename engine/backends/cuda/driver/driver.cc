#include "engine/backends/cuda/driver/driver.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "engine/backends/cuda/codegen/kernel_source.h"
#include "engine/backends/cuda/driver/shared_library.h"

namespace teletensor::backends::cuda {
namespace {

using core::Code;
using core::Status;

constexpr int kMinDriver = 12040;
constexpr const char* kCompilers[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so",
                                      "/usr/local/cuda/lib64/libnvrtc.so"};

std::string version_text(int major, int minor) {
  return std::to_string(major) + "." + std::to_string(minor);
}

// The highest architecture that the compiler knows and the device can run; 0 if there is none.
int architecture(const Compiler& compiler, int capability) {
  int count = 0;
  if (compiler.nvrtcGetNumSupportedArchs(&count) != 0 || count <= 0) return 0;
  std::vector<int> known(static_cast<std::size_t>(count));
  if (compiler.nvrtcGetSupportedArchs(known.data()) != 0) return 0;
  int best = 0;
  for (const int each : known) best = each <= capability ? std::max(best, each) : best;
  return best;
}

// Asks for machine code if the compiler knows the device, and otherwise for PTX, which the driver
// translates.
std::string architecture_flag(const Compiler& compiler, int capability) {
  const int known = architecture(compiler, capability);
  return std::string("--gpu-architecture=") + (known == capability ? "sm_" : "compute_") +
         std::to_string(known);
}

class OwnedProgram {
 public:
  explicit OwnedProgram(const Compiler& compiler) : compiler_(compiler) {}
  ~OwnedProgram() {
    if (program != nullptr) compiler_.nvrtcDestroyProgram(&program);
  }
  OwnedProgram(const OwnedProgram&) = delete;
  OwnedProgram& operator=(const OwnedProgram&) = delete;

  Program program = nullptr;

 private:
  const Compiler& compiler_;
};

std::string compile_log(const Compiler& compiler, Program program) {
  std::size_t bytes = 0;
  if (compiler.nvrtcGetProgramLogSize(program, &bytes) != 0 || bytes < 2) return "no log";
  std::string log(bytes, '\0');
  if (compiler.nvrtcGetProgramLog(program, log.data()) != 0) return "no log";
  log.resize(std::min<std::size_t>(log.find('\0'), 2000));
  return log;
}

}  // namespace

Status load_driver(const std::string& path, Driver* driver) {
  void* library = nullptr;
  TT_RETURN_IF_ERROR(open_library(path, &library));
#define TT_FIND(member, name, arguments) \
  TT_RETURN_IF_ERROR(find_symbol(library, path, name, &driver->member));
  TT_CUDA_FUNCTIONS(TT_FIND)
  driver->path = path;
  driver->compiles = dlsym(library, "nvrtcVersion") != nullptr;
  if (const int code = driver->cuInit(0); code != kSuccess) {
    const char* name = nullptr;
    driver->cuGetErrorName(code, &name);
    return Status(code == kNoDevice ? Code::kNotFound : Code::kUnavailable,
                  path + ": " + (name == nullptr ? "unknown error" : name) + " (" +
                      std::to_string(code) + ")");
  }
  if (driver->cuDriverGetVersion(&driver->version) != kSuccess) {
    return Status(Code::kUnavailable, path + " does not tell its version");
  }
  return {};
}

Status load_compiler(const std::string& path, Compiler* compiler) {
  void* library = nullptr;
  compiler->path = path;
  if (!path.empty()) {
    TT_RETURN_IF_ERROR(open_library(path, &library));
  } else {
    for (const char* name : kCompilers) {
      if (library != nullptr || !open_library(name, &library).ok()) continue;
      compiler->path = name;
    }
    if (library == nullptr) {
      return Status(Code::kNotFound,
                    "NVRTC, which compiles the kernels, is not installed (libnvrtc.so.12 or .13)");
    }
  }
  const std::string& name = compiler->path;
#define TT_FIND_NVRTC(member, symbol, arguments) \
  TT_RETURN_IF_ERROR(find_symbol(library, name, symbol, &compiler->member));
  TT_NVRTC_FUNCTIONS(TT_FIND_NVRTC)
  if (compiler->nvrtcVersion(&compiler->major, &compiler->minor) != 0) {
    return Status(Code::kUnavailable, compiler->path + " does not tell its version");
  }
  return {};
}

Status check_versions(const Driver& driver, const Compiler& compiler) {
  const int major = driver.version / 1000;
  const std::string has = "the driver " + driver.path + " speaks CUDA " +
                          version_text(major, driver.version % 1000 / 10) + " and the compiler " +
                          compiler.path + " is of CUDA " +
                          version_text(compiler.major, compiler.minor) + ": ";
  if (driver.version < kMinDriver) {
    return Status(Code::kFailedPrecondition, has + "a driver for CUDA 12.4 or later is needed");
  }
  if (compiler.major < 12 || (compiler.major == 12 && compiler.minor < 4)) {
    return Status(Code::kFailedPrecondition, has + "a compiler of CUDA 12.4 or later is needed");
  }
  // Within one major version, older drivers run the code of newer compilers.
  if (compiler.major > major) {
    return Status(Code::kFailedPrecondition,
                  has + "the compiler must not be of a later major version than the driver");
  }
  return {};
}

std::string compile_flags(const Compiler& compiler, int capability) {
  std::string flags = architecture_flag(compiler, capability);
  for (const char* flag : kCompileOptions) flags += std::string(" ") + flag;
  return flags + " nvrtc=" + version_text(compiler.major, compiler.minor);
}

core::Result<std::string> compile(const Compiler& compiler, const std::string& source,
                                  int capability) {
  if (architecture(compiler, capability) == 0) {
    return Status(Code::kUnimplemented, "the compiler " + compiler.path +
                                            " knows no architecture of this device (" +
                                            std::to_string(capability) + ")");
  }
  OwnedProgram owned(compiler);
  if (compiler.nvrtcCreateProgram(&owned.program, source.c_str(), "kernel.cu", 0, nullptr,
                                  nullptr) != 0) {
    return core::internal("NVRTC cannot create a program");
  }
  const std::string target = architecture_flag(compiler, capability);
  std::vector<const char*> flags(std::begin(kCompileOptions), std::end(kCompileOptions));
  flags.push_back(target.c_str());
  if (compiler.nvrtcCompileProgram(owned.program, static_cast<int>(flags.size()), flags.data()) !=
      0) {
    return core::internal("a kernel does not compile: " + compile_log(compiler, owned.program));
  }
  const bool machine = target.find("sm_") != std::string::npos;
  const auto size_of = machine ? compiler.nvrtcGetCUBINSize : compiler.nvrtcGetPTXSize;
  const auto read = machine ? compiler.nvrtcGetCUBIN : compiler.nvrtcGetPTX;
  std::size_t bytes = 0;
  std::string code;
  if (size_of(owned.program, &bytes) == 0 && bytes > 0) code.resize(bytes);
  if (code.empty() || read(owned.program, code.data()) != 0) {
    return core::internal("NVRTC returned no code");
  }
  return code;
}

}  // namespace teletensor::backends::cuda
