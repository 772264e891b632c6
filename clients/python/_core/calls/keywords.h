// Further names of parameters, which calls may use: NumPy's, and PyTorch's where ours differ.
#pragma once

#include <Python.h>

#include <string_view>

namespace teletensor::client {

// Returns true if `name`, a keyword of a call of `function`, is a further name of the parameter,
// such as `axis` for `dim`, `keepdims` for `keepdim`, `x1` for `input` and `mat2` for mm's `y`.
bool stands_for(std::string_view function, PyObject* name, PyObject* parameter);

// Returns true if `name` is PyTorch's or NumPy's name of the first parameter of an operator.
bool names_input(PyObject* name);

}  // namespace teletensor::client
