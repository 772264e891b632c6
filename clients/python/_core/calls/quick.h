// Frequent forms of calls of the package's Python functions, performed without Python code.
#pragma once

#include <Python.h>

#include <cstddef>
#include <string_view>

namespace teletensor::client {

// Performs a call with `count` positional arguments and then the keyword arguments `names` (null,
// or a tuple), like a vectorcall. Returns null without an error, and without side effects, if the
// call has another form: the Python function must then perform it, or raise its error.
using Quick = PyObject* (*)(PyObject* const* args, std::size_t count, PyObject* names);

// The Quick of the Python function with this name. Null if there is none.
Quick quick_of(std::string_view name);

// The functions of quick_of(), by file. x[index] and x[index] = value with integers and slices:
PyObject* quick_getitem(PyObject* const* args, std::size_t count, PyObject* names);
PyObject* quick_setitem(PyObject* const* args, std::size_t count, PyObject* names);
// tensor() of numbers and nested lists, and constructors with sizes:
PyObject* quick_tensor(PyObject* const* args, std::size_t count, PyObject* names);
PyObject* quick_zeros(PyObject* const* args, std::size_t count, PyObject* names);
PyObject* quick_ones(PyObject* const* args, std::size_t count, PyObject* names);
PyObject* quick_full(PyObject* const* args, std::size_t count, PyObject* names);
PyObject* quick_empty(PyObject* const* args, std::size_t count, PyObject* names);

}  // namespace teletensor::client
