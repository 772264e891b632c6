// Implements the guards of captured programs: facts about Python objects that are compared in one
// call.

#include "capture/guards.h"

#include <cstring>
#include <new>

#include "clients/session/transforms/transforms.h"

namespace teletensor::client {
namespace {

// Returns true for types whose objects are equal if their values are equal.
bool is_value(PyTypeObject* type) {
  return type == &PyLong_Type || type == &PyFloat_Type || type == &PyUnicode_Type ||
         type == &PyBool_Type || type == &PyBytes_Type || type == &PyComplex_Type ||
         type == &PyRange_Type || type == &PyTuple_Type || type == &PyFrozenSet_Type ||
         (std::strncmp(type->tp_name, "numpy.", 6) == 0 && type->tp_as_number != nullptr &&
          std::strcmp(type->tp_name, "numpy.ndarray") != 0);
}

// Returns false if version_of() is always 0.
constexpr bool may_have_version(Guards::Kind kind) {
  return kind == Guards::Kind::kDict || kind == Guards::Kind::kNumber ||
         kind == Guards::Kind::kOrder || kind == Guards::Kind::kType;
}

// A version number of a dict or a type that changes when it is written to. 0 if unknown.
std::uint64_t version_of(Guards::Kind kind, PyObject* object) {
#if PY_VERSION_HEX < 0x030C0000
  if (kind == Guards::Kind::kDict || kind == Guards::Kind::kNumber ||
      (kind == Guards::Kind::kOrder && !PyODict_CheckExact(object))) {
    return reinterpret_cast<PyDictObject*>(object)->ma_version_tag;
  }
#endif
  if (kind == Guards::Kind::kType) {
    auto* type = reinterpret_cast<PyTypeObject*>(object);
#if PY_VERSION_HEX < 0x030D0000
    if (!PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG)) return 0;
#endif
    return type->tp_version_tag;
  }
  return 0;
}

bool is_number(PyObject* object) {
  return object != nullptr && (PyFloat_CheckExact(object) || PyLong_CheckExact(object));
}

// The number of elements of a tuple of numbers; -1 for a single number, and -2 for any other
// object.
Py_ssize_t numbers_of(PyObject* object) {
  if (is_number(object)) return -1;
  if (object == nullptr || !PyTuple_Check(object)) return -2;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) {
    if (!is_number(PyTuple_GET_ITEM(object, i))) return -2;
  }
  return PyTuple_GET_SIZE(object);
}

// A part of a Python function that can be replaced: its code, and its default arguments.
PyObject* part_of(PyObject* function, Py_ssize_t i) {
  return i == 0   ? PyFunction_GET_CODE(function)
         : i == 1 ? PyFunction_GET_DEFAULTS(function)
                  : PyFunction_GET_KW_DEFAULTS(function);
}

}  // namespace

bool same_value(PyObject* a, PyObject* b) {
  if (a == b) return true;
  PyTypeObject* const type = Py_TYPE(a);
  if (type != Py_TYPE(b) || !is_value(type)) return false;
  if (type == &PyFloat_Type) {
    const double x = PyFloat_AS_DOUBLE(a), y = PyFloat_AS_DOUBLE(b);
    return std::memcmp(&x, &y, sizeof x) == 0;
  }
  if (type == &PyTuple_Type) {
    const Py_ssize_t size = PyTuple_GET_SIZE(a);
    if (size != PyTuple_GET_SIZE(b)) return false;
    for (Py_ssize_t i = 0; i < size; ++i) {
      if (!same_value(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i))) return false;
    }
    return true;
  }
  const int same = PyObject_RichCompareBool(a, b, Py_EQ);
  if (same < 0) PyErr_Clear();
  return same == 1;
}

namespace {

// Returns true if these are the keys of the dict, in this order.
bool same_order(PyObject* dict, PyObject* keys) {
  if (PyDict_GET_SIZE(dict) != PyList_GET_SIZE(keys)) return false;
  if (PyODict_CheckExact(dict)) {  // It has an order of its own.
    const nb::object now = nb::steal(PySequence_List(dict));
    if (!now.is_valid()) PyErr_Clear();
    for (Py_ssize_t i = 0; now.is_valid() && i < PyList_GET_SIZE(keys); ++i) {
      if (!same_value(PyList_GET_ITEM(keys, i), PyList_GET_ITEM(now.ptr(), i))) return false;
    }
    return now.is_valid();
  }
  PyObject* key = nullptr;
  Py_ssize_t at = 0;
  for (Py_ssize_t i = 0; PyDict_Next(dict, &at, &key, nullptr); ++i) {
    if (!same_value(PyList_GET_ITEM(keys, i), key)) return false;
  }
  return true;
}

}  // namespace

namespace {

// Returns true if these are the members of the container, in this order.
bool same_members(PyObject* container, PyObject* list) {
  const nb::object now = nb::steal(PySequence_List(container));
  if (!now.is_valid()) PyErr_Clear();
  if (!now.is_valid() || PyList_GET_SIZE(now.ptr()) != PyList_GET_SIZE(list)) return false;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    if (!same_value(PyList_GET_ITEM(list, i), PyList_GET_ITEM(now.ptr(), i))) return false;
  }
  return true;
}

// Returns true if these are the contents of the buffer.
bool same_bytes(PyObject* object, PyObject* bytes) {
  Py_buffer view;
  if (PyObject_GetBuffer(object, &view, PyBUF_FULL_RO) < 0) {
    PyErr_Clear();
    return false;
  }
  bool good = view.len == PyBytes_GET_SIZE(bytes);
  if (good && PyBuffer_IsContiguous(&view, 'C')) {
    good = std::memcmp(view.buf, PyBytes_AS_STRING(bytes), static_cast<std::size_t>(view.len)) == 0;
  } else if (good) {
    std::string now(static_cast<std::size_t>(view.len), '\0');
    good = PyBuffer_ToContiguous(now.data(), &view, view.len, 'C') == 0 &&
           std::memcmp(now.data(), PyBytes_AS_STRING(bytes), now.size()) == 0;
    if (PyErr_Occurred()) PyErr_Clear();
  }
  PyBuffer_Release(&view);
  return good;
}

}  // namespace

// ---- TensorFacts

namespace {

constexpr int kLeaf = -1, kUnknown = -2;

// The op of a tensor's `.grad_fn`.
int made_by(PySession& session, Handle& h) {
  const auto node = session.node_of(h);
  if (!node.ok()) return kUnknown;
  return *node == nullptr ? kLeaf : static_cast<int>((*node)->label);
}

TensorFacts facts_of_handle(PySession& session, Handle& handle) {
  Handle& h = transforms::ground(handle);
  const bool requires_grad = h.requires_grad();
  return {.layout = handle.layout,
          .requires_grad = requires_grad,
          .view = handle.is_view(),
          .retains = handle.retains,
          .inference = handle.inference,
          .output = handle.output,
          .made_by = requires_grad ? made_by(session, h) : kLeaf};
}

// Returns true if these are still the facts of the tensor. Copies no layout: this runs for each
// tensor in each call of a captured function.
bool still(const TensorFacts& facts, PySession& session, Handle& handle) {
  Handle& h = transforms::ground(handle);
  return handle.layout == facts.layout && h.requires_grad() == facts.requires_grad &&
         handle.is_view() == facts.view && handle.retains == facts.retains &&
         handle.inference == facts.inference && handle.output == facts.output &&
         (!facts.requires_grad || made_by(session, h) == facts.made_by);
}

bool still(const std::optional<TensorFacts>& facts, PyObject* tensor, bool of_grad) {
  const PyTensor* const t = tensor_of(tensor);
  if (t == nullptr) {
    PyErr_Clear();
    return false;
  }
  if (!of_grad) return still(*facts, *t->session, *t->handle);
  const HandleRef& grad = t->handle->grad;
  return grad == nullptr ? !facts : facts && still(*facts, *t->session, *grad);
}

}  // namespace

std::optional<TensorFacts> facts_of(PyObject* tensor) {
  const PyTensor* const t = tensor_of(tensor);
  if (t == nullptr) {
    PyErr_Clear();
    return std::nullopt;
  }
  return facts_of_handle(*t->session, *t->handle);
}

std::optional<TensorFacts> facts_of_grad(PyObject* tensor) {
  const PyTensor* const t = tensor_of(tensor);
  if (t == nullptr) PyErr_Clear();
  if (t == nullptr || t->handle->grad == nullptr) return std::nullopt;
  return facts_of_handle(*t->session, *t->handle->grad);
}

// ---- Expected

Expected::Expected(PyObject* object) : object_(object) {
  if (object == nullptr) return;
  if (!is_value(Py_TYPE(object)) && PyType_SUPPORTS_WEAKREFS(Py_TYPE(object))) {
    reference_ = PyWeakref_NewRef(object, nullptr);
    if (reference_ != nullptr) return;
    PyErr_Clear();
  }
  Py_INCREF(object_);
}

Expected::Expected(Expected&& other) noexcept
    : object_(other.object_), reference_(other.reference_) {
  other.object_ = other.reference_ = nullptr;
}

Expected& Expected::operator=(Expected&& other) noexcept {
  std::swap(object_, other.object_);
  std::swap(reference_, other.reference_);
  return *this;
}

PyObject* Expected::referent() const {
#if PY_VERSION_HEX < 0x030D0000
  PyObject* const object = PyWeakref_GET_OBJECT(reference_);
  return object == Py_None ? nullptr : object;
#else
  PyObject* object = nullptr;
  if (PyWeakref_GetRef(reference_, &object) < 0) PyErr_Clear();
  Py_XDECREF(object);  // Another reference keeps the object alive, because this runs with the GIL.
  return object;
#endif
}

PyObject* Expected::get() const { return reference_ == nullptr ? object_ : referent(); }

int Expected::traverse(visitproc visit, void* arg) const {
  if (reference_ == nullptr) {
    Py_VISIT(object_);
  } else {
    Py_VISIT(reference_);
  }
  return 0;
}

void Expected::clear() {
  if (reference_ == nullptr) Py_CLEAR(object_);
  object_ = nullptr;
  Py_CLEAR(reference_);
}

// ---- Guards

Guards::Group& Guards::group(Kind kind, PyObject* object) {
  auto& places = places_[static_cast<std::size_t>(kind)];
  const auto [at, is_new] = places.try_emplace(object, groups_.size());
  if (is_new) {
    Group& made = groups_.emplace_back();
    made.kind = kind;
    made.container = Expected(object);
    made.object = object;
    made.keys = PySet_New(nullptr);
    if (made.keys == nullptr) throw nb::python_error();
  }
  return groups_[at->second];
}

Guards::Fact* Guards::fact(Group& group, PyObject* key, PyObject* expected) {
  const int known = PySet_Contains(group.keys, key);
  if (known < 0 || (known == 0 && PySet_Add(group.keys, key) < 0)) throw nb::python_error();
  if (known == 1) return nullptr;
  Fact& made = group.facts.emplace_back();
  made.key = Py_NewRef(key);
  made.expected = Expected(expected);
  return &made;
}

void Guards::item(PyObject* dict, PyObject* key, PyObject* expected, const char* owner) {
  Group& into = group(Kind::kDict, dict);
  if (owner != nullptr && into.owner.empty()) into.owner = owner;
  fact(into, key, expected);
}

void Guards::element(PyObject* list, Py_ssize_t i, PyObject* expected) {
  const nb::object key = nb::steal(PyLong_FromSsize_t(i));
  if (Fact* const made = fact(group(Kind::kList, list), key.ptr(), expected)) made->index = i;
}

void Guards::cell(PyObject* cell, PyObject* expected, PyObject* name) {
  fact(group(Kind::kCell, cell), name, expected);
}

void Guards::type(PyObject* type, PyObject* name, PyObject* expected) {
  fact(group(Kind::kType, type), name, expected);
}

void Guards::attribute(PyObject* object, PyObject* name, PyObject* expected) {
  fact(group(Kind::kAttribute, object), name, expected);
}

void Guards::length(PyObject* container, Py_ssize_t size) {
  if (Fact* const made = fact(group(Kind::kLength, container), Py_None, nullptr)) {
    made->index = size;
  }
}

void Guards::number(PyObject* dict, PyObject* key) {
  if (Fact* const made = fact(group(Kind::kNumber, dict), key, nullptr)) {
    made->index = numbers_of(PyDict_GetItemWithError(dict, key));
    if (PyErr_Occurred()) throw nb::python_error();
  }
}

void Guards::set(PyObject* set, PyObject* members) {
  fact(group(Kind::kSet, set), Py_None, members);
}

void Guards::members(PyObject* container, PyObject* list) {
  fact(group(Kind::kMembers, container), Py_None, list);
}

void Guards::buffer(PyObject* object, PyObject* bytes) {
  fact(group(Kind::kBuffer, object), Py_None, bytes);
}

void Guards::tensor(PyObject* tensor, const TensorFacts& now) {
  Group& into = group(Kind::kTensor, tensor);
  if (fact(into, Py_None, nullptr) != nullptr) into.tensor = now;
}

void Guards::grad(PyObject* tensor, const std::optional<TensorFacts>& now) {
  Group& into = group(Kind::kGrad, tensor);
  if (fact(into, Py_None, nullptr) != nullptr) into.tensor = now;
}

void Guards::class_of(PyObject* object) {
  // Only objects of classes that a program has defined can change their class.
  if (!PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_HEAPTYPE)) return;
  fact(group(Kind::kClass, object), Py_None, reinterpret_cast<PyObject*>(Py_TYPE(object)));
}

void Guards::function(PyObject* function) {
  Group& into = group(Kind::kFunction, function);
  for (Py_ssize_t i = 0; i < 3; ++i) {
    const nb::object key = nb::steal(PyLong_FromSsize_t(i));
    if (Fact* const made = fact(into, key.ptr(), part_of(function, i))) made->index = i;
  }
}

void Guards::order(PyObject* dict, PyObject* keys) {
  fact(group(Kind::kOrder, dict), Py_None, keys);
}

bool Guards::knows(PyObject* dict, PyObject* key) const {
  const auto& places = places_[static_cast<std::size_t>(Kind::kDict)];
  const auto at = places.find(dict);
  return at != places.end() && PySet_Contains(groups_[at->second].keys, key) == 1;
}

bool Guards::holds(const Group& group, const Fact& fact) {
  PyObject* const object = group.object;
  switch (group.kind) {
    case Kind::kDict: {
      PyObject* const now = PyDict_GetItemWithError(object, fact.key);
      if (now == nullptr) PyErr_Clear();
      return fact.expected.holds(now);
    }
    case Kind::kList:
      return fact.index < PyList_GET_SIZE(object) &&
             fact.expected.holds(PyList_GET_ITEM(object, fact.index));
    case Kind::kCell:
      return fact.expected.holds(PyCell_GET(object));
    case Kind::kType:
      return fact.expected.holds(_PyType_Lookup(reinterpret_cast<PyTypeObject*>(object), fact.key));
    case Kind::kAttribute: {
      PyObject* const now = PyObject_GetAttr(object, fact.key);
      if (now == nullptr) PyErr_Clear();
      const bool good = fact.expected.holds(now);
      Py_XDECREF(now);
      return good;
    }
    case Kind::kLength: {
      const Py_ssize_t now = PyObject_Size(object);
      if (now < 0) PyErr_Clear();
      return now == fact.index;
    }
    case Kind::kNumber: {
      PyObject* const now = PyDict_GetItemWithError(object, fact.key);
      if (now == nullptr) PyErr_Clear();
      return numbers_of(now) == fact.index;
    }
    case Kind::kSet: {
      const int same = PyObject_RichCompareBool(object, fact.expected.get(), Py_EQ);
      if (same < 0) PyErr_Clear();
      return same == 1;
    }
    case Kind::kMembers:
      return same_members(object, fact.expected.get());
    case Kind::kBuffer:
      return same_bytes(object, fact.expected.get());
    case Kind::kClass:
      return reinterpret_cast<PyObject*>(Py_TYPE(object)) == fact.expected.get();
    case Kind::kFunction:
      return fact.expected.holds(part_of(object, fact.index));
    case Kind::kOrder:
      return same_order(object, fact.expected.get());
    case Kind::kTensor:
      return still(group.tensor, object, false);
    case Kind::kGrad:
      return still(group.tensor, object, true);
  }
  return false;
}

bool Guards::check() {
  if (spoilt_) return false;
  for (Group& group : groups_) {
    if (group.container.get() != group.object) return false;
    if (group.version != 0 && group.version == version_of(group.kind, group.object)) continue;
    for (const Fact& fact : group.facts) {
      if (!holds(group, fact)) return false;
    }
    // While the container is not written to, facts that held once still hold, because the container
    // keeps the expected objects alive.
    if (may_have_version(group.kind)) group.version = version_of(group.kind, group.object);
  }
  return true;
}

bool Guards::dead() const {
  if (spoilt_) return true;
  for (const Group& group : groups_) {
    if (group.container.dead()) return true;
    for (const Fact& fact : group.facts) {
      if (fact.expected.dead()) return true;
    }
  }
  return false;
}

std::string Guards::why() {
  for (const Group& group : groups_) {
    if (group.container.get() != group.object) return "an object that it read is gone";
    for (const Fact& fact : group.facts) {
      if (holds(group, fact)) continue;
      const std::string key = nb::cast<std::string>(nb::str(nb::handle(fact.key)));
      const std::string type = Py_TYPE(group.object)->tp_name;
      switch (group.kind) {
        case Kind::kDict:
          return group.owner.empty()
                     ? "the item " + nb::cast<std::string>(nb::repr(nb::handle(fact.key))) +
                           " of a " + type
                     : "'" + key + "' of " + group.owner;
        case Kind::kList:
          return "element " + key + " of a list";
        case Kind::kCell:
          return "the variable '" + key + "' of an enclosing function";
        case Kind::kType:
          return "'" + key + "' of class " + reinterpret_cast<PyTypeObject*>(group.object)->tp_name;
        case Kind::kAttribute:
          return "'" + key + "' of " + type;
        case Kind::kNumber:
          return "the kind of '" + key + "' of a " + type;
        case Kind::kLength:
          return "the length of a " + type;
        case Kind::kSet:
        case Kind::kMembers:
          return "the members of a " + type;
        case Kind::kBuffer:
          return "the contents of a " + type;
        case Kind::kClass:
          return "the class of a " + type;
        case Kind::kFunction:
          return "the code or the default arguments of a function";
        case Kind::kOrder:
          return "the keys of a " + type;
        case Kind::kTensor:
          return "the shape, strides, dtype, device or requires_grad of a " + type;
        case Kind::kGrad:
          return "the .grad of a " + type;
      }
    }
  }
  return "";
}

std::size_t Guards::size() const {
  std::size_t count = 0;
  for (const Group& group : groups_) count += group.facts.size();
  return count;
}

int Guards::traverse(visitproc visit, void* arg) const {
  for (const Group& group : groups_) {
    if (const int stop = group.container.traverse(visit, arg)) return stop;
    Py_VISIT(group.keys);
    for (const Fact& fact : group.facts) {
      Py_VISIT(fact.key);
      if (const int stop = fact.expected.traverse(visit, arg)) return stop;
    }
  }
  return 0;
}

void Guards::clear() {
  std::vector<Group> groups = std::move(groups_);
  groups_.clear();
  for (auto& each : places_) each.clear();
  for (Group& group : groups) {
    Py_CLEAR(group.keys);
    for (Fact& fact : group.facts) Py_CLEAR(fact.key);
  }
}

namespace {

int traverse_guards(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  return nb::inst_ptr<Guards>(self)->traverse(visit, arg);
}

int clear_guards(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<Guards>(self)->clear();
  return 0;
}

PyType_Slot guards_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse_guards)},
                              {Py_tp_clear, reinterpret_cast<void*>(clear_guards)},
                              {0, nullptr}};

}  // namespace

void bind_guards(nb::module_& m) {
  nb::class_<Guards>(m, "Guards", nb::type_slots(guards_slots),
                     "What a captured program has read from Python.")
      .def(nb::init<>())
      .def("check", &Guards::check, "Returns true if everything that was read is unchanged.")
      .def("dead", &Guards::dead,
           "Returns true if they can never hold again, because an object was destroyed.")
      .def("why", &Guards::why, "The first place that has changed; \"\" where none has.")
      .def("__len__", &Guards::size)
      .def(
          "item",
          [](Guards& g, nb::dict dict, nb::handle key) {
            PyObject* const now = PyDict_GetItemWithError(dict.ptr(), key.ptr());
            if (now == nullptr && PyErr_Occurred()) throw nb::python_error();
            g.item(dict.ptr(), key.ptr(), now);
          },
          nb::arg("dict"), nb::arg("key"), "Records the value at a key of a dict.")
      .def(
          "number",
          [](Guards& g, nb::dict dict, nb::handle key) { g.number(dict.ptr(), key.ptr()); },
          nb::arg("dict"), nb::arg("key"), "Notes that numbers stand there, whichever.");
}

}  // namespace teletensor::client
