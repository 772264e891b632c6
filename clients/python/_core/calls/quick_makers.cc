// tensor() of numbers and nested lists of numbers, and zeros(), ones(), full() and empty() with
// sizes, as _tensors/convert.py and _functions/arrays/creation.py make them.

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "bindings.h"
#include "calls/quick.h"

namespace teletensor::client {
namespace {

// The keyword arguments of a function that makes a tensor.
struct Options {
  std::optional<core::DType> dtype;
  core::Device device;
};

bool is_named(PyObject* name, const char* text) {
  return PyUnicode_CompareWithASCIIString(name, text) == 0;
}

// Returns false if an argument is not usual.
bool read_options(PyObject* const* values, PyObject* names, Options& options) {
  options.device = default_device();
  const Py_ssize_t count = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* const name = PyTuple_GET_ITEM(names, i);
    PyObject* const value = values[i];
    if (is_named(name, "dtype")) {
      if (value == Py_None) continue;
      options.dtype = dtype_named_by(value);
      if (!options.dtype) return false;
    } else if (is_named(name, "device")) {
      if (value == Py_None) continue;
      const auto device = device_of(value);
      if (!device || *device != core::Device()) return false;  // The CPU exists in every daemon.
      options.device = *device;
    } else if (!is_named(name, "requires_grad") || value != Py_False) {
      return false;
    }
  }
  return !is_meta(options.device);
}

// ---------------------------------------------------------------- numbers

// The elements of nested lists of equal lengths. The references are borrowed: they are valid for as
// long as no Python code runs.
struct Numbers {
  core::Dims shape;
  std::vector<PyObject*> elements;
  bool floats = false, ints = false;
};

// Returns false if the data has another form than nested lists and tuples of equal lengths with at
// most `most` floats, ints and bools.
bool collect(PyObject* data, int depth, std::size_t most, Numbers& numbers) {
  const bool list = PyList_CheckExact(data), sequence = list || PyTuple_CheckExact(data);
  if (!sequence) {
    if (depth != numbers.shape.size() || numbers.elements.size() >= most) return false;
    if (PyFloat_CheckExact(data)) {
      numbers.floats = true;
    } else if (PyLong_CheckExact(data)) {
      numbers.ints = true;
    } else if (!PyBool_Check(data)) {
      return false;
    }
    numbers.elements.push_back(data);
    return true;
  }
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(data);
  if (depth == numbers.shape.size() && numbers.elements.empty()) {
    if (depth == core::kMaxRank || size == 0 || static_cast<std::size_t>(size) > most) return false;
    numbers.shape.push_back(size);
  }
  if (depth >= numbers.shape.size() || numbers.shape[depth] != size) return false;
  PyObject* const* const items = PySequence_Fast_ITEMS(data);
  for (Py_ssize_t i = 0; i < size; ++i) {
    if (!collect(items[i], depth + 1, most, numbers)) return false;
  }
  return true;
}

template <class T>
std::optional<T> converted(double value) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isfinite(value) && std::fabs(value) > std::numeric_limits<T>::max()) {
      return std::nullopt;
    }
    return static_cast<T>(value);
  } else {
    return std::nullopt;
  }
}

// Negative integers wrap in unsigned dtypes.
template <class T>
std::optional<T> converted(std::int64_t value) {
  if constexpr (std::is_integral_v<T>) {
    constexpr auto kMost = static_cast<std::int64_t>(std::numeric_limits<T>::max());
    constexpr auto kLeast =
        std::is_signed_v<T> ? static_cast<std::int64_t>(std::numeric_limits<T>::min()) : -kMost;
    if (value < kLeast || value > kMost) return std::nullopt;
  }
  return static_cast<T>(value);
}

std::optional<std::int64_t> element_integer(PyObject* element) {
  if (PyBool_Check(element)) return element == Py_True ? 1 : 0;
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(element, &overflow);
  return overflow == 0 ? std::optional<std::int64_t>(value) : std::nullopt;
}

// The bytes of the elements. Nothing if one of them cannot be converted without loss of its range.
template <class T>
std::optional<std::string> bytes_of(const Numbers& numbers) {
  std::string bytes(numbers.elements.size() * sizeof(T), '\0');
  char* to = bytes.data();
  for (PyObject* element : numbers.elements) {
    std::optional<T> value;
    if (PyFloat_CheckExact(element)) {
      value = converted<T>(PyFloat_AS_DOUBLE(element));
    } else if (const auto integer = element_integer(element)) {
      // Among floats, integers are floats too.
      value = numbers.floats ? converted<T>(static_cast<double>(*integer)) : converted<T>(*integer);
    }
    if (!value) return std::nullopt;
    std::memcpy(to, &*value, sizeof(T));
    to += sizeof(T);
  }
  return bytes;
}

std::optional<std::string> truths_of(const Numbers& numbers) {
  if (numbers.floats) return std::nullopt;
  std::string bytes;
  for (PyObject* element : numbers.elements) {
    const auto integer = element_integer(element);
    if (!integer) return std::nullopt;
    bytes.push_back(*integer != 0 ? '\1' : '\0');
  }
  return bytes;
}

std::optional<std::string> bytes_of(const Numbers& numbers, core::DType dtype) {
  switch (dtype) {
    case core::DType::kF32:
      return bytes_of<float>(numbers);
    case core::DType::kF64:
      return bytes_of<double>(numbers);
    case core::DType::kI64:
      return bytes_of<std::int64_t>(numbers);
    case core::DType::kI32:
      return bytes_of<std::int32_t>(numbers);
    case core::DType::kI16:
      return bytes_of<std::int16_t>(numbers);
    case core::DType::kI8:
      return bytes_of<std::int8_t>(numbers);
    case core::DType::kU8:
      return bytes_of<std::uint8_t>(numbers);
    case core::DType::kBool:
      return truths_of(numbers);
    default:
      return std::nullopt;
  }
}

core::DType natural_dtype(bool floats, bool ints) {
  return floats ? default_dtype() : ints ? core::DType::kI64 : core::DType::kBool;
}

// ---------------------------------------------------------------- sizes

// Reads sizes that are given as separate integers or as one list or tuple of them.
bool read_sizes(PyObject* const* args, std::size_t count, core::Dims& shape) {
  if (count == 1 && (PyTuple_Check(args[0]) || PyList_CheckExact(args[0]))) {
    count = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(args[0]));
    args = PySequence_Fast_ITEMS(args[0]);
  } else if (count == 0) {
    return false;
  }
  if (count > core::kMaxRank) return false;
  for (std::size_t i = 0; i < count; ++i) {
    int overflow = 0;
    const long long size =
        PyLong_CheckExact(args[i]) ? PyLong_AsLongLongAndOverflow(args[i], &overflow) : -1;
    if (overflow != 0 || size < 0) return false;
    shape.push_back(size);
  }
  return true;
}

// Null with an error set if there is no session.
PySession* session_or_error() {
  try {
    return &current_session();
  } catch (nb::python_error& error) {
    error.restore();
    return nullptr;
  }
}

PyObject* made(OpId op, std::span<const Var> value, const core::Dims& shape, core::DType dtype,
               core::Device device) {
  PySession* session = session_or_error();
  if (session == nullptr) return nullptr;
  core::Attributes attributes;
  attributes.push_back(core::Attribute::of(shape));
  attributes.push_back(core::Attribute::of(dtype));
  attributes.push_back(core::Attribute::of(device));
  return call_op(*session, op, value, {}, attributes);
}

PyObject* filled(std::int64_t value, PyObject* const* args, std::size_t count, PyObject* names) {
  static const ops::OpRef full("full");
  Options options;
  core::Dims shape;
  if (!read_options(args + count, names, options) || !read_sizes(args, count, shape)) {
    return nullptr;
  }
  const Var number(core::Number::of_int(value));
  return made(full, {&number, 1}, shape, options.dtype.value_or(default_dtype()), options.device);
}

}  // namespace

PyObject* quick_tensor(PyObject* const* args, std::size_t count, PyObject* names) {
  Options options;
  if (count != 1 || !read_options(args + 1, names, options)) return nullptr;
  PyObject* const data = args[0];
  if (!PyList_CheckExact(data) && !PyTuple_CheckExact(data) && !PyFloat_CheckExact(data) &&
      !PyLong_CheckExact(data) && !PyBool_Check(data)) {
    return nullptr;
  }
  PySession* session = session_or_error();
  if (session == nullptr) return nullptr;
  Numbers numbers;
  if (!collect(data, 0, session->value_reads().largest(), numbers)) return nullptr;
  const core::DType dtype = options.dtype.value_or(natural_dtype(numbers.floats, numbers.ints));
  if (numbers.elements.size() * core::size_of(dtype) > session->value_reads().largest()) {
    return nullptr;
  }
  std::optional<std::string> bytes = bytes_of(numbers, dtype);
  if (!bytes) return nullptr;
  const auto h = session->constant(dtype, options.device, numbers.shape, std::move(*bytes));
  if (h.ok()) return wrap(*session, *h);
  set_error(h.status());
  return nullptr;
}

PyObject* quick_zeros(PyObject* const* args, std::size_t count, PyObject* names) {
  return filled(0, args, count, names);
}

PyObject* quick_ones(PyObject* const* args, std::size_t count, PyObject* names) {
  return filled(1, args, count, names);
}

PyObject* quick_full(PyObject* const* args, std::size_t count, PyObject* names) {
  static const ops::OpRef full("full");
  Options options;
  core::Dims shape;
  if (count != 2 || !read_options(args + count, names, options) || !read_sizes(args, 1, shape)) {
    return nullptr;
  }
  const bool is_float = PyFloat_CheckExact(args[1]), is_int = PyLong_CheckExact(args[1]);
  core::Number number;
  if (is_int) {
    const auto integer = element_integer(args[1]);
    if (!integer) return nullptr;
    number = core::Number::of_int(*integer);
  } else if ((!is_float && !PyBool_Check(args[1])) || !number_of(args[1], number)) {
    return nullptr;
  }
  const Var value(number);
  return made(full, {&value, 1}, shape, options.dtype.value_or(natural_dtype(is_float, is_int)),
              options.device);
}

PyObject* quick_empty(PyObject* const* args, std::size_t count, PyObject* names) {
  static const ops::OpRef empty("empty");
  Options options;
  core::Dims shape;
  if (!read_options(args + count, names, options) || !read_sizes(args, count, shape)) {
    return nullptr;
  }
  return made(empty, {}, shape, options.dtype.value_or(default_dtype()), options.device);
}

Quick quick_of(std::string_view name) {
  static constexpr std::pair<std::string_view, Quick> kAll[] = {
      {"getitem", quick_getitem}, {"setitem", quick_setitem}, {"tensor", quick_tensor},
      {"zeros", quick_zeros},     {"ones", quick_ones},       {"full", quick_full},
      {"empty", quick_empty}};
  for (const auto& [known, quick] : kAll) {
    if (known == name) return quick;
  }
  return nullptr;
}

}  // namespace teletensor::client
