// Calls inside a captured function: what C functions read of their arguments, and which of them can
// handle a Symbol.

#include <cstring>

#include "capture/objects.h"
#include "capture/programs.h"
#include "capture/reads.h"

namespace teletensor::client {

// ---- Symbols

bool Reads::is_symbol(PyObject* object) const {
  return object != nullptr && Py_TYPE(object) == symbol_type();
}

// Replaces a Symbol by its number. With `fixes`, the program is then valid for this number only.
void Reads::plain(PyObject** slot, bool fixes) {
  PyObject* const symbol = *slot;
  if (!is_symbol(symbol)) return;
  PyObject* const value = fixes ? PyObject_CallMethod(symbol, "_fixed", nullptr)
                                : PyObject_GetAttrString(symbol, "value");
  if (value == nullptr) throw nb::python_error();
  *slot = value;
  Py_DECREF(symbol);
}

void Reads::plain_inside(PyObject** slot, int depth) {
  PyObject* const object = *slot;
  if (object == nullptr) return;
  if (is_symbol(object)) {
    plain(slot);
  } else if (depth == 0) {
    return;
  } else if (PyList_CheckExact(object)) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(object); ++i) {
      PyObject* each = PyList_GET_ITEM(object, i);
      Py_INCREF(each);
      PyObject* const before = each;
      plain_inside(&each, depth - 1);
      if (each == before) {
        Py_DECREF(each);
      } else {
        PyList_SetItem(object, i, each);
      }
    }
  } else if (PyTuple_CheckExact(object)) {
    nb::object made;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) {
      PyObject* each = PyTuple_GET_ITEM(object, i);
      Py_INCREF(each);
      PyObject* const before = each;
      plain_inside(&each, depth - 1);
      if (each == before) {
        Py_DECREF(each);
        continue;
      }
      if (!made.is_valid()) {
        made = nb::steal(PyTuple_New(PyTuple_GET_SIZE(object)));
        if (!made.is_valid()) throw nb::python_error();
        for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(object); ++k) {
          PyTuple_SET_ITEM(made.ptr(), k, Py_NewRef(PyTuple_GET_ITEM(object, k)));
        }
      }
      Py_SETREF(reinterpret_cast<PyTupleObject*>(made.ptr())->ob_item[i], each);
    }
    if (made.is_valid()) {
      *slot = made.release().ptr();
      Py_DECREF(object);
    }
  } else if (PyDict_CheckExact(object)) {
    PyObject *key = nullptr, *value = nullptr;
    Py_ssize_t at = 0;
    while (PyDict_Next(object, &at, &key, &value)) {
      PyObject* each = Py_NewRef(value);
      plain_inside(&each, depth - 1);
      if (each != value) PyDict_SetItem(object, key, each);
      Py_DECREF(each);
    }
  }
}
// ---- calls

namespace {

bool is_attrgetter(PyObject* object) {
  return std::strcmp(Py_TYPE(object)->tp_name, "operator.attrgetter") == 0;
}

}  // namespace

void Reads::method(std::string_view name, PyObject* self, PyObject** args, Py_ssize_t count) {
  if (any_of(name, {"__getattribute__", "__getattr__"}) && count > 0) {
    attribute(self, args[0]);
  } else if (any_of(name, {"__setattr__", "__delattr__"}) && count > 0) {
    store_attribute(self, args[0]);
  } else if (any_of(name, {"__reduce_ex__", "__reduce__", "__getstate__", "__dir__"})) {
    if (knows(self)) whole(attributes_of(self), true);
  } else if (name == "__next__") {
    take(self);
  }
  if (!knows(self)) return;
  if (!is_container(self)) {
    if (is_native_iterator(self) && any_of(name, {"send", "throw"})) take(self);
    return;
  }
  if (any_of(name,
             {"append", "appendleft", "add", "insert", "extend", "extendleft", "update", "remove",
              "discard", "__setitem__", "__delitem__", "sort", "reverse", "rotate", "__init__"})) {
    mutate(self, false);
  } else if (name == "clear") {
    mutate(self, true);
  } else if (PyDict_Check(self) && count > 0 &&
             any_of(name, {"get", "__getitem__", "__contains__", "setdefault"})) {
    item(self, args[0]);
    if (name == "setdefault") store_item(self, args[0]);
  } else if (name == "__len__") {
    whole(self, false);
  } else {
    whole(self, true);
    if (any_of(name, {"pop", "popitem", "popleft"})) mutate(self, false);
  }
}

// Records what the text of an object in C shows.
void Reads::printed(PyObject* object) {
  if (object == nullptr || !knows(object)) return;
  whole(object, true);
  guards_.class_of(object);
  static PyObject* const text = PyUnicode_InternFromString("__repr__");
  if (PyModule_Check(object) || is_python_function(_PyType_Lookup(Py_TYPE(object), text))) return;
  if (PyObject* const own = attributes_of(object)) whole(own, true);
}

// Records what operator.attrgetter(...)(object) reads.
void Reads::got(PyObject* getter, PyObject* object) {
  const nb::object paths = nb::getattr(nb::handle(getter), "__reduce__")()[1];
  for (nb::handle path : paths) {
    nb::object at = nb::borrow(object);
    for (nb::handle part : path.attr("split")(".")) {
      attribute(at.ptr(), part.ptr());
      at = nb::getattr(at, part, nb::none());
    }
  }
}

void Reads::call_native(PyObject* callable, PyObject* self, PyObject** args, Py_ssize_t count) {
  PyObject* bound = self;
  const std::string of = method_name(callable, bound);
  if (!of.empty()) {
    // An unbound method call such as list.append(x, 1).
    if (bound == nullptr && count > 0 && !PyCFunction_Check(callable)) {
      bound = args[0];
      ++args;
      --count;
    }
    if (bound != nullptr) method(of, bound, args, count);
    for (Py_ssize_t i = 0; i < count; ++i) {
      if (knows(args[i]) && !any_of(of, {"append", "appendleft", "add", "insert"})) {
        take(args[i]);
        whole(args[i], true);
      }
    }
    return;
  }
  const std::string name = builtin_name(callable);
  if (any_of(name, {"builtins.isinstance", "builtins.issubclass", "builtins.type", "builtins.id",
                    "builtins.callable", "builtins.super", "builtins.print"})) {
    if (count > 0 && args[0] != nullptr && knows(args[0])) {
      guards_.class_of(args[0]);
    }
    if (name == "builtins.id" && count > 0) compare_identity(args[0]);
    return;
  }
  if (any_of(name, {"builtins.getattr", "builtins.hasattr"}) && count > 1) {
    if (PyUnicode_Check(args[1])) attribute(args[0], args[1]);
    return;
  }
  if (any_of(name, {"builtins.setattr", "builtins.delattr"}) && count > 1) {
    store_attribute(args[0], args[1]);
    return;
  }
  if (name == "builtins.next" && count > 0) {
    take(args[0]);
    return;
  }
  if (name == "builtins.vars" && count > 0) {
    if (knows(args[0])) whole(attributes_of(args[0]), false);
    know(knows(args[0]) ? attributes_of(args[0]) : nullptr);
    return;
  }
  if (name == "builtins.len" && count > 0 && knows(args[0]) && is_container(args[0])) {
    const auto at = written_.find(args[0]);
    if (at == written_.end()) {
      guards_.length(args[0], PyObject_Size(args[0]));
    } else {
      whole(args[0], false);
    }
    return;
  }
  if (is_attrgetter(callable) && count > 0) return got(callable, args[0]);
  if (name == "builtins.globals") {
    know(PyEval_GetGlobals());
    return;
  }
  if (any_of(name, {"builtins.eval", "builtins.exec"})) return;  // Their code is seen as it runs.
  if (any_of(name, {"builtins.repr", "builtins.str", "builtins.ascii", "builtins.format"})) {
    for (Py_ssize_t i = 0; i < count; ++i) printed(args[i]);
    return;
  }
  if (PyWeakref_CheckRef(callable) && knows(callable)) {
    know(nb::steal(PyObject_CallNoArgs(callable)).ptr());
  }
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (args[i] == nullptr || !knows(args[i])) continue;
    take(args[i]);
    whole(args[i], true);
  }
  for (Py_ssize_t i = 0; i < count; ++i) {  // For example max(objects, key=attrgetter("size")).
    if (args[i] == nullptr || !is_attrgetter(args[i])) continue;
    for (Py_ssize_t k = 0; k < count; ++k) {
      if (args[k] == nullptr || !(is_container(args[k]) || PyTuple_Check(args[k]))) continue;
      for (nb::handle each : members_of(args[k])) got(args[i], each.ptr());
    }
  }
}

void Reads::call(Policy policy, PyObject** callable, PyObject** self, PyObject** args,
                 Py_ssize_t count) {
  if (*callable == nullptr) return;
  if (runs_python(*callable)) {
    if (policy != Policy::kPlain && is_opaque(*callable)) {
      call_native(*callable, nullptr, args, count);
    }
    return;
  }
  PyObject* const bound = self == nullptr ? nullptr : *self;
  const std::string name = builtin_name(*callable);
  if (any_of(name, {"builtins.isinstance", "builtins.issubclass", "builtins.type", "builtins.id",
                    "builtins.callable", "builtins.hasattr"})) {
    for (Py_ssize_t i = 0; i < count; ++i) plain(&args[i], false);
  } else {
    PyObject* of = bound;
    if (name == "builtins.setattr" && count > 2 && knows(args[0])) plain(&args[2]);
    const bool stores = !method_name(*callable, of).empty() && of != nullptr && knows(of);
    if (stores || !takes_symbols(*callable, bound)) {
      for (Py_ssize_t i = 0; i < count; ++i) plain_inside(&args[i], 4);
    }
  }
  if (policy != Policy::kPlain) call_native(*callable, bound, args, count);
}
void Reads::called(PyObject* function, PyObject* args) {
  std::vector<PyObject*> given(static_cast<std::size_t>(PyTuple_GET_SIZE(args)));
  for (std::size_t i = 0; i < given.size(); ++i) {
    given[i] = PyTuple_GET_ITEM(args, static_cast<Py_ssize_t>(i));
  }
  call_native(function, nullptr, given.data(), static_cast<Py_ssize_t>(given.size()));
}
}  // namespace teletensor::client
