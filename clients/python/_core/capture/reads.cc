// Records the places that a captured function reads from Python objects, and which of them the
// function has written itself. reads_steps.cc and reads_calls.cc detect the reads.

#include "capture/reads.h"

#include <cstring>

#include "calls/methods.h"
#include "capture/frames.h"
#include "capture/objects.h"

namespace teletensor::client {
namespace {

// Maximum size in bytes of an array that each call compares.
constexpr Py_ssize_t kMaxBuffer = 1 << 20;

// Returns true for a NumPy array of one dimension whose elements are Python objects.
bool is_array_of_objects(PyObject* object) {
  if (std::strcmp(Py_TYPE(object)->tp_name, "numpy.ndarray") != 0) return false;
  const nb::handle array(object);
  return nb::cast<bool>(array.attr("dtype").attr("hasobject")) &&
         nb::cast<int>(array.attr("ndim")) == 1;
}

}  // namespace

Reads::Reads(nb::object guards)
    : guards_object_(std::move(guards)), guards_(nb::cast<Guards&>(guards_object_)) {}

Reads::~Reads() { clear(); }

void Reads::clear() {
  for (auto* const set : {&known_, &own_cells_}) {
    const std::unordered_set<PyObject*> objects = std::move(*set);
    set->clear();
    for (PyObject* each : objects) Py_DECREF(each);
  }
  written_.clear();
  codes_.clear();
  first_grads_.clear();
}

int Reads::traverse(visitproc visit, void* arg) const {
  Py_VISIT(guards_object_.ptr());
  for (PyObject* each : known_) Py_VISIT(each);
  for (PyObject* each : own_cells_) Py_VISIT(each);
  return 0;
}

bool Reads::supported() {
#ifdef TELETENSOR_FRAMES
  return true;
#else
  return false;
#endif
}

void Reads::know(PyObject* object) {
  if (object == nullptr || is_atom(object) || is_symbol(object)) return;
  if (PyTuple_Check(object)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) know(PyTuple_GET_ITEM(object, i));
    if (PyTuple_CheckExact(object)) return;
  }
  if (!known_.insert(object).second) return;
  Py_INCREF(object);
  const nb::handle handle(object);
  if (is_tensor(object)) {
    know_tensor(object);
  } else if (PyMethod_Check(object)) {
    know(PyMethod_GET_SELF(object));
    know(PyMethod_GET_FUNCTION(object));
  } else if (PyFunction_Check(object)) {
    if (policy_of(module_of(object)) == Policy::kProgram) guards_.function(object);
    know(PyFunction_GET_DEFAULTS(object));
    if (PyObject* const named = PyFunction_GET_KW_DEFAULTS(object)) {
      for (nb::handle each : nb::borrow<nb::dict>(named).values()) know(each.ptr());
    }
  } else if (std::strcmp(Py_TYPE(object)->tp_name, "functools.partial") == 0) {
    know(nb::getattr(handle, "func").ptr());
    know(nb::getattr(handle, "args").ptr());
    whole(nb::getattr(handle, "keywords").ptr(), false);
  } else if (Py_TYPE(object) == &PyDictProxy_Type) {
    // C code reads the dict behind it, at no place that could be seen.
    PyObject* behind = nullptr;
    const auto visit = [](PyObject* each, void* out) {
      *static_cast<PyObject**>(out) = each;
      return 0;
    };
    Py_TYPE(object)->tp_traverse(object, visit, static_cast<void*>(&behind));
    know(behind);
    if (behind != nullptr && PyDict_Check(behind)) whole(behind, false);
  } else if (PyWeakref_CheckRef(object)) {
    know(nb::steal(PyObject_CallNoArgs(object)).ptr());
  } else if (module_of(reinterpret_cast<PyObject*>(Py_TYPE(object)))
                 .starts_with("teletensor.jit")) {
    know(nb::getattr(handle, "_function", nb::none()).ptr());
  } else if (is_array_of_objects(object)) {
    const nb::object members = members_of(object);
    guards_.members(object, members.ptr());
    for (nb::handle each : members) know(each.ptr());
  } else if (PyObject_CheckBuffer(object)) {
    Py_buffer view;
    if (PyObject_GetBuffer(object, &view, PyBUF_FULL_RO) < 0) {
      PyErr_Clear();
      return;
    }
    if (view.len > kMaxBuffer) {
      const std::string type = Py_TYPE(object)->tp_name;
      const Py_ssize_t size = view.len;
      PyBuffer_Release(&view);
      PyErr_Format(
          PyExc_RuntimeError,
          "a captured function reads a %s of %zd bytes from outside, more than the %zd that "
          "each call compares: make a tensor of it before, or hand it over as an argument",
          type.c_str(), size, kMaxBuffer);
      throw nb::python_error();
    }
    const nb::object bytes = nb::steal(PyBytes_FromStringAndSize(nullptr, view.len));
    const bool good = bytes.is_valid() && PyBuffer_ToContiguous(PyBytes_AS_STRING(bytes.ptr()),
                                                                &view, view.len, 'C') == 0;
    PyBuffer_Release(&view);
    if (!good) throw nb::python_error();
    guards_.buffer(object, bytes.ptr());
  }
}

// Everything but the data and the `.grad` of a tensor is recorded at once: code of the package and
// of C reads it without an instruction that could be seen.
void Reads::know_tensor(PyObject* tensor) {
  const std::optional<TensorFacts> now = facts_of(tensor);
  if (!now) return;
  guards_.tensor(tensor, *now);
  first_grads_.emplace(tensor, usable(tensor)->handle->grad);
}

// Records the read of a property of a tensor from outside that know_tensor() has not recorded.
// Returns false for any other attribute.
bool Reads::tensor_attribute(PyObject* tensor, PyObject* name) {
  const std::string_view text = text_of(name);
  if (any_of(text, {"grad", "_grad", "_has_grad"})) {
    const auto first = first_grads_.find(tensor);
    // A `.grad` that the function has written is no fact of outside.
    if (first != first_grads_.end() && usable(tensor)->handle->grad == first->second) {
      guards_.grad(tensor, facts_of_grad(tensor));
    }
    return true;
  }
  if (text != "_version") return false;
  const nb::object now = nb::steal(PyObject_GetAttr(tensor, name));
  if (!now.is_valid()) PyErr_Clear();
  guards_.attribute(tensor, name, now.ptr());
  return true;
}

// Records which object a `.grad` from outside is, because the function compares it by `is`. For
// other uses it may be replaced by another one of the same shape: every call reads the present one.
void Reads::compare_identity(PyObject* object) {
  if (paused > 0 || !is_tensor(object)) return;
  PyTensor* const t = tensor_of(object);
  if (t == nullptr) return PyErr_Clear();
  static PyObject* const name = PyUnicode_InternFromString("grad");
  for (const auto& [owner, grad] : first_grads_) {
    if (grad == t->handle) guards_.attribute(owner, name, object);
  }
}

// Returns true if the function has stored a value at this place before it reads it. `counted` is
// set if it only counts on from the value `before`.
bool Reads::own(PyObject* container, PyObject* key, bool& counted, nb::object& before) {
  const auto at = written_.find(container);
  if (at == written_.end()) return false;
  if (at->second.replaced) return true;
  PyObject* const state = PyDict_GetItemWithError(at->second.keys.ptr(), key);
  if (state == nullptr) return false;
  if (state == Py_None) return true;
  counted = true;
  before = nb::borrow(PyTuple_GET_ITEM(state, 0));
  return false;
}

void Reads::item(PyObject* container, PyObject* key, bool counts, const char* owner) {
  if (paused > 0) return;
  if (PyDict_Check(container)) {
    bool counted = false;
    nb::object before;
    if (PyObject_Hash(key) == -1) {
      PyErr_Clear();
      return;
    }
    if (own(container, key, counted, before)) return;
    const auto at = written_.find(container);
    PyObject* const now = counted ? before.ptr()
                          : at != written_.end() && at->second.before.is_valid()
                              ? PyDict_GetItemWithError(at->second.before.ptr(), key)
                              : PyDict_GetItemWithError(container, key);
    if (now == nullptr && PyErr_Occurred()) throw nb::python_error();
    if (counts && now != nullptr && is_plain_number(now) && !guards_.knows(container, key)) {
      if (!counted) {
        const nb::object state = nb::make_tuple(nb::borrow(now));
        PyDict_SetItem(written_[container].keys.ptr(), key, state.ptr());
      }
      return;
    }
    guards_.item(container, key, now, owner);
    know(now);
    return;
  }
  if (!PyList_Check(container) || !PyIndex_Check(key)) {
    if (is_container(container)) whole(container, false);
    return;
  }
  const auto at = written_.find(container);
  if (at != written_.end()) {
    whole(container, false);
    return;
  }
  Py_ssize_t i = PyNumber_AsSsize_t(key, nullptr);
  if (i < 0) {
    i += PyList_GET_SIZE(container);
    guards_.length(container, PyList_GET_SIZE(container));
  }
  if (i < 0 || i >= PyList_GET_SIZE(container)) {
    guards_.length(container, PyList_GET_SIZE(container));
    return;
  }
  guards_.element(container, i, PyList_GET_ITEM(container, i));
  know(PyList_GET_ITEM(container, i));
}

void Reads::whole(PyObject* container, bool deep) {
  if (paused > 0 || container == nullptr) return;
  const auto at = written_.find(container);
  if (at != written_.end() && at->second.replaced) return;
  PyObject* const from =
      at != written_.end() && at->second.before.is_valid() ? at->second.before.ptr() : container;
  const auto inside = [&](PyObject* member) {
    know(member);
    if (deep && is_container(member)) whole(member, true);
    if (deep && PyTuple_Check(member)) {
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(member); ++i) {
        PyObject* const each = PyTuple_GET_ITEM(member, i);
        if (is_container(each)) whole(each, true);
      }
    }
  };
  if (PyDict_Check(container)) {
    const nb::object keys =
        PyODict_CheckExact(from) ? members_of(from) : nb::steal(PyDict_Keys(from));
    if (at == written_.end() || PyDict_GET_SIZE(at->second.keys.ptr()) == 0) {
      guards_.order(container, keys.ptr());
    }
    for (nb::handle key : nb::borrow<nb::list>(keys)) {
      bool counted = false;
      nb::object before;
      if (own(container, key.ptr(), counted, before)) continue;
      PyObject* const value = counted ? before.ptr() : PyDict_GetItemWithError(from, key.ptr());
      guards_.item(container, key.ptr(), value);
      know(key.ptr());
      if (value != nullptr) inside(value);
    }
  } else if (PyList_Check(container)) {
    guards_.length(container, PyList_GET_SIZE(from));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(from); ++i) {
      guards_.element(container, i, PyList_GET_ITEM(from, i));
      inside(PyList_GET_ITEM(from, i));
    }
  } else if (PySet_Check(container)) {
    const nb::object members = nb::steal(PyFrozenSet_New(from));
    if (!members.is_valid()) throw nb::python_error();
    guards_.set(container, members.ptr());
    for (nb::handle each : members_of(members.ptr())) inside(each.ptr());
  } else if (is_deque(container)) {
    const nb::object members = members_of(from);
    guards_.members(container, members.ptr());
    for (nb::handle each : members) inside(each.ptr());
  }
}

void Reads::class_attribute(PyTypeObject* type, PyObject* name, PyObject* found) {
  if (found == nullptr || is_method(found)) return;
  if (is_python_function(found) || Py_TYPE(found) == &PyProperty_Type || PyCFunction_Check(found)) {
    // Methods of the package and of C types do not change.
    if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) return;
    if (in_package(
            module_of(PyFunction_Check(found) ? found : reinterpret_cast<PyObject*>(type)))) {
      return;
    }
  }
  if (Py_TYPE(found) == &PyMethodDescr_Type || Py_TYPE(found) == &PyWrapperDescr_Type ||
      Py_TYPE(found) == &PyGetSetDescr_Type || Py_TYPE(found) == &PyClassMethodDescr_Type) {
    return;
  }
  guards_.type(reinterpret_cast<PyObject*>(type), name, found);
  know(found);
}

// Records the read of super(`of`, self).name, where self is an object of class `self_class`.
void Reads::super_attribute(PyObject* of, PyObject* self_class, PyObject* name) {
  if (!PyType_Check(of) || !PyType_Check(self_class)) return;
  PyObject* const classes = reinterpret_cast<PyTypeObject*>(self_class)->tp_mro;
  bool behind = false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(classes); ++i) {
    PyObject* const each = PyTuple_GET_ITEM(classes, i);
    if (behind && !in_package(module_of(each))) {
      auto* const type = reinterpret_cast<PyTypeObject*>(each);
      PyObject* const found = _PyType_Lookup(type, name);
      if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) class_attribute(type, name, found);
    }
    behind = behind || each == of;
  }
}

void Reads::attribute(PyObject* object, PyObject* name, bool counts) {
  if (paused > 0) return;
  if (PyModule_Check(object)) {
    const char* const module = PyModule_GetName(object);
    if (module == nullptr) PyErr_Clear();
    if (module != nullptr && in_package(module)) return;
    item(PyModule_GetDict(object), name, counts, module);
    return;
  }
  if (PyType_Check(object)) {
    auto* const type = reinterpret_cast<PyTypeObject*>(object);
    if (in_package(module_of(object))) return;
    if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
      class_attribute(type, name, _PyType_Lookup(type, name));
    }
    if (Py_TYPE(type) != &PyType_Type) {
      class_attribute(Py_TYPE(type), name, _PyType_Lookup(Py_TYPE(type), name));
    }
    return;
  }
  if (Py_TYPE(object) == &PySuper_Type) {
    const nb::handle handle(object);
    return super_attribute(nb::getattr(handle, "__thisclass__").ptr(),
                           nb::getattr(handle, "__self_class__").ptr(), name);
  }
  if (!knows(object)) return;
  guards_.class_of(object);
  if (is_tensor(object) && tensor_attribute(object, name)) return;
  PyTypeObject* const type = Py_TYPE(object);
  PyObject* const found = _PyType_Lookup(type, name);
  if (found != nullptr && Py_TYPE(found)->tp_descr_set != nullptr) {
    if (Py_TYPE(found) == &PyMemberDescr_Type) {
      const nb::object now = nb::steal(PyObject_GetAttr(object, name));
      if (!now.is_valid()) PyErr_Clear();
      guards_.attribute(object, name, now.ptr());
      know(now.ptr());
    } else if (text_of(name) == "__dict__") {
      know(attributes_of(object));
    } else {
      class_attribute(type, name, found);
    }
    return;
  }
  PyObject* const dict = attributes_of(object);
  if (dict != nullptr) {
    item(dict, name, counts, type->tp_name);
    if (PyDict_GetItemWithError(dict, name) != nullptr) return;
    if (PyErr_Occurred()) PyErr_Clear();
  } else if (starts_with(type->tp_name, "_thread.")) {
    const nb::object now = nb::steal(PyObject_GetAttr(object, name));
    if (!now.is_valid()) PyErr_Clear();
    guards_.attribute(object, name, now.ptr());
    know(now.ptr());
    return;
  }
  static PyObject* const fallback = PyUnicode_InternFromString("__getattr__");
  PyObject* const hook = found == nullptr ? _PyType_Lookup(type, fallback) : nullptr;
  // The type has a C hook, for example dict.__getitem__.
  if (hook != nullptr && !is_python_function(hook)) {
    if (PyDict_Check(object)) return item(object, name);
    const nb::object now = nb::steal(PyObject_GetAttr(object, name));
    if (!now.is_valid()) PyErr_Clear();
    guards_.attribute(object, name, now.ptr());
    know(now.ptr());
  }
  class_attribute(type, name, found);
}

void Reads::cell(PyObject* cell, PyObject* name, bool counts) {
  if (paused > 0 || own_cells_.contains(cell)) return;
  bool counted = false;
  nb::object before;
  if (own(cell, Py_None, counted, before)) return;
  PyObject* const now = counted ? before.ptr() : PyCell_GET(cell);
  if (counts && now != nullptr && is_plain_number(now)) {
    if (!counted) {
      const nb::object state = nb::make_tuple(nb::borrow(now));
      PyDict_SetItem(written_[cell].keys.ptr(), Py_None, state.ptr());
    }
    return;
  }
  guards_.cell(cell, now, name);
  know(now);
}

void Reads::take(PyObject* iterator) {
  if (paused > 0 || !knows(iterator) || !is_native_iterator(iterator)) return;
  PyErr_Format(
      PyExc_RuntimeError,
      "a captured function cannot take elements from an iterator (%s) of outside, which each "
      "call would have to move on: hand its elements over as arguments",
      Py_TYPE(iterator)->tp_name);
  throw nb::python_error();
}

// ---- writes of the function

void Reads::mutate(PyObject* container, bool replaces) {
  if (paused > 0 || !knows(container)) return;
  Written& written = written_[container];
  if (replaces) {
    written.replaced = true;
  } else if (!written.replaced && !written.before.is_valid()) {
    written.before = PyDict_Check(container)  ? nb::steal(PyDict_Copy(container))
                     : PySet_Check(container) ? nb::steal(PySet_New(container))
                                              : members_of(container);
    if (!written.before.is_valid()) throw nb::python_error();
  }
}

void Reads::store_item(PyObject* container, PyObject* key) {
  if (paused > 0 || !knows(container)) return;
  if (!PyDict_Check(container)) {
    if (is_container(container)) mutate(container, false);
    return;
  }
  PyObject* const keys = written_[container].keys.ptr();
  if (!guards_.knows(container, key) && PyDict_SetDefault(keys, key, Py_None) == nullptr) {
    PyErr_Clear();
  }
}

void Reads::store_attribute(PyObject* object, PyObject* name) {
  if (paused > 0 || !(knows(object) || PyModule_Check(object))) return;
  PyObject* const dict = attributes_of(object);
  if (dict == nullptr) return;
  PyObject* const keys = written_[dict].keys.ptr();
  if (!guards_.knows(dict, name) && PyDict_SetDefault(keys, name, Py_None) == nullptr)
    PyErr_Clear();
}
namespace {

int traverse_reads(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  return nb::inst_ptr<Reads>(self)->traverse(visit, arg);
}

int clear_reads(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<Reads>(self)->clear();
  return 0;
}

PyType_Slot reads_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse_reads)},
                             {Py_tp_clear, reinterpret_cast<void*>(clear_reads)},
                             {0, nullptr}};

}  // namespace

void bind_reads(nb::module_& m) {
  m.def("can_capture", &Reads::supported,
        "Returns true if reads can be observed in this version of Python.");
  nb::class_<Reads>(m, "Reads", nb::type_slots(reads_slots),
                    "Notes what a function reads from Python.")
      .def(nb::init<nb::object>(), nb::arg("guards"))
      .def(
          "run",
          [](Reads& r, nb::handle function, nb::tuple args, nb::dict kwargs) {
            return r.run(function, args, kwargs);
          },
          nb::arg("function"), nb::arg("args"), nb::arg("kwargs"),
          "Calls function(*args, **kwargs).")
      .def(
          "know", [](Reads& r, nb::handle object) { r.know(object.ptr()); },
          nb::arg("object").none(), "An object from outside, of which reads are noted.")
      .def(
          "item",
          [](Reads& r, nb::handle container, nb::handle key) {
            r.item(container.ptr(), key.ptr());
          },
          nb::arg("container").none(), nb::arg("key").none(), "Notes the read of an item.")
      .def(
          "attribute",
          [](Reads& r, nb::handle object, nb::handle name) {
            r.attribute(object.ptr(), name.ptr());
          },
          nb::arg("object").none(), nb::arg("name").none(), "Notes the read of an attribute.")
      .def(
          "cell",
          [](Reads& r, nb::handle cell, nb::handle name) { r.cell(cell.ptr(), name.ptr()); },
          nb::arg("cell"), nb::arg("name").none(),
          "Notes the read of an enclosing function's variable.")
      .def(
          "whole",
          [](Reads& r, nb::handle container) {
            if (r.knows(container.ptr())) r.whole(container.ptr(), true);
          },
          nb::arg("container").none(), "Notes the read of all of a container from outside.")
      .def(
          "overlook",
          [](Reads& r, nb::dict dict, nb::handle key) {
            r.know(dict.ptr());
            r.store_item(dict.ptr(), key.ptr());
          },
          nb::arg("dict"), nb::arg("key"), "Reads of this item are not noted.")
      .def(
          "called",
          [](Reads& r, nb::handle function, nb::tuple args) {
            r.called(function.ptr(), args.ptr());
          },
          nb::arg("function"), nb::arg("args"),
          "Notes what a function in C reads of its arguments.")
      .def("clear", &Reads::clear, "Releases the recorded objects.")
      .def_rw("paused", &Reads::paused, "Above 0 nothing is noted.");
}

}  // namespace teletensor::client
