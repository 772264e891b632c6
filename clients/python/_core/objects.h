// Questions about Python objects and functions that reads.cc asks. None sets a Python error.
#pragma once

#include <string>
#include <string_view>

#include "bindings.h"

namespace teletensor::client {

// What the instructions of a Python module are.
enum class Policy : std::uint8_t {
  kSkipped,
  kPlain,    // of the package: only Symbols are looked at
  kPackage,  // of modules and optimizers: what they read of the program's objects is noted
  kLibrary,  // of Python's own and NumPy's: the same
  kProgram,  // all that they read is noted
};

bool is_plain_number(PyObject* object);
// Objects without parts that could be read.
bool is_atom(PyObject* object);
bool starts_with(const char* text, const char* with);
bool is_deque(PyObject* object);
bool is_container(PyObject* object);
std::string_view text_of(PyObject* object);
// "teletensor.nn.linear", of the module that made a type or a function; "" where it is not known.
std::string module_of(PyObject* object);
bool in_package(const std::string& module);
Policy policy_of(std::string_view module);
// A list of what iterating gives, without calls of the program's code.
nb::object members_of(PyObject* container);
// A function of the package with checks around it (checked.cc).
bool is_checked(PyObject* object);
bool is_python_function(PyObject* object);
// Does a call of it run the program's own instructions at once?
bool runs_python(PyObject* callable);
// Is it a function of the package whose instructions are not looked at? What it is given, it may
// read.
bool is_opaque(PyObject* callable);
// An iterator of C: what it gives next, nothing tells.
bool is_native_iterator(PyObject* object);
// The dict of an object's own attributes (borrowed), or nullptr.
PyObject* attributes_of(PyObject* object);
bool any_of(std::string_view text, std::initializer_list<std::string_view> names);
// A function of a module in C: "module.name"; "" for another.
std::string builtin_name(PyObject* callable);
// The name of a method in C: "append" of list.append, and the object that it is bound to.
std::string method_name(PyObject* callable, PyObject*& self);
// Do its operands stay numbers that a capture follows?
bool takes_symbols(PyObject* callable, PyObject* self);

}  // namespace teletensor::client
