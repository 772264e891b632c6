// Part of _bridge.cpp, which is one translation unit: a call of a captured step without Python
// code, where all on which the step depends is as it was at an earlier call.
#pragma once

#include <torch/csrc/Dtype.h>

#include "_bridge_steps.hpp"

namespace {

// A call that was valid, as the fields of _capture.Replay in their order. It is valid again while
// these are equal.
enum ReplayField : Py_ssize_t {
  kArguments,     // the arguments, with kPlace of them in place of tensors
  kPlaceMark,     // the object that stands for a tensor
  kSignature,     // bytes: that of the tensors
  kModes,         // bytes
  kTrained,       // list of modules whose mode tells programs apart
  kTraining,      // list of their modes
  kKeyLeaves,     // list of tensors of which it matters whether they have gradients
  kHaveGradient,  // list: whether they have
  kState,         // as State reads it
  kAttributes,    // list of (dictionary, key, value)
  kUnchanged,     // function: whether what the program's code has read is unchanged
  kHost,          // list of (tensor in host memory, version)
  kLeaves,        // list of tensors, and
  kGradients,     // list of the gradients that the step gives them
  kStep,          // the capsule
  kWritten,       // list of the places of arguments that it writes to
  kOwnWritten,    // list of other tensors that it writes to
  kResults,       // list of (kind, value, shown)
  kFields
};

class Replay {
 public:
  Replay(PyObject* fields, PyObject* arguments) : fields_(fields), arguments_(arguments) {}

  // The leaves of the result as a list; null if the call is not valid, which then has no effect.
  PyObject* run() {
    if (!takes(field(kArguments), arguments_) || view_of(field(kModes)) != modes() || !alike() ||
        !modes_are_same() || !gradients_exist_alike() || !State(field(kState)).holds() ||
        !items_hold(field(kAttributes)) || !host_is_same() || !gradients_are_own() ||
        !reads_hold()) {
      return nullptr;
    }
    if (!move()) return nullptr;
    std::vector<at::Tensor> dense;
    for (const at::Tensor& each : tensors_) dense.push_back(is_whole(each) ? each : each.clone());
    const auto made = results_of(field(kStep), dense);
    if (!made) return nullptr;
    note_writes(dense);
    set_gradients();
    return leaves(*made, dense);
  }

 private:
  PyObject* field(ReplayField which) const { return PyTuple_GET_ITEM(fields_, which); }

  // Compares the structure and the values of arguments; collects the tensors.
  bool takes(PyObject* wanted, PyObject* given) {
    if (wanted == field(kPlaceMark)) {
      if (!THPVariable_Check(given)) return false;
      tensors_.push_back(THPVariable_Unpack(given));
      return true;
    }
    if (Py_TYPE(wanted) != Py_TYPE(given)) return false;
    if (PyTuple_CheckExact(wanted)) {
      const Py_ssize_t size = PyTuple_GET_SIZE(wanted);
      if (PyTuple_GET_SIZE(given) != size) return false;
      for (Py_ssize_t i = 0; i < size; ++i) {
        if (!takes(PyTuple_GET_ITEM(wanted, i), PyTuple_GET_ITEM(given, i))) return false;
      }
      return true;
    }
    if (PyList_CheckExact(wanted)) {
      for (Py_ssize_t i = 0; i < PyList_GET_SIZE(wanted); ++i) {
        if (i >= PyList_GET_SIZE(given)) return false;
        if (!takes(PyList_GET_ITEM(wanted, i), PyList_GET_ITEM(given, i))) return false;
      }
      return PyList_GET_SIZE(wanted) == PyList_GET_SIZE(given);
    }
    if (PyDict_CheckExact(wanted)) return takes_dict(wanted, given);
    return same_constant(wanted, given);
  }
  bool takes_dict(PyObject* wanted, PyObject* given) {
    if (PyDict_GET_SIZE(wanted) != PyDict_GET_SIZE(given)) return false;
    PyObject *key = nullptr, *value = nullptr, *own = nullptr, *now = nullptr;
    Py_ssize_t at = 0, other = 0;
    while (PyDict_Next(wanted, &at, &key, &value) != 0) {  // in the same order
      if (PyDict_Next(given, &other, &own, &now) == 0) return false;
      if (!same_constant(key, own) || !takes(value, now)) return false;
    }
    return true;
  }

  // Whether the tensors have the dtypes and sizes that the step is for, and no keys of dispatch
  // that it does not know. Their strides are compared after a move to the device.
  bool alike() const {
    if (c10::impl::TorchDispatchModeTLS::stack_len() > 0) return false;
    const std::string_view wanted = view_of(field(kSignature));
    std::size_t at = 0;
    for (const at::Tensor& each : tensors_) {
      const bool plain = each.defined() && each.layout() == c10::kStrided &&
                         !each.requires_grad() &&
                         (each.device().type() == kType || each.is_cpu()) &&
                         !each.unsafeGetTensorImpl()->is_python_dispatch();
      if (!plain) return false;
      std::string head;
      append(head, static_cast<std::int16_t>(each.scalar_type()));
      append(head, static_cast<std::int16_t>(each.dim() * 2));
      if (wanted.substr(at, head.size()) != head) return false;
      at += head.size();
      for (std::int64_t d = 0; d < each.dim(); ++d, at += 2 * sizeof(std::int64_t)) {
        const std::int64_t size = each.size(d);
        if (std::memcmp(wanted.data() + at, &size, sizeof size) != 0) return false;
      }
    }
    return at == wanted.size();
  }
  // Sends tensors in host memory to the device. Returns whether the signature is that of the step.
  bool move() {
    std::string signature;
    for (at::Tensor& each : tensors_) {
      if (each.is_cpu()) each = each.to(kDevice);
      append_signature(signature, each);
    }
    return signature == view_of(field(kSignature));
  }

  bool modes_are_same() const {
    static PyObject* const training = PyUnicode_InternFromString("training");
    PyObject *const modules = field(kTrained), *const before = field(kTraining);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(modules); ++i) {
      const Ref now(PyObject_GetAttr(PyList_GET_ITEM(modules, i), training));
      if (!same_constant(now.get(), PyList_GET_ITEM(before, i))) return false;
    }
    return true;
  }
  bool reads_hold() const {
    const Ref holds(PyObject_CallNoArgs(field(kUnchanged)));
    return holds.get() == Py_True;
  }
  bool gradients_exist_alike() const {
    PyObject *const leaves = field(kKeyLeaves), *const before = field(kHaveGradient);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(leaves); ++i) {
      const bool has = THPVariable_Unpack(PyList_GET_ITEM(leaves, i)).grad().defined();
      if (has != (PyList_GET_ITEM(before, i) == Py_True)) return false;
    }
    return true;
  }
  bool host_is_same() const {
    PyObject* const host = field(kHost);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(host); ++i) {
      PyObject* const each = PyList_GET_ITEM(host, i);
      const at::Tensor& tensor = THPVariable_Unpack(PyTuple_GET_ITEM(each, 0));
      const auto version = tensor.unsafeGetTensorImpl()->version_counter().current_version();
      if (PyLong_AsLongLong(PyTuple_GET_ITEM(each, 1)) != static_cast<long long>(version)) {
        return false;
      }
    }
    return true;
  }
  // The gradient that the step gives this leaf; undefined: none.
  at::Tensor gradient(Py_ssize_t i) const {
    PyObject* const found = PyList_GET_ITEM(field(kGradients), i);
    return found == Py_None ? at::Tensor() : THPVariable_Unpack(found);
  }
  bool gradients_are_own() const {
    PyObject* const leaves = field(kLeaves);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(leaves); ++i) {
      const at::Tensor& now = THPVariable_Unpack(PyList_GET_ITEM(leaves, i)).grad();
      if (now.defined() && !now.is_same(gradient(i))) return false;
    }
    return true;
  }
  void set_gradients() const {
    PyObject* const leaves = field(kLeaves);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(leaves); ++i) {
      const at::Tensor& leaf = THPVariable_Unpack(PyList_GET_ITEM(leaves, i));
      at::Tensor own = gradient(i);
      if (own.defined()) note_write(own);
      if (!leaf.grad().is_same(own)) leaf.mutable_grad() = std::move(own);
    }
  }
  // Counts the writes of the step, and copies what it has written to copies of arguments back.
  void note_writes(const std::vector<at::Tensor>& dense) const {
    PyObject *const places = field(kWritten), *const others = field(kOwnWritten);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(places); ++i) {
      const auto place = PyLong_AsSize_t(PyList_GET_ITEM(places, i));
      if (dense[place].is_same(tensors_[place])) {
        note_write(tensors_[place]);
      } else {
        tensors_[place].copy_(dense[place]);
      }
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(others); ++i) {
      note_write(THPVariable_Unpack(PyList_GET_ITEM(others, i)));
    }
  }

  PyObject* leaves(const std::vector<at::Tensor>& made,
                   const std::vector<at::Tensor>& arguments) const {
    PyObject* const results = field(kResults);
    const Py_ssize_t count = PyList_GET_SIZE(results);
    PyObject* const list = PyList_New(count);
    for (Py_ssize_t i = 0; list != nullptr && i < count; ++i) {
      PyObject* const each = PyList_GET_ITEM(results, i);
      PyObject* const value = PyTuple_GET_ITEM(each, 1);
      if (PyTuple_GET_SIZE(each) == 2) {
        PyList_SET_ITEM(list, i, Py_NewRef(value));
        continue;
      }
      const bool own = PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(each, 0), "made") == 0;
      const at::Tensor& base = (own ? made : arguments)[PyLong_AsSize_t(value)];
      PyList_SET_ITEM(list, i, THPVariable_Wrap(shown(base, PyTuple_GET_ITEM(each, 2))));
    }
    return list;
  }
  // What (dtype, sizes, strides, offset) shows of a tensor's storage.
  static at::Tensor shown(const at::Tensor& base, PyObject* form) {
    const auto dtype = reinterpret_cast<THPDtype*>(PyTuple_GET_ITEM(form, 0))->scalar_type;
    const auto sizes = numbers(PyTuple_GET_ITEM(form, 1));
    const auto strides = numbers(PyTuple_GET_ITEM(form, 2));
    const auto offset = PyLong_AsLongLong(PyTuple_GET_ITEM(form, 3));
    if (base.scalar_type() == dtype && base.sizes() == c10::IntArrayRef(sizes) &&
        base.strides() == c10::IntArrayRef(strides) && base.storage_offset() == offset) {
      return base;
    }
    at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(base.storage()), kKeys,
                                                               c10::scalarTypeToTypeMeta(dtype));
    view.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
    return view;
  }
  static c10::SmallVector<std::int64_t, 6> numbers(PyObject* tuple) {
    c10::SmallVector<std::int64_t, 6> found;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
      found.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i)));
    }
    return found;
  }

  PyObject *const fields_, *const arguments_;
  std::vector<at::Tensor> tensors_;
};

// replay(dictionary of Replays, (args, kwargs)): (the Replay that is valid, the leaves of its
// result), or None, where none is valid.
PyObject* python_replay(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  PyObject *replays = nullptr, *given = nullptr;
  if (!PyArg_ParseTuple(arguments, "O!O!", &PyDict_Type, &replays, &PyTuple_Type, &given)) {
    return nullptr;
  }
  PyObject *key = nullptr, *fields = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(replays, &at, &key, &fields) != 0;) {
    TORCH_CHECK_TYPE(PyTuple_Check(fields) && PyTuple_GET_SIZE(fields) >= kFields,
                     "expected a Replay");
    const Ref own(Py_NewRef(fields));  // code of the program's values may drop it
    PyObject* const leaves = Replay(fields, given).run();
    if (leaves == nullptr && PyErr_Occurred()) return nullptr;
    if (leaves != nullptr) return Py_BuildValue("(ON)", fields, leaves);
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

}  // namespace
