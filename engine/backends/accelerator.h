// Accelerator: a backend with a processor of its own. What is asked of it runs later than the call.
#pragma once

#include <cstdint>
#include <string>

#include "engine/backends/backend.h"

namespace teletensor::backends {

class Accelerator : public Backend {
 public:
  struct Facts {
    std::string model;   // "NVIDIA H100 80GB HBM3"
    int capability = 0;  // 90: 9.0
    int multiprocessors = 0;
    std::uint64_t memory = 0;  // bytes, those of others included
  };
  virtual Facts facts() const = 0;
};

}  // namespace teletensor::backends
