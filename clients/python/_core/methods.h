// Methods of Tensor that are no Python functions.
#pragma once

#include "bindings.h"

namespace teletensor::client {

// _core.method(function): what an op or a function with checks is put on Tensor in. Neither binds
// by itself, as PyTorch's built-in functions do not.
void bind_methods(nb::module_& m);

bool is_method(PyObject* object);  // one of _core.method
// What a bound method, or one of _core.method, calls; another object itself (borrowed).
PyObject* function_of(PyObject* callable);

}  // namespace teletensor::client
