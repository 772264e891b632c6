// Python functions that check the types of their arguments before they run, like operator objects:
// an argument that is declared as a Tensor, an int or a bool must be one, or the call raises
// TypeError with the names of the function and the argument.

#include <Python.h>
// This header requires Python.h to be included first.
#include <structmember.h>

#include <array>
#include <string_view>

#include "calls/checked.h"
#include "calls/described.h"
#include "calls/keywords.h"
#include "calls/overrides.h"
#include "calls/quick.h"

namespace teletensor::client {
namespace {

enum class Kind : char {
  kAny = ' ',
  kTensor = 't',
  kOptionalTensor = 'T',
  kInt = 'i',
  kBool = 'b'
};

struct Argument {
  PyObject* name;  // An interned string.
  Kind kind;
};

struct CheckedObject {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* weak;
  PyObject* function;
  PyObject* home;                    // Name of the module that exports the function.
  std::string* called;               // Name of the function.
  std::vector<Argument>* arguments;  // The parameters of the function, positional ones first.
  std::size_t positional;
  Quick quick;  // Performs frequent forms of calls. Null if there is none.
};

CheckedObject* checked_of(PyObject* self) { return reinterpret_cast<CheckedObject*>(self); }

// The type that an argument must have if `given` does not have it. Null if the type is right.
const char* missing(Kind kind, PyObject* given) {
  switch (kind) {
    case Kind::kTensor:
      return is_tensor(given) ? nullptr : "Tensor";
    case Kind::kOptionalTensor:
      return is_tensor(given) || given == Py_None ? nullptr : "Tensor";
    case Kind::kInt: {
      core::Number number;  // A number that a capture tracks has __index__ even if it is a float.
      if (PyLong_Check(given) || is_tensor(given) || !symbol_of(given, number)) {
        return PyIndex_Check(given) ? nullptr : "int";
      }
      return number.kind == core::Number::Kind::kInt ? nullptr : "int";
    }
    case Kind::kBool:
      return PyUnicode_Check(given) || PyList_Check(given) || PyTuple_Check(given) ? "bool"
                                                                                   : nullptr;
    case Kind::kAny:
      break;
  }
  return nullptr;
}

// `position` counts from 1. 0 if the argument was given by name.
bool look_at(const CheckedObject& self, const Argument& argument, PyObject* given,
             std::size_t position) {
  const char* const wants = missing(argument.kind, given);
  if (wants == nullptr) return true;
  PyObject* called = PyObject_GetAttrString(self.function, "__name__");
  if (called == nullptr) return false;
  const std::string place = position ? " (position " + std::to_string(position) + ")" : "";
  core::Number number;
  const bool tracked = argument.kind == Kind::kInt && symbol_of(given, number);
  PyErr_Format(PyExc_TypeError, "%U(): argument '%U'%s must be %s, not %s", called, argument.name,
               place.c_str(), wants, tracked ? "float" : described(given).c_str());
  Py_DECREF(called);
  return false;
}

// A copy of the tuple of names, with `name` at index `at`. Null with an error set on failure.
PyObject* with_name(PyObject* names, Py_ssize_t at, PyObject* name) {
  const Py_ssize_t count = PyTuple_GET_SIZE(names);
  PyObject* made = PyTuple_New(count);
  if (made == nullptr) return nullptr;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyTuple_SET_ITEM(made, i, Py_NewRef(i == at ? name : PyTuple_GET_ITEM(names, i)));
  }
  return made;
}

// Returns true, with an error set, if the keywords of a call name this parameter a second time.
// Also returns true for another error.
bool given_twice(const CheckedObject& self, PyObject* names, PyObject* parameter) {
  const int found = PySequence_Contains(names, parameter);
  if (found <= 0) return found < 0;
  PyObject* called = PyObject_GetAttrString(self.function, "__name__");
  if (called == nullptr) return true;
  PyErr_Format(PyExc_TypeError, "%U() got multiple values for argument '%U'", called, parameter);
  Py_DECREF(called);
  return true;
}

PyObject* call_checked(PyObject* callable, PyObject* const* args, size_t flags, PyObject* names) {
  const CheckedObject& self = *checked_of(callable);
  const auto given = static_cast<std::size_t>(PyVectorcall_NARGS(flags));
  if (self.quick != nullptr) {
    PyObject* done = self.quick(args, given, names);
    if (done != nullptr || PyErr_Occurred()) return done;
  }
  const std::vector<Argument>& arguments = *self.arguments;
  for (std::size_t i = 0; i < std::min(given, self.positional); ++i) {
    if (!look_at(self, arguments[i], args[i], i + 1)) return nullptr;
  }
  const Py_ssize_t keywords = names ? PyTuple_GET_SIZE(names) : 0;
  nb::object renamed;
  for (Py_ssize_t k = 0; k < keywords; ++k) {
    PyObject* name = PyTuple_GET_ITEM(names, k);
    auto found = std::ranges::find_if(arguments, [name](const Argument& argument) {
      return argument.name == name || PyUnicode_Compare(argument.name, name) == 0;
    });
    if (found == arguments.end()) {
      found = std::ranges::find_if(arguments, [&](const Argument& argument) {
        return stands_for(*self.called, name, argument.name);
      });
      if (found == arguments.end()) continue;
      PyObject* const before = renamed ? renamed.ptr() : names;
      if (given_twice(self, before, found->name)) return nullptr;
      renamed = nb::steal(with_name(before, k, found->name));
      if (!renamed) return nullptr;
    }
    if (!look_at(self, *found, args[given + static_cast<std::size_t>(k)], 0)) return nullptr;
  }
  return PyObject_Vectorcall(self.function, args, flags, renamed ? renamed.ptr() : names);
}

PyObject* checked_call(PyObject* callable, PyObject* const* args, size_t flags, PyObject* names) {
  PyObject* const done = call_checked(callable, args, flags, names);
  return done != nullptr ? done : overridden(callable, args, flags, names);
}

// All attributes except a few are those of the function: its name, code, documentation and marks.
PyObject* checked_getattr(PyObject* self, PyObject* name) {
  static constexpr std::array<std::string_view, 3> kOwn = {"__reduce__", "__reduce_ex__",
                                                           "__call__"};
  const char* const text = PyUnicode_AsUTF8(name);
  if (text == nullptr) return nullptr;
  const std::string_view wanted(text);
  PyObject* const function = checked_of(self)->function;
  if (std::ranges::find(kOwn, wanted) != kOwn.end()) return PyObject_GenericGetAttr(self, name);
  if (wanted == "__wrapped__") return Py_NewRef(function);
  if (wanted == "__module__") return Py_NewRef(checked_of(self)->home);
  if (wanted == "__qualname__") return PyObject_GetAttrString(function, "__name__");
  return PyObject_GetAttr(function, name);
}
int checked_setattr(PyObject* self, PyObject* name, PyObject* value) {
  return PyObject_SetAttr(checked_of(self)->function, name, value);
}
PyObject* checked_repr(PyObject* self) { return PyObject_Repr(checked_of(self)->function); }

// Copies and pickles are references to the function, which is found in the module that exports it.
PyObject* checked_reduce(PyObject* self, PyObject*) {
  PyObject* module = PyImport_ImportModule("teletensor._calls.checked");
  if (module == nullptr) return nullptr;
  PyObject* find = PyObject_GetAttrString(module, "named");
  Py_DECREF(module);
  if (find == nullptr) return nullptr;
  PyObject* name = PyObject_GetAttrString(checked_of(self)->function, "__name__");
  return name ? Py_BuildValue("N(ON)", find, checked_of(self)->home, name) : nullptr;
}
PyMethodDef checked_methods[] = {{"__reduce__", checked_reduce, METH_NOARGS, nullptr},
                                 {nullptr, nullptr, 0, nullptr}};

PyTypeObject* checked_type() {
  static PyMemberDef members[] = {
      {"__vectorcalloffset__", T_PYSSIZET, offsetof(CheckedObject, vectorcall), READONLY, nullptr},
      {"__weaklistoffset__", T_PYSSIZET, offsetof(CheckedObject, weak), READONLY, nullptr},
      {nullptr, 0, 0, 0, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                {Py_tp_getattro, reinterpret_cast<void*>(checked_getattr)},
                                {Py_tp_setattro, reinterpret_cast<void*>(checked_setattr)},
                                {Py_tp_repr, reinterpret_cast<void*>(checked_repr)},
                                {Py_tp_methods, checked_methods},
                                {Py_tp_members, members},
                                {0, nullptr}};
  static PyType_Spec spec = {"teletensor._core.Checked", sizeof(CheckedObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL |
                                 Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                             slots};
  static auto* type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return type;
}

// The returned object lives as long as the process.
nb::object make_checked(nb::object function, nb::str home, const std::vector<std::string>& names,
                        const std::string& kinds, std::size_t positional, bool quick) {
  auto* checked = PyObject_New(CheckedObject, checked_type());
  checked->vectorcall = checked_call;
  checked->weak = nullptr;
  checked->function = function.release().ptr();
  checked->home = home.release().ptr();
  checked->called =
      new std::string(nb::cast<std::string>(nb::getattr(checked->function, "__name__")));
  checked->arguments = new std::vector<Argument>();
  for (std::size_t i = 0; i < names.size(); ++i) {
    checked->arguments->push_back(
        {PyUnicode_InternFromString(names[i].c_str()), static_cast<Kind>(kinds.at(i))});
  }
  checked->positional = positional;
  checked->quick = nullptr;
  if (quick) checked->quick = quick_of(*checked->called);
  return nb::steal(reinterpret_cast<PyObject*>(checked));
}

}  // namespace

void bind_checked(nb::module_& m) { m.def("checked", &make_checked); }

}  // namespace teletensor::client
