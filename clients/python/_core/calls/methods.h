// Methods of Tensor that are not Python functions.
#pragma once

#include "bindings.h"

namespace teletensor::client {

// Binds _core.method(function), which wraps an operator or a checked function as an attribute of
// Tensor. Like PyTorch's built-in functions, these do not bind to an object by themselves.
void bind_methods(nb::module_& m);

bool is_method(PyObject* object);  // Returns true for an object of _core.method.
// The function that a bound method or an object of _core.method calls; for any other object, the
// object itself. A borrowed reference.
PyObject* function_of(PyObject* callable);

}  // namespace teletensor::client
