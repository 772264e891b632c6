// Captured steps for Python: what a tensor is to the client, and calls. Part of _bridge.cpp, after
// its records.
#include <torch/csrc/autograd/python_variable.h>

namespace {

PyObject* list_of(const int64_t* numbers, std::int32_t count) {
  PyObject* const list = PyList_New(count);
  for (std::int32_t i = 0; list != nullptr && i < count; ++i) {
    PyList_SET_ITEM(list, i, PyLong_FromLongLong(numbers[i]));
  }
  return list;
}

// (address of the storage, dtype, sizes, strides, offset) of a tensor of the device.
PyObject* python_record(PyObject*, PyObject* object) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(THPVariable_Check(object), "expected a tensor");
  const tt_tensor record = record_of(THPVariable_Unpack(object));
  return Py_BuildValue("(KiNNL)", reinterpret_cast<unsigned long long>(record.storage),
                       record.dtype, list_of(record.sizes, record.rank),
                       list_of(record.strides, record.rank), static_cast<long long>(record.offset));
  END_HANDLE_TH_ERRORS
}

template <class Number>
void append(std::string& bytes, Number number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

// Dtypes, sizes, strides and requires_grad of a list of tensors, as bytes that compare.
PyObject* python_signature(PyObject*, PyObject* tensors) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(PyList_Check(tensors), "expected a list of tensors");
  std::string bytes;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); ++i) {
    PyObject* const each = PyList_GET_ITEM(tensors, i);
    TORCH_CHECK_TYPE(THPVariable_Check(each), "expected a tensor");
    const at::Tensor& tensor = THPVariable_Unpack(each);
    append(bytes, static_cast<std::int16_t>(tensor.scalar_type()));
    append(bytes, static_cast<std::int16_t>(tensor.dim() * 2 + tensor.requires_grad()));
    for (std::int64_t d = 0; d < tensor.dim(); ++d) {
      append(bytes, tensor.size(d));
      append(bytes, tensor.stride(d));
    }
  }
  return PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size()));
  END_HANDLE_TH_ERRORS
}

void append_storage(std::string& bytes, PyObject* object) {
  if (object == Py_None) return append(bytes, std::uintptr_t{0});
  if (!THPVariable_Check(object)) return;
  const at::Tensor& tensor = THPVariable_Unpack(object);
  const void* const storage =
      tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
  append(bytes, reinterpret_cast<std::uintptr_t>(storage) + tensor.requires_grad());
}

// The storages and requires_grad of the tensors in a list of dictionaries and lists, as bytes that
// compare.
PyObject* python_storages(PyObject*, PyObject* containers) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(PyList_Check(containers), "expected a list");
  std::string bytes;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(containers); ++i) {
    PyObject* const each = PyList_GET_ITEM(containers, i);
    if (PyDict_Check(each)) {
      PyObject *key = nullptr, *value = nullptr;
      for (Py_ssize_t at = 0; PyDict_Next(each, &at, &key, &value) != 0;) {
        append_storage(bytes, value);
      }
    } else if (PyList_Check(each)) {
      for (Py_ssize_t k = 0; k < PyList_GET_SIZE(each); ++k) {
        append_storage(bytes, PyList_GET_ITEM(each, k));
      }
    }
    append(bytes, static_cast<std::uintptr_t>(-1));
  }
  return PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size()));
  END_HANDLE_TH_ERRORS
}

// The list of tensors, with copies in place of those that are not dense or show a part of their
// storage only.
PyObject* python_dense(PyObject*, PyObject* tensors) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(PyList_Check(tensors), "expected a list of tensors");
  const Py_ssize_t count = PyList_GET_SIZE(tensors);
  PyObject* const list = PyList_New(count);
  for (Py_ssize_t i = 0; list != nullptr && i < count; ++i) {
    PyObject* each = PyList_GET_ITEM(tensors, i);
    const at::Tensor& tensor = THPVariable_Unpack(each);
    const bool whole = tensor.is_non_overlapping_and_dense() && !tensor.is_conj() &&
                       !tensor.is_neg() && tensor.nbytes() == tensor.storage().nbytes();
    PyList_SET_ITEM(list, i, whole ? Py_NewRef(each) : THPVariable_Wrap(tensor.clone()));
  }
  return list;
  END_HANDLE_TH_ERRORS
}

// run(step, list of tensors): the results as a list; None if the step is not valid for them.
PyObject* python_run(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  PyObject *capsule = nullptr, *tensors = nullptr;
  if (!PyArg_ParseTuple(arguments, "OO!", &capsule, &PyList_Type, &tensors)) return nullptr;
  void* const step = PyCapsule_GetPointer(capsule, TT_STEP_CAPSULE);
  if (step == nullptr) return nullptr;
  c10::SmallVector<tt_tensor, 8> records;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); ++i) {
    PyObject* const each = PyList_GET_ITEM(tensors, i);
    TORCH_CHECK_TYPE(THPVariable_Check(each), "expected a tensor");
    records.push_back(record_of(THPVariable_Unpack(each)));
  }
  const tt_result* results = nullptr;
  std::size_t count = 0;
  const int code = g_bridge->run(step, records.data(), records.size(), &results, &count);
  if (code == 1) Py_RETURN_NONE;
  check(code);
  std::vector<at::Tensor> made;  // before Python code can run, which may use `results`
  for (std::size_t i = 0; i < count; ++i) made.push_back(tensor_of(results[i]));
  PyObject* const list = PyList_New(static_cast<Py_ssize_t>(count));
  for (std::size_t i = 0; list != nullptr && i < count; ++i) {
    PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), THPVariable_Wrap(made[i]));
  }
  return list;
  END_HANDLE_TH_ERRORS
}

}  // namespace
