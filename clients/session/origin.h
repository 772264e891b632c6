// Origin: the process in which an object was made. In the child of a fork nobody may touch what
// threads and locks have left behind.
#pragma once

#include "engine/core/status.h"

namespace teletensor::client {

class Origin {
 public:
  Origin();
  // This process is the child of a fork, and the object is its parent's.
  bool is_parents() const;
  // FAILED_PRECONDITION if so, with what a person can do.
  core::Status check() const;

 private:
  const unsigned forks_;  // on the way from the first process to this one
};

}  // namespace teletensor::client
