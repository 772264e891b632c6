// Implements queries about Python objects and functions.

#include "capture/objects.h"

#include <algorithm>
#include <cstring>

#include "calls/methods.h"
#include "capture/programs.h"

namespace teletensor::client {

bool is_plain_number(PyObject* object) {
  return PyFloat_CheckExact(object) || PyLong_CheckExact(object) || PyBool_Check(object);
}

bool is_atom(PyObject* object) {
  return object == Py_None || is_plain_number(object) || PyUnicode_CheckExact(object) ||
         PyBytes_CheckExact(object) || PyComplex_CheckExact(object) || PyModule_Check(object) ||
         PyType_Check(object) || PyCFunction_Check(object);
}

bool starts_with(const char* text, const char* with) {
  return text != nullptr && std::strncmp(text, with, std::strlen(with)) == 0;
}

bool is_deque(PyObject* object) {
  return std::strcmp(Py_TYPE(object)->tp_name, "collections.deque") == 0;
}

bool is_container(PyObject* object) {
  return PyList_Check(object) || PyDict_Check(object) || PySet_Check(object) || is_deque(object);
}

std::string_view text_of(PyObject* object) {
  Py_ssize_t size = 0;
  const char* const text = object != nullptr && PyUnicode_Check(object)
                               ? PyUnicode_AsUTF8AndSize(object, &size)
                               : nullptr;
  if (text == nullptr) {
    PyErr_Clear();
    return {};
  }
  return {text, static_cast<std::size_t>(size)};
}

std::string module_of(PyObject* object) {
  const nb::object name = nb::steal(PyObject_GetAttrString(object, "__module__"));
  if (!name.is_valid()) PyErr_Clear();
  return name.is_valid() ? std::string(text_of(name.ptr())) : std::string();
}

bool in_package(const std::string& module) {
  return module == "teletensor" || module.starts_with("teletensor.");
}

Policy policy_of(std::string_view module) {
  const auto in = [&](std::string_view part) {
    return module.starts_with(part) && (module.size() == part.size() || module[part.size()] == '.');
  };
  const auto in_any = [&](std::initializer_list<std::string_view> parts) {
    return std::any_of(parts.begin(), parts.end(), in);
  };
  if (in("torch.optim.lr_scheduler")) return Policy::kPackage;  // It counts its calls.
  if (in_any({"teletensor.jit", "teletensor._script", "teletensor.torch", "torch"})) {
    return Policy::kSkipped;
  }
  if (in_any({"teletensor.nn", "teletensor.optim", "teletensor.distributions", "teletensor.amp",
              "teletensor.utils", "teletensor.autograd", "teletensor.func"})) {
    return Policy::kPackage;
  }
  if (in("teletensor")) return Policy::kPlain;
  static PyObject* const names = PySys_GetObject("stdlib_module_names");
  const std::string top(module.substr(0, module.find('.')));
  const bool known =
      top == "numpy" || (top != "__main__" && names != nullptr &&
                         PySequence_Contains(names, nb::str(top.c_str()).ptr()) == 1);
  return known ? Policy::kLibrary : Policy::kProgram;
}

nb::object members_of(PyObject* container) {
  nb::object list = nb::steal(PySequence_List(container));
  if (!list.is_valid()) throw nb::python_error();
  return list;
}

bool is_checked(PyObject* object) {
  return std::strcmp(Py_TYPE(object)->tp_name, "teletensor._core.Checked") == 0;
}

bool is_python_function(PyObject* object) {
  if (object == nullptr) return false;
  PyObject* const function = function_of(object);
  return is_checked(function) || PyFunction_Check(function);
}

bool runs_python(PyObject* callable) {
  if (is_python_function(callable)) return true;
  PyTypeObject* const type = Py_TYPE(callable);
  static PyObject* const call = PyUnicode_InternFromString("__call__");
  if (type != &PyType_Type && is_python_function(_PyType_Lookup(type, call))) return true;
  if (!PyType_Check(callable)) return false;
  static PyObject* const names[] = {PyUnicode_InternFromString("__init__"),
                                    PyUnicode_InternFromString("__new__")};
  auto* const made = reinterpret_cast<PyTypeObject*>(callable);
  for (PyObject* name : names) {
    PyObject* const found = _PyType_Lookup(made, name);
    if (found != nullptr && Py_TYPE(found) == &PyStaticMethod_Type) return true;
    if (is_python_function(found)) return true;
  }
  return false;
}

bool is_opaque(PyObject* callable) {
  PyObject* const function = function_of(callable);
  if (is_checked(function)) return true;
  if (!PyFunction_Check(function)) return false;
  const std::string module = module_of(function);
  const Policy policy = policy_of(module);
  return in_package(module) ? policy == Policy::kPlain : policy == Policy::kSkipped;
}

bool is_native_iterator(PyObject* object) {
  if (!PyIter_Check(object) || is_container(object)) return false;
  static PyObject* const next = PyUnicode_InternFromString("__next__");
  return !is_python_function(_PyType_Lookup(Py_TYPE(object), next));
}

PyObject* attributes_of(PyObject* object) {
  if (PyModule_Check(object)) return PyModule_GetDict(object);
  PyTypeObject* const type = Py_TYPE(object);
#if PY_VERSION_HEX >= 0x030C0000
  if (type->tp_dictoffset == 0 && !PyType_HasFeature(type, Py_TPFLAGS_MANAGED_DICT)) return nullptr;
#else
  if (type->tp_dictoffset == 0) return nullptr;
#endif
  // Creates the dict of the object if necessary.
  PyObject* const dict = PyObject_GenericGetDict(object, nullptr);
  if (dict == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  Py_DECREF(dict);  // The object still owns the dict.
  return dict;
}

bool any_of(std::string_view text, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), text) != names.end();
}

std::string builtin_name(PyObject* callable) {
  if (PyType_Check(callable)) {
    const char* const name = reinterpret_cast<PyTypeObject*>(callable)->tp_name;
    return std::strchr(name, '.') == nullptr ? std::string("builtins.") + name : name;
  }
  if (!PyCFunction_Check(callable)) return "";
  PyObject* const self = PyCFunction_GET_SELF(callable);
  if (self != nullptr && !PyModule_Check(self)) return "";
  const char* const module = self == nullptr ? "builtins" : PyModule_GetName(self);
  if (module == nullptr) PyErr_Clear();
  return std::string(module == nullptr ? "" : module) + "." +
         reinterpret_cast<PyCFunctionObject*>(callable)->m_ml->ml_name;
}

namespace {

// Returns true for a C slot that is bound to an object, such as x.__add__.
bool is_slot_method(PyObject* object) {
  return std::strcmp(Py_TYPE(object)->tp_name, "method-wrapper") == 0;
}

}  // namespace

std::string method_name(PyObject* callable, PyObject*& self) {
  if (PyCFunction_Check(callable)) {
    PyObject* const bound = PyCFunction_GET_SELF(callable);
    if (bound == nullptr || PyModule_Check(bound)) return {};
    self = bound;
    return reinterpret_cast<PyCFunctionObject*>(callable)->m_ml->ml_name;
  }
  PyTypeObject* const type = Py_TYPE(callable);
  if (type == &PyMethodDescr_Type) {
    return reinterpret_cast<PyMethodDescrObject*>(callable)->d_method->ml_name;
  }
  if (type == &PyWrapperDescr_Type) {
    return reinterpret_cast<PyWrapperDescrObject*>(callable)->d_base->name;
  }
  if (is_slot_method(callable)) {
    const nb::handle wrapper(callable);
    const nb::object bound = nb::getattr(wrapper, "__self__");
    self = bound.ptr();
    return nb::cast<std::string>(nb::getattr(wrapper, "__name__"));
  }
  return {};
}

bool takes_symbols(PyObject* callable, PyObject* self) {
  callable = function_of(callable);
  if (is_op(callable) || runs_python(callable)) return true;
  if (is_slot_method(callable) || Py_TYPE(callable) == &PyWrapperDescr_Type) {
    return true;
  }
  const std::string name = builtin_name(callable);
  if (name.starts_with("_operator.")) return true;
  if (any_of(name,
             {"builtins.min",       "builtins.max",      "builtins.abs",     "builtins.round",
              "builtins.sum",       "math.floor",        "math.ceil",        "math.trunc",
              "builtins.list",      "builtins.tuple",    "builtins.dict",    "builtins.zip",
              "builtins.enumerate", "builtins.reversed", "builtins.iter",    "builtins.map",
              "builtins.filter",    "builtins.slice",    "builtins.setattr", "builtins.getattr",
              "functools.partial"})) {
    return true;
  }
  if (std::strcmp(Py_TYPE(callable)->tp_name, "functools.partial") == 0) {
    const nb::object inner = nb::getattr(nb::handle(callable), "func");
    return takes_symbols(inner.ptr(), nullptr);
  }
  PyObject* bound = self;
  return !method_name(callable, bound).empty() && bound != nullptr &&
         (is_container(bound) || PyTuple_Check(bound));
}

}  // namespace teletensor::client
