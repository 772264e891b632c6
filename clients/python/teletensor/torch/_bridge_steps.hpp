// Part of _bridge.cpp, which is one translation unit: captured steps for Python, that is what a
// tensor is to the client, and calls of a step.
#pragma once

#include <optional>
#include <vector>

#include "_bridge_guards.hpp"

namespace {

PyObject* list_of(const int64_t* numbers, std::int32_t count) {
  PyObject* const list = PyList_New(count);
  for (std::int32_t i = 0; list != nullptr && i < count; ++i) {
    PyList_SET_ITEM(list, i, PyLong_FromLongLong(numbers[i]));
  }
  return list;
}

PyObject* list_of_tensors(const std::vector<at::Tensor>& tensors) {
  PyObject* const list = PyList_New(static_cast<Py_ssize_t>(tensors.size()));
  for (std::size_t i = 0; list != nullptr && i < tensors.size(); ++i) {
    PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), THPVariable_Wrap(tensors[i]));
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

void append_signature(std::string& bytes, const at::Tensor& tensor) {
  append(bytes, static_cast<std::int16_t>(tensor.scalar_type()));
  append(bytes, static_cast<std::int16_t>(tensor.dim() * 2 + tensor.requires_grad()));
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    append(bytes, tensor.size(d));
    append(bytes, tensor.stride(d));
  }
}

// Dtypes, sizes, strides and requires_grad of a list of tensors, as bytes that compare.
PyObject* python_signature(PyObject*, PyObject* tensors) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(PyList_Check(tensors), "expected a list of tensors");
  std::string bytes;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); ++i) {
    PyObject* const each = PyList_GET_ITEM(tensors, i);
    TORCH_CHECK_TYPE(THPVariable_Check(each), "expected a tensor");
    append_signature(bytes, THPVariable_Unpack(each));
  }
  return bytes_of(bytes);
  END_HANDLE_TH_ERRORS
}

// Whether the tensor shows all of its storage, as the argument of a step must.
bool is_whole(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() && !tensor.is_conj() && !tensor.is_neg() &&
         tensor.nbytes() == tensor.storage().nbytes();
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
    PyList_SET_ITEM(list, i, is_whole(tensor) ? Py_NewRef(each) : THPVariable_Wrap(tensor.clone()));
  }
  return list;
  END_HANDLE_TH_ERRORS
}

// The results of a step; nothing if it is not valid for these arguments.
std::optional<std::vector<at::Tensor>> results_of(PyObject* capsule,
                                                  const std::vector<at::Tensor>& arguments) {
  void* const step = PyCapsule_GetPointer(capsule, TT_STEP_CAPSULE);
  if (step == nullptr) throw python_error();
  c10::SmallVector<tt_tensor, 8> records;
  for (const at::Tensor& each : arguments) records.push_back(record_of(each));
  const tt_result* results = nullptr;
  std::size_t count = 0;
  const int code = g_bridge->run(step, records.data(), records.size(), &results, &count);
  if (code == 1) return std::nullopt;
  check(code);
  std::vector<at::Tensor> made;  // before Python code can run, which may use `results`
  for (std::size_t i = 0; i < count; ++i) made.push_back(tensor_of(results[i]));
  return made;
}

// run(step, list of tensors): the results as a list; None if the step is not valid for them.
PyObject* python_run(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  PyObject *capsule = nullptr, *tensors = nullptr;
  if (!PyArg_ParseTuple(arguments, "OO!", &capsule, &PyList_Type, &tensors)) return nullptr;
  std::vector<at::Tensor> given;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); ++i) {
    PyObject* const each = PyList_GET_ITEM(tensors, i);
    TORCH_CHECK_TYPE(THPVariable_Check(each), "expected a tensor");
    given.push_back(THPVariable_Unpack(each));
  }
  const auto made = results_of(capsule, given);
  if (!made) Py_RETURN_NONE;
  return list_of_tensors(*made);
  END_HANDLE_TH_ERRORS
}

// Counts a write to a tensor, for autograd: what has saved its value before cannot use it.
void note_write(const at::Tensor& tensor) {
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

// written(list of tensors): counts a write to each.
PyObject* python_written(PyObject*, PyObject* tensors) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(PyList_Check(tensors), "expected a list of tensors");
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); ++i) {
    note_write(THPVariable_Unpack(PyList_GET_ITEM(tensors, i)));
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

}  // namespace
