// Calls that fail because of an argument whose class has its own implementation of functions of
// tensors.
#pragma once

#include "bindings.h"

namespace teletensor::client {

// Returns whether the class of the object defines `__torch_function__`. Tensors of PyTorch are left
// out, because their method does not know this package.
bool overrides(PyObject* object);

// Called with an error set, after callable(*args) has failed. If the error is a TypeError or an
// AttributeError, and an argument, or an element of a list or a tuple among the arguments,
// overrides functions, returns what its `__torch_function__` returns for the call
// (teletensor.overrides). Otherwise returns null and leaves the error as it is.
PyObject* overridden(PyObject* callable, PyObject* const* args, size_t flags, PyObject* names);

}  // namespace teletensor::client
