// Disables garbage collection in a scope, because a collection runs finalizers, which are Python
// code and let other threads run.
#pragma once

#include <Python.h>

namespace teletensor::client {

class WithoutCollection {
 public:
  WithoutCollection() : before_(PyGC_Disable()) {}
  ~WithoutCollection() {
    if (before_ != 0) PyGC_Enable();
  }
  WithoutCollection(const WithoutCollection&) = delete;
  WithoutCollection& operator=(const WithoutCollection&) = delete;

 private:
  int before_;
};

}  // namespace teletensor::client
