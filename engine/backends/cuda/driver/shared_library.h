// Loads optional shared libraries and their functions.
#pragma once

#include <dlfcn.h>

#include <string>

#include "engine/core/status.h"

namespace teletensor::backends::cuda {

// Opens the library and never closes it. Returns NOT_FOUND with the loader's message if that fails.
inline core::Status open_library(const std::string& path, void** library) {
  *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (*library != nullptr) return {};
  const char* why = dlerror();
  return core::Status(core::Code::kNotFound, why == nullptr ? path + ": cannot be loaded" : why);
}

template <class F>
core::Status find_symbol(void* library, const std::string& path, const char* name, F** function) {
  *function = reinterpret_cast<F*>(dlsym(library, name));
  if (*function != nullptr) return {};
  return core::Status(core::Code::kNotFound, path + " has no " + name);
}

}  // namespace teletensor::backends::cuda
