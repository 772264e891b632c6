// NumPy's names for parameters of PyTorch's functions; calls may use either name.
#pragma once

#include <Python.h>

namespace teletensor::client {

// Returns true if `name`, a keyword of a call, is NumPy's name of the parameter: `axis` for `dim`
// or `dims`, `axes` for `dims`, `keepdims` for `keepdim`, `x`, `x1` and `a` for `input`, and `x2`
// for `other`.
bool stands_for(PyObject* name, PyObject* parameter);

}  // namespace teletensor::client
