#include "engine/core/os/unique_fd.h"

#include <unistd.h>

namespace teletensor::core {

UniqueFd::~UniqueFd() {
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace teletensor::core
