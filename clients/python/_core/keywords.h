// The names that NumPy has for parameters of PyTorch's: calls may use either.
#pragma once

#include <Python.h>

namespace teletensor::client {

// Is `name`, a keyword of a call, NumPy's name of the parameter? `axis` is `dim` or `dims`, `axes`
// is `dims`, `keepdims` is `keepdim`; `x`, `x1` and `a` are `input`, and `x2` is `other`.
bool stands_for(PyObject* name, PyObject* parameter);

}  // namespace teletensor::client
