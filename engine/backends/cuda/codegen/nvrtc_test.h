// Support for unit tests: compiles kernel texts with NVRTC if its library is found. No device is
// needed.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "engine/backends/cuda/codegen/kernel_source.h"

namespace teletensor::backends::cuda {

class Nvrtc {
 public:
  Nvrtc() {
    for (const char* name :
         {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "/usr/local/cuda/lib64/libnvrtc.so"}) {
      library_ = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (library_ != nullptr) break;
    }
    if (library_ == nullptr) return;
    load(create_, "nvrtcCreateProgram");
    load(compile_, "nvrtcCompileProgram");
    load(log_size_, "nvrtcGetProgramLogSize");
    load(log_, "nvrtcGetProgramLog");
    load(destroy_, "nvrtcDestroyProgram");
  }
  bool found() const { return library_ != nullptr; }

  // Compiles all sources as one program. Returns an empty string if that succeeds and no kernel
  // spills registers, and otherwise what is wrong.
  std::string check(const std::vector<KernelSource>& sources, const std::string& architecture) {
    std::string text(prelude());
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const std::string n = std::to_string(i), &name = sources[i].name;
      text += "\n#define " + name + " " + name + "_" + n + "\nnamespace kernel_" + n + " {\n" +
              sources[i].text + "\n}\n#undef " + name + "\n";
    }
    void* program = nullptr;
    if (create_(&program, text.c_str(), "kernels.cu", 0, nullptr, nullptr) != 0)
      return "no program";
    const std::string target = "--gpu-architecture=" + architecture;
    std::vector<const char*> options(std::begin(kCompileOptions), std::end(kCompileOptions));
    options.push_back(target.c_str());
    options.push_back("--ptxas-options=-v");
    const int failed = compile_(program, static_cast<int>(options.size()), options.data());
    std::size_t size = 0;
    log_size_(program, &size);
    std::string log(size, '\0');
    log_(program, log.data());
    destroy_(&program);
    if (failed != 0) return log.substr(0, 4000);
    return spills(log);
  }

 private:
  template <class F>
  void load(F& function, const char* name) {
    function = reinterpret_cast<F>(::dlsym(library_, name));
  }

  // Parses "ptxas info : Function properties for NAME" followed by "N bytes stack frame, N bytes
  // spill stores...".
  static std::string spills(const std::string& log) {
    std::istringstream lines(log);
    std::string line, name, found;
    while (std::getline(lines, line)) {
      const std::size_t of = line.find("Function properties for ");
      if (of != line.npos) name = line.substr(of + 24);
      const std::size_t stores = line.find(" bytes spill stores");
      if (stores == line.npos) continue;
      const std::size_t from = line.rfind(' ', stores - 1) + 1;
      if (line.substr(from, stores - from) != "0") found += name + ": " + line + "\n";
    }
    return found;
  }

  void* library_ = nullptr;
  int (*create_)(void**, const char*, const char*, int, const char* const*,
                 const char* const*) = nullptr;
  int (*compile_)(void*, int, const char* const*) = nullptr;
  int (*log_size_)(void*, std::size_t*) = nullptr;
  int (*log_)(void*, char*) = nullptr;
  int (*destroy_)(void**) = nullptr;
};

}  // namespace teletensor::backends::cuda
