// Origin identifies the process in which an object was created. In the child of a fork, the threads
// of the parent do not exist and its locks may be held, so the object must not be used.
#pragma once

#include "engine/core/status.h"

namespace teletensor::client {

class Origin {
 public:
  Origin() : Origin(false) {}
  // An object without threads (`anywhere`) may be used in the child of a fork, too.
  explicit Origin(bool anywhere);
  // Returns true if this process is the child of a fork and the object was created by its parent.
  bool is_parents() const;
  // Returns FAILED_PRECONDITION, with advice for the user, if is_parents() is true.
  core::Status check() const;

 private:
  const bool anywhere_;
  const unsigned forks_;  // Number of forks from the first process to this one.
};

}  // namespace teletensor::client
