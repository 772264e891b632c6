#include "calls/described.h"

#include <cstring>

namespace teletensor::client {
namespace {

// Whether a type or one of its bases has this name in this module.
bool derives_from(PyTypeObject* type, const char* module, const char* name) {
  PyObject* const bases = type->tp_mro;
  if (bases == nullptr) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(bases); ++i) {
    auto* const base = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(bases, i));
    if (std::strcmp(base->tp_name, name) != 0) continue;
    // The name of a class that Python code defines does not contain its module.
    PyObject* const home =
        base->tp_dict == nullptr ? nullptr : PyDict_GetItemString(base->tp_dict, "__module__");
    if (home != nullptr && PyUnicode_Check(home) &&
        PyUnicode_CompareWithASCIIString(home, module) == 0) {
      return true;
    }
  }
  return false;
}

std::string converted(const char* type, const char* function) {
  return std::string(type) + "; tt." + function + "(x) makes a teletensor.Tensor of it";
}

}  // namespace

bool is_torch_tensor(PyObject* object) { return derives_from(Py_TYPE(object), "torch", "Tensor"); }

std::string described(PyObject* object) {
  const char* const name = Py_TYPE(object)->tp_name;
  if (is_torch_tensor(object)) {
    const bool parameter = derives_from(Py_TYPE(object), "torch.nn.parameter", "Parameter");
    return converted(parameter ? "torch.nn.Parameter" : "torch.Tensor", "from_torch");
  }
  if (std::strcmp(name, "numpy.ndarray") == 0) return converted(name, "from_numpy");
  return name;
}

void bind_described(nb::module_& m) {
  m.def(
      "is_torch_tensor", [](nb::handle object) { return is_torch_tensor(object.ptr()); },
      "Whether the object is a tensor of PyTorch.");
  m.def(
      "described", [](nb::handle object) { return described(object.ptr()); },
      "The name of an object's type in a message; tensors of other packages with their package and "
      "the function that converts them.");
}

}  // namespace teletensor::client
