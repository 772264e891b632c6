// The names that NumPy has for parameters of PyTorch's: calls may use either.
#pragma once

#include <Python.h>

namespace teletensor::client {

// Does the keyword `name` of a call mean the parameter of the other name: axis dim (dims), keepdims
// keepdim, x and x1 and a input, x2 other?
bool stands_for(PyObject* name, PyObject* parameter);

}  // namespace teletensor::client
