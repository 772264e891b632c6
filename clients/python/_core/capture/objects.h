// Queries about Python objects and functions for reads.cc. None of them sets a Python error.
#pragma once

#include <string>
#include <string_view>

#include "bindings.h"

namespace teletensor::client {

// How the instructions of a Python module are treated in a capture.
enum class Policy : std::uint8_t {
  kSkipped,  // Among them PyTorch's, whose state `teletensor.torch` compares by itself.
  kPlain,    // Modules of the package in which only Symbols are handled.
  // Modules of the package for modules and optimizers: their reads of the program's objects are
  // recorded.
  kPackage,
  kLibrary,  // Python's own modules and NumPy: their reads of the program's objects are recorded.
  kProgram,  // Modules of the program: all their reads are recorded.
};

bool is_plain_number(PyObject* object);
// Returns true for objects without parts that could be read.
bool is_atom(PyObject* object);
bool starts_with(const char* text, const char* with);
bool is_deque(PyObject* object);
bool is_container(PyObject* object);
std::string_view text_of(PyObject* object);
// The module that defines a type or a function, for example "teletensor.nn._layers.linear". Empty
// if unknown.
std::string module_of(PyObject* object);
bool in_package(const std::string& module);
Policy policy_of(std::string_view module);
// A list of the elements of a container, obtained without calling the program's code.
nb::object members_of(PyObject* container);
// Returns true for a checked function of the package (checked.cc).
bool is_checked(PyObject* object);
bool is_python_function(PyObject* object);
// Returns true if a call runs instructions of the program at once.
bool runs_python(PyObject* callable);
// Returns true for a function of the package or of PyTorch whose instructions are not inspected. It
// may read its arguments.
bool is_opaque(PyObject* callable);
// Returns true for an iterator implemented in C, whose next element cannot be predicted.
bool is_native_iterator(PyObject* object);
// The dict of an object's own attributes (borrowed). Null if there is none.
PyObject* attributes_of(PyObject* object);
bool any_of(std::string_view text, std::initializer_list<std::string_view> names);
// The name of a C function of a module, as "module.name". Empty for any other object.
std::string builtin_name(PyObject* callable);
// The name of a C method, for example "append" for list.append; `self` is the object that it is
// bound to.
std::string method_name(PyObject* callable, PyObject*& self);
// Returns true if numbers that a capture tracks may remain Symbols as operands of this callable.
bool takes_symbols(PyObject* callable, PyObject* self);

}  // namespace teletensor::client
