#include "calls/overrides.h"

#include "calls/described.h"
#include "gil.h"

namespace teletensor::client {
namespace {

// Appends `object`, or those of its elements, that override functions.
void append_overriding(PyObject* object, nb::list& found) {
  if (overrides(object)) {
    found.append(nb::handle(object));
  } else if (PyList_Check(object) || PyTuple_Check(object)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
      PyObject* const element = PySequence_Fast_GET_ITEM(object, i);
      if (overrides(element)) found.append(nb::handle(element));
    }
  }
}

}  // namespace

bool overrides(PyObject* object) {
  if (is_tensor(object) || is_torch_tensor(object)) return false;
  return PyObject_HasAttrString(reinterpret_cast<PyObject*>(Py_TYPE(object)),
                                "__torch_function__") == 1;
}

PyObject* overridden(PyObject* callable, PyObject* const* args, size_t flags, PyObject* names) {
  if (!PyErr_ExceptionMatches(PyExc_TypeError) && !PyErr_ExceptionMatches(PyExc_AttributeError)) {
    return nullptr;
  }
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  nb::list found;
  const Py_ssize_t given = PyVectorcall_NARGS(flags);
  const Py_ssize_t count = given + (names ? PyTuple_GET_SIZE(names) : 0);
  for (Py_ssize_t i = 0; i < count; ++i) append_overriding(args[i], found);
  if (nb::len(found) == 0) {
    PyErr_Restore(type, value, trace);
    return nullptr;
  }
  Py_DECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(trace);
  return wait_for_process_end([&]() -> PyObject* {
    PyObject* const module = PyImport_ImportModule("teletensor.overrides");
    if (module == nullptr) return nullptr;
    PyObject* const handle = PyObject_GetAttrString(module, "handle_torch_function");
    Py_DECREF(module);
    if (handle == nullptr) return nullptr;
    std::vector<PyObject*> all{callable, found.ptr()};
    all.insert(all.end(), args, args + count);
    PyObject* const done =
        PyObject_Vectorcall(handle, all.data(), static_cast<size_t>(given) + 2, names);
    Py_DECREF(handle);
    return done;
  });
}

}  // namespace teletensor::client
