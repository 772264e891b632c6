// Part of _bridge.cpp, which is one translation unit: the state on which a captured step depends
// beside its arguments. That is PyTorch's modes, the tensors, children and hooks of modules,
// the numbers, state and hooks of optimizers, and the hooks of leaves.
#pragma once

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstring>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "_bridge_rows.hpp"

namespace {

template <class Number>
void append(std::string& bytes, Number number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}
PyObject* bytes_of(const std::string& bytes) {
  return PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size()));
}
std::string_view view_of(PyObject* bytes) {
  return {PyBytes_AS_STRING(bytes), static_cast<std::size_t>(PyBytes_GET_SIZE(bytes))};
}

// A counted reference. Raises the Python error where there is none.
class Ref {
 public:
  explicit Ref(PyObject* object) : object_(object) {
    if (object == nullptr) throw python_error();
  }
  Ref(const Ref&) = delete;
  ~Ref() { Py_DECREF(object_); }
  PyObject* get() const { return object_; }

 private:
  PyObject* const object_;
};

// Whether the objects are the same constant. Numbers are compared by their bits: 0.0 is not -0.0.
bool same_constant(PyObject* a, PyObject* b) {
  if (a == b) return true;
  if (Py_TYPE(a) != Py_TYPE(b)) return false;
  if (PyFloat_CheckExact(a)) {
    const double left = PyFloat_AS_DOUBLE(a), right = PyFloat_AS_DOUBLE(b);
    return std::memcmp(&left, &right, sizeof left) == 0;
  }
  if (PyComplex_CheckExact(a)) {
    const Py_complex left = PyComplex_AsCComplex(a), right = PyComplex_AsCComplex(b);
    return std::memcmp(&left, &right, sizeof left) == 0;
  }
  const int equal = PyObject_RichCompareBool(a, b, Py_EQ);
  if (equal < 0) PyErr_Clear();
  return equal == 1;
}

// Modes of this thread on which operators depend, as bytes that compare.
std::string modes() {
  std::string bytes;
  append(bytes, c10::GradMode::is_enabled());
  append(bytes, c10::InferenceMode::is_enabled());
  append(bytes, at::autocast::is_autocast_enabled(kType));
  append(bytes, at::autocast::get_autocast_dtype(kType));
  append(bytes, c10::get_default_dtype_as_scalartype());
  const auto functions = at::impl::PythonTorchFunctionTLS::stack_len();
  for (std::int64_t i = 0; i < functions; ++i) {
    const auto& mode = at::impl::PythonTorchFunctionTLS::get_stack_at(i);
    append(bytes, mode->ptr(getPyInterpreter()));
  }
  return bytes;
}
PyObject* python_modes(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  return bytes_of(modes());
  END_HANDLE_TH_ERRORS
}

// Gives `take` numbers until it returns false: the storage of a tensor, whether it requires a
// gradient, and what it shows of the storage. Returns whether `take` took all of them.
template <class Take>
bool each_fact(const at::Tensor& tensor, const Take& take) {
  const bool dense = tensor.has_storage();
  const void* const storage = dense ? tensor.storage().unsafeGetStorageImpl() : nullptr;
  if (!take(reinterpret_cast<std::uintptr_t>(storage) + tensor.requires_grad()) ||
      !take(tensor.scalar_type()) || !take(tensor.dim())) {
    return false;
  }
  if (!dense) return true;
  if (!take(tensor.storage_offset())) return false;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (!take(tensor.size(i)) || !take(tensor.stride(i))) return false;
  }
  return true;
}

// The attributes with these names, as interned strings.
std::vector<PyObject*> interned(std::initializer_list<const char*> names) {
  std::vector<PyObject*> strings;
  for (const char* name : names) strings.push_back(PyUnicode_InternFromString(name));
  return strings;
}

// PyTorch's dictionaries of hooks that run for all modules, or for all optimizers.
std::vector<PyObject*> global_hooks() {
  std::vector<PyObject*> found;
  const auto add = [&found](const char* module_name, std::initializer_list<const char*> names) {
    const Ref module(PyImport_ImportModule(module_name));
    for (const char* name : names) {
      PyObject* const hooks = PyObject_GetAttrString(module.get(), name);
      if (hooks == nullptr) throw python_error();
      found.push_back(hooks);
    }
  };
  add("torch.nn.modules.module", {"_global_forward_pre_hooks", "_global_forward_hooks",
                                  "_global_backward_pre_hooks", "_global_backward_hooks"});
  add("torch.optim.optimizer", {"_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"});
  return found;
}

// Reads the state of modules, optimizers and leaves for a visitor. Its functions tensor(), value()
// and end(), which gets the size of a container, return false to stop.
template <class Visitor>
class StateWalk {
 public:
  explicit StateWalk(Visitor& visitor) : visitor_(visitor) {}

  bool run(PyObject* modules, PyObject* optimizers, PyObject* leaves) {
    static const std::vector<PyObject*> of_module =
        interned({"_parameters", "_buffers", "_modules"});
    static const std::vector<PyObject*> own_of_module =
        interned({"forward", "_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks",
                  "_backward_hooks"});
    static const std::vector<PyObject*> of_optimizer = interned({"state", "param_groups"});
    static const std::vector<PyObject*> own_of_optimizer =
        interned({"step", "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"});
    static const std::vector<PyObject*> of_all = global_hooks();
    for (PyObject* hooks : of_all) {
      if (!of(hooks)) return false;
    }
    return of_objects(modules, of_module, own_of_module) &&
           of_objects(optimizers, of_optimizer, own_of_optimizer) && of_leaves(leaves);
  }

 private:
  // The attributes `names` of each object, and those of `own` that the object itself has. A class
  // has methods of the latter names; an object has them if a program replaced a method or added a
  // hook. None stands for an attribute that the object does not have.
  bool of_objects(PyObject* objects, const std::vector<PyObject*>& names,
                  const std::vector<PyObject*>& own) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(objects); ++i) {
      PyObject* const object = PyList_GET_ITEM(objects, i);
      for (PyObject* name : names) {
        const Ref value(PyObject_GetAttr(object, name));
        if (!of(value.get())) return false;
      }
      const Ref attributes(PyObject_GenericGetDict(object, nullptr));
      for (PyObject* name : own) {
        PyObject* const value = PyDict_GetItemWithError(attributes.get(), name);
        if (value == nullptr && PyErr_Occurred()) throw python_error();
        if (!of(value == nullptr ? Py_None : value)) return false;
      }
    }
    return visitor_.end(PyList_GET_SIZE(objects));
  }
  bool of_leaves(PyObject* leaves) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(leaves); ++i) {
      const auto* const leaf = reinterpret_cast<THPVariable*>(PyList_GET_ITEM(leaves, i));
      if (!of(PyList_GET_ITEM(leaves, i))) return false;
      for (PyObject* hooks : {leaf->backward_hooks, leaf->post_accumulate_grad_hooks}) {
        if (!of(hooks == nullptr ? Py_None : hooks)) return false;
      }
    }
    return visitor_.end(PyList_GET_SIZE(leaves));
  }
  bool of(PyObject* value) {
    if (THPVariable_Check(value)) return visitor_.tensor(THPVariable_Unpack(value));
    if (PyDict_Check(value)) return of_dict(value);
    if (PyList_Check(value)) {
      for (Py_ssize_t i = 0; i < PyList_GET_SIZE(value); ++i) {
        if (!of(PyList_GET_ITEM(value, i))) return false;
      }
      return visitor_.end(PyList_GET_SIZE(value));
    }
    if (PyTuple_Check(value)) {
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i) {
        if (!of(PyTuple_GET_ITEM(value, i))) return false;
      }
      return visitor_.end(PyTuple_GET_SIZE(value));
    }
    return visitor_.value(value);
  }
  bool of_dict(PyObject* dict) {
    PyObject *key = nullptr, *value = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &value) != 0;) {
      if (!of(value)) return false;
    }
    return visitor_.end(PyDict_GET_SIZE(dict));
  }

  Visitor& visitor_;
};

// Notes what a walk finds: the values, the tensors as bytes that compare, and aliases of the
// tensors, which keep the addresses of their storages their own.
struct StateReader {
  PyObject *values, *held;
  std::string tensors;

  bool tensor(const at::Tensor& tensor) {
    each_fact(tensor, [this](auto number) {
      append(tensors, number);
      return true;
    });
    const Ref alias(THPVariable_Wrap(tensor.detach()));
    if (PyList_Append(held, alias.get()) != 0) throw python_error();
    return true;
  }
  bool value(PyObject* value) {
    if (PyList_Append(values, value) != 0) throw python_error();
    return true;
  }
  bool end(Py_ssize_t size) {
    append(tensors, size);
    return true;
  }
};

// Compares what a walk finds with what a reader has noted.
struct StateChecker {
  PyObject* values;
  std::string_view tensors;
  Py_ssize_t next = 0;

  template <class Number>
  bool take(Number number) {
    if (tensors.size() < sizeof number) return false;
    if (std::memcmp(tensors.data(), &number, sizeof number) != 0) return false;
    tensors.remove_prefix(sizeof number);
    return true;
  }
  bool tensor(const at::Tensor& tensor) {
    return each_fact(tensor, [this](auto number) { return take(number); });
  }
  bool value(PyObject* value) {
    if (next >= PyList_GET_SIZE(values)) return false;
    return same_constant(PyList_GET_ITEM(values, next++), value);
  }
  bool end(Py_ssize_t size) { return take(size); }
  bool whole() const { return tensors.empty() && next == PyList_GET_SIZE(values); }
};

// A state as Python has it: (modules, optimizers, leaves, values, tensors), four lists and bytes.
struct State {
  PyObject *modules, *optimizers, *leaves, *values, *tensors;

  explicit State(PyObject* state) {
    if (!PyArg_ParseTuple(state, "O!O!O!O!O!", &PyList_Type, &modules, &PyList_Type, &optimizers,
                          &PyList_Type, &leaves, &PyList_Type, &values, &PyBytes_Type, &tensors)) {
      throw python_error();
    }
  }
  bool holds() const {
    StateChecker checker{values, view_of(tensors)};
    return StateWalk(checker).run(modules, optimizers, leaves) && checker.whole();
  }
};

// Whether each (dictionary, key, value) of a list still holds.
bool items_hold(PyObject* items) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items); ++i) {
    PyObject* const each = PyList_GET_ITEM(items, i);
    PyObject* const now =
        PyDict_GetItemWithError(PyTuple_GET_ITEM(each, 0), PyTuple_GET_ITEM(each, 1));
    if (now == nullptr && PyErr_Occurred()) throw python_error();
    if (now == nullptr || !same_constant(PyTuple_GET_ITEM(each, 2), now)) return false;
  }
  return true;
}
PyObject* python_items_hold(PyObject*, PyObject* items) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(PyList_Check(items), "expected a list");
  return PyBool_FromLong(items_hold(items));
  END_HANDLE_TH_ERRORS
}

// read_state(modules, optimizers, leaves): (values, tensors, aliases of the tensors).
PyObject* python_read_state(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  PyObject *modules = nullptr, *optimizers = nullptr, *leaves = nullptr;
  if (!PyArg_ParseTuple(arguments, "O!O!O!", &PyList_Type, &modules, &PyList_Type, &optimizers,
                        &PyList_Type, &leaves)) {
    return nullptr;
  }
  const Ref values(PyList_New(0)), held(PyList_New(0));
  StateReader reader{values.get(), held.get(), {}};
  StateWalk(reader).run(modules, optimizers, leaves);
  const Ref tensors(bytes_of(reader.tensors));
  return PyTuple_Pack(3, values.get(), tensors.get(), held.get());
  END_HANDLE_TH_ERRORS
}
PyObject* python_state_holds(PyObject*, PyObject* state) {
  HANDLE_TH_ERRORS
  return PyBool_FromLong(State(state).holds());
  END_HANDLE_TH_ERRORS
}

}  // namespace
