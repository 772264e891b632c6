#include "calls/methods.h"

#include <Python.h>
// This header requires Python.h to be included first.
#include <structmember.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "calls/quick.h"

namespace teletensor::client {
namespace {

struct MethodObject {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* function;
  vectorcallfunc call;  // The function's own vectorcall.
  Quick quick;          // Performs frequent forms of calls. Null if there is none.
};

MethodObject* method_of(PyObject* self) { return reinterpret_cast<MethodObject*>(self); }

PyObject* method_call(PyObject* self, PyObject* const* args, size_t flags, PyObject* names) {
  const MethodObject& method = *method_of(self);
  if (method.quick != nullptr) {
    const auto count = static_cast<std::size_t>(PyVectorcall_NARGS(flags));
    PyObject* done = method.quick(args, count, names);
    if (done != nullptr || PyErr_Occurred()) return done;
  }
  return method.call(method.function, args, flags, names);
}

PyObject* method_bind(PyObject* self, PyObject* instance, PyObject*) {
  if (instance == nullptr || instance == Py_None) return Py_NewRef(self);
  return PyMethod_New(method_of(self)->function, instance);
}

// All attributes except a few are those of the function: its name, code and documentation.
PyObject* method_getattr(PyObject* self, PyObject* name) {
  static constexpr std::array<std::string_view, 5> kOwn = {"__func__", "__get__", "__call__",
                                                           "__reduce__", "__reduce_ex__"};
  const char* const text = PyUnicode_AsUTF8(name);
  if (text == nullptr) return nullptr;
  if (std::ranges::find(kOwn, text) != kOwn.end()) return PyObject_GenericGetAttr(self, name);
  return PyObject_GetAttr(method_of(self)->function, name);
}

PyObject* method_repr(PyObject* self) {
  PyObject* name = PyObject_GetAttrString(method_of(self)->function, "__name__");
  if (name == nullptr) return nullptr;
  return PyUnicode_FromFormat("<method '%U' of 'teletensor.Tensor' objects>",
                              nb::steal(name).ptr());
}

// Copies and pickles are references to the method, which is found by its name.
PyObject* method_reduce(PyObject* self, PyObject*) {
  PyObject* name = PyObject_GetAttrString(method_of(self)->function, "__name__");
  if (name == nullptr) return nullptr;
  PyObject* find = PyObject_GetAttrString(nb::module_::import_("builtins").ptr(), "getattr");
  if (find == nullptr) {
    Py_DECREF(name);
    return nullptr;
  }
  return Py_BuildValue("N(ON)", find, tensor_type, name);
}

PyTypeObject* method_type() {
  static PyMethodDef methods[] = {{"__reduce__", method_reduce, METH_NOARGS, nullptr},
                                  {nullptr, nullptr, 0, nullptr}};
  static PyMemberDef members[] = {
      {"__vectorcalloffset__", T_PYSSIZET, offsetof(MethodObject, vectorcall), READONLY, nullptr},
      {"__func__", T_OBJECT, offsetof(MethodObject, function), READONLY, nullptr},
      {nullptr, 0, 0, 0, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                {Py_tp_descr_get, reinterpret_cast<void*>(method_bind)},
                                {Py_tp_getattro, reinterpret_cast<void*>(method_getattr)},
                                {Py_tp_repr, reinterpret_cast<void*>(method_repr)},
                                {Py_tp_methods, methods},
                                {Py_tp_members, members},
                                {0, nullptr}};
  static PyType_Spec spec = {"teletensor._core.Method", sizeof(MethodObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL |
                                 Py_TPFLAGS_METHOD_DESCRIPTOR | Py_TPFLAGS_IMMUTABLETYPE |
                                 Py_TPFLAGS_DISALLOW_INSTANTIATION,
                             slots};
  static auto* type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return type;
}

// The returned object lives as long as the process.
nb::object make_method(nb::object function, const std::string& quick) {
  const vectorcallfunc call = PyVectorcall_Function(function.ptr());
  if (call == nullptr) throw nb::type_error("method: expected a function");
  auto* method = PyObject_New(MethodObject, method_type());
  method->vectorcall = method_call;
  method->function = function.release().ptr();
  method->call = call;
  method->quick = quick_of(quick);
  return nb::steal(reinterpret_cast<PyObject*>(method));
}

}  // namespace

bool is_method(PyObject* object) { return Py_TYPE(object) == method_type(); }

PyObject* function_of(PyObject* callable) {
  while (true) {
    if (is_method(callable)) {
      callable = method_of(callable)->function;
    } else if (PyMethod_Check(callable)) {
      callable = PyMethod_GET_FUNCTION(callable);
    } else {
      return callable;
    }
  }
}

void bind_methods(nb::module_& m) {
  m.def("method", &make_method, nb::arg("function"), nb::arg("quick") = "",
        "A function as a method of Tensor: it binds to the tensor that it is looked up on. `quick` "
        "names the native code that performs its frequent calls.");
}

}  // namespace teletensor::client
