// x[index] and x[index] = value if the index consists of integers and slices, by the views that
// _tensors/indexing.py makes.

#include <algorithm>
#include <optional>

#include "bindings.h"
#include "calls/quick.h"

namespace teletensor::client {
namespace {

// The index of one dimension.
struct Part {
  enum class Kind : std::uint8_t { kWhole, kSelect, kSlice } kind = Kind::kWhole;
  std::int64_t start = 0, length = 0, step = 1;
};
struct Index {
  core::InlineVector<Part, 4> parts;
  core::Dims shape;  // The shape of the result.
};

// The tensor if it exists already. Null if the object is no tensor, is pending, or has no contents
// because its __init__ was not called.
PyTensor* made_tensor(PyObject* object) {
  if (!is_tensor(object) || !nb::inst_ready(object)) return nullptr;
  PyTensor* tensor = nb::inst_ptr<PyTensor>(object);
  return tensor->handle ? tensor : nullptr;
}

// An integer: a Python int, or a 0-d tensor whose value the client knows.
std::optional<std::int64_t> integer_of(PyObject* item) {
  if (PyLong_CheckExact(item)) {
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(item, &overflow);
    return overflow == 0 ? std::optional<std::int64_t>(value) : std::nullopt;
  }
  const PyTensor* tensor = made_tensor(item);
  if (tensor == nullptr || tensor->handle->layout.dtype != core::DType::kI64 ||
      tensor->handle->geometry().rank() != 0) {
    return std::nullopt;
  }
  PySession& session = *tensor->session;
  const auto known = session.value_reads().find(session, *tensor->handle);
  if (!known) return std::nullopt;
  std::int64_t value = 0;
  std::memcpy(&value, known->data.data(), sizeof(value));
  return value;
}

bool is_plain(PyObject* bound) { return bound == Py_None || PyLong_CheckExact(bound); }

bool read_slice(PyObject* item, std::int64_t size, Part& part) {
  const auto* slice = reinterpret_cast<PySliceObject*>(item);
  if (!is_plain(slice->start) || !is_plain(slice->stop) || !is_plain(slice->step)) return false;
  Py_ssize_t start = 0, stop = 0, step = 0;
  if (PySlice_Unpack(item, &start, &stop, &step) != 0) {
    PyErr_Clear();
    return false;
  }
  constexpr Py_ssize_t kLargestStep = Py_ssize_t{1} << 30;
  if (step <= 0 || step > kLargestStep) return false;
  part.length = PySlice_AdjustIndices(size, &start, &stop, step);
  if (start == 0 && step == 1 && part.length == size) return true;
  part.kind = Part::Kind::kSlice;
  part.start = start;
  part.step = step;
  return true;
}

// Returns false if the index has another form, or is out of range.
bool read_item(PyObject* item, std::int64_t size, Index& index) {
  Part part;
  if (PySlice_Check(item)) {
    if (!read_slice(item, size, part)) return false;
    index.shape.push_back(part.kind == Part::Kind::kWhole ? size : part.length);
  } else {
    const std::optional<std::int64_t> at = integer_of(item);
    if (!at || *at < -size || *at >= size) return false;
    part.kind = Part::Kind::kSelect;
    part.start = *at;
  }
  index.parts.push_back(part);
  return true;
}

bool read_index(const PyTensor& tensor, PyObject* object, Index& index) {
  const core::Dims& shape = tensor.handle->shape();
  const bool several = PyTuple_CheckExact(object);
  const Py_ssize_t count = several ? PyTuple_GET_SIZE(object) : 1;
  if (count > shape.size()) return false;
  for (int d = 0; d < shape.size(); ++d) {
    if (d >= count) {
      index.shape.push_back(shape[d]);
    } else if (!read_item(several ? PyTuple_GET_ITEM(object, d) : object, shape[d], index)) {
      return false;
    }
  }
  return true;
}

// Replaces a reference to a tensor by one to a view of it. Null with an error set on failure.
PyObject* view_of(PyObject* viewed, OpId op, const core::Attributes& attributes) {
  const PyTensor* tensor = nb::inst_ptr<PyTensor>(viewed);
  const Var operand = tensor->var();
  PyObject* view = call_op(*tensor->session, op, {&operand, 1}, {}, attributes);
  Py_DECREF(viewed);
  return view;
}

// A new reference to the view, which is the tensor itself if the index has only whole dimensions.
// Null with an error set on failure.
PyObject* indexed(PyObject* tensor, const Index& index) {
  static const ops::OpRef select("select"), slice("slice");
  using core::Attribute;
  PyObject* view = Py_NewRef(tensor);
  std::int64_t dim = 0;
  for (const Part& part : index.parts) {
    core::Attributes attributes;
    attributes.push_back(Attribute::of(dim));
    attributes.push_back(Attribute::of(part.start));
    if (part.kind == Part::Kind::kSelect) {
      view = view_of(view, select, attributes);
      if (view == nullptr) return nullptr;
      continue;
    }
    ++dim;
    if (part.kind == Part::Kind::kWhole) continue;
    attributes.push_back(Attribute::of(part.length));
    attributes.push_back(Attribute::of(part.step));
    view = view_of(view, slice, attributes);
    if (view == nullptr) return nullptr;
  }
  return view;
}

}  // namespace

PyObject* quick_getitem(PyObject* const* args, std::size_t count, PyObject* names) {
  static const ops::OpRef alias("alias");
  const PyTensor* tensor = count == 2 && names == nullptr ? made_tensor(args[0]) : nullptr;
  Index index;
  if (tensor == nullptr || !read_index(*tensor, args[1], index)) return nullptr;
  PyObject* view = indexed(args[0], index);
  return view == args[0] ? view_of(view, alias, {}) : view;
}

PyObject* quick_setitem(PyObject* const* args, std::size_t count, PyObject* names) {
  static const ops::OpRef fill("fill"), copy("copy");
  const PyTensor* tensor = count == 3 && names == nullptr ? made_tensor(args[0]) : nullptr;
  Index index;
  if (tensor == nullptr || !read_index(*tensor, args[1], index)) return nullptr;
  Var operands[2];
  bool copies = false;
  if (const PyTensor* value = made_tensor(args[2])) {
    const core::Dims& shape = value->handle->shape();
    copies = shape == index.shape;
    if (!copies && shape.size() != 0) return nullptr;
    operands[1] = value->var();
  } else {
    core::Number number;
    const bool exact = PyFloat_CheckExact(args[2]) || PyBool_Check(args[2]) ||
                       (PyLong_CheckExact(args[2]) && integer_of(args[2]));
    if (!exact || !number_of(args[2], number)) return nullptr;
    operands[1] = Var(number);
  }
  PyObject* region = indexed(args[0], index);
  if (region == nullptr) return nullptr;
  const PyTensor* written = nb::inst_ptr<PyTensor>(region);
  operands[0] = written->var();
  PyObject* done = call_inplace(*written->session, copies ? copy : fill, region, operands, {}, {});
  Py_DECREF(region);
  if (done == nullptr) return nullptr;
  Py_DECREF(done);
  Py_RETURN_NONE;
}

}  // namespace teletensor::client
