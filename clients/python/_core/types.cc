// The Python objects dtype and device, and the exceptions for Statuses.

#include "bindings.h"
#include "clients/session/error_text.h"

namespace teletensor::client {
namespace {

struct PyDType {
  core::DType dtype;
};
struct PyDevice {
  core::Device device;
};

PyObject* g_dtypes[16];  // The dtype objects, by number.
PyTypeObject* dtype_type;
PyTypeObject* device_type;

struct {
  PyObject *current, *outer, *check, *refuse;
} g_default;
PyObject* g_error_types;  // A dict from status code to exception class.

PyObject* error_type(core::Code code) {
  nb::object key = nb::int_(static_cast<int>(code));
  PyObject* type = g_error_types ? PyDict_GetItem(g_error_types, key.ptr()) : nullptr;
  return type ? type : PyExc_RuntimeError;
}

}  // namespace

Status aborted() { return Status(core::Code::kAborted, "Python code raised an exception"); }

void set_error(const Status& status) {
  // A Python error (from a hook or Ctrl-C) was set first and is kept.
  if (PyErr_Occurred()) return;
  PyErr_SetString(error_type(status.code()), status.message().c_str());
}

nb::object exception_of(const Status& status, std::uint64_t root) {
  PyObject* error = PyObject_CallFunction(error_type(status.code()), "s", status.message().c_str());
  if (error == nullptr) throw nb::python_error();
  nb::object made = nb::steal(error);
  if (root != 0) nb::setattr(made, "root", nb::int_(root));
  return made;
}

void raise_late_error(const Status& status, std::uint64_t root) {
  if (!PyErr_Occurred()) {
    const nb::object error = exception_of(status, root);
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  }
  throw nb::python_error();
}

core::Dims dims_of(std::span<const std::int64_t> shape) {
  if (shape.size() > core::kMaxRank) {
    raise_if(core::invalid("rank " + std::to_string(shape.size()) + " is above the limit of 12"));
  }
  return core::Dims(shape);
}

void raise_if(const Status& status) {
  if (status.ok()) return;
  set_error(status);
  throw nb::python_error();
}

void raise_late(PySession& session) {
  const LateError error = session.errors().raise();
  if (error.status.ok()) return;
  if (PyErr_Occurred()) throw nb::python_error();
  raise_late_error(Status(error.status.code(), explained(session, error)), error.root);
}

namespace {
thread_local std::uint8_t current_gpu = 0;  // The GPU that "cuda" means.
}

std::optional<core::DType> dtype_of(PyObject* object) {
  if (Py_TYPE(object) != dtype_type) return std::nullopt;
  return nb::inst_ptr<PyDType>(object)->dtype;
}

std::optional<core::DType> dtype_named_by(PyObject* object) {
  if (Py_TYPE(object) == dtype_type) return dtype_of(object);
  const auto is = [&](const PyTypeObject& type) {
    return object == reinterpret_cast<const PyObject*>(&type);
  };
  if (is(PyBool_Type)) return core::DType::kBool;
  if (is(PyLong_Type)) return core::DType::kI64;
  if (is(PyFloat_Type)) return core::DType::kF64;
  if (is(PyComplex_Type)) return core::DType::kC128;
  return std::nullopt;
}

namespace {

// The device that a program names: one of a daemon, or "meta".
std::optional<core::Device> device_named(std::string_view text) {
  if (text.substr(0, text.find(':')) != "meta") return core::device_from_name(text);
  if (!core::device_from_name("cpu" + std::string(text.substr(4)))) return std::nullopt;
  return core::Device{core::DeviceKind::kMeta, 0};
}

}  // namespace

std::optional<core::Device> device_of(PyObject* object) {
  if (Py_TYPE(object) == device_type) return nb::inst_ptr<PyDevice>(object)->device;
  if (PyUnicode_Check(object)) {
    const char* text = PyUnicode_AsUTF8(object);
    if (text == nullptr) return std::nullopt;
    auto device = device_named(text);
    if (device && std::string_view(text) == "cuda") device->index = current_gpu;
    return device;
  }
  return std::nullopt;
}

core::Device default_device() {
  return device_of(PyList_GET_ITEM(g_default.current, 0)).value_or(core::Device());
}

void refuse_device(PyObject* name) {
  const nb::object done = nb::steal(call_python(g_default.refuse, name));
  if (done.is_valid()) PyErr_Format(PyExc_RuntimeError, "device %R is not on this daemon", name);
}

PyObject* wrap_dtype(core::DType dtype) {
  return Py_NewRef(g_dtypes[static_cast<std::size_t>(dtype)]);
}

PyObject* wrap_device(core::Device device) { return nb::cast(PyDevice{device}).release().ptr(); }

namespace {

core::DType dtype_argument(nb::handle object) {
  const auto dtype = dtype_of(object.ptr());
  if (dtype) return *dtype;
  PyErr_SetString(PyExc_TypeError, "expected a dtype");
  throw nb::python_error();
}

// The prefix of names in the texts of dtypes, sizes and types. Written with the GIL.
std::string g_prefix = "teletensor";

}  // namespace

void bind_types(nb::module_& m) {
  m.def(
      "text_prefix", [] { return g_prefix; },
      "The package's name in the texts of dtypes and sizes.");
  m.def(
      "set_text_prefix", [](std::string prefix) { g_prefix = std::move(prefix); },
      nb::arg("prefix"));
  auto dtype = nb::class_<PyDType>(m, "dtype", "The element type of a tensor: float32, int64, ...");
  dtype
      .def_prop_ro(
          "itemsize", [](const PyDType& d) { return core::size_of(d.dtype); },
          "Bytes of one element.")
      .def_prop_ro("is_floating_point", [](const PyDType& d) { return core::is_floating(d.dtype); })
      .def_prop_ro("is_signed",
                   [](const PyDType& d) {
                     return core::is_inexact(d.dtype) || core::is_signed_integral(d.dtype);
                   })
      .def_prop_ro("is_complex", [](const PyDType& d) { return core::is_complex(d.dtype); })
      .def(
          "to_real", [](const PyDType& d) { return nb::steal(wrap_dtype(core::real_of(d.dtype))); },
          "The dtype of a complex number's parts; a real dtype itself.")
      .def(
          "to_complex",
          [](const PyDType& d) { return nb::steal(wrap_dtype(core::complex_of(d.dtype))); },
          "The complex dtype that holds this one; complex64 for 16-bit floats.")
      .def_prop_ro("name", [](const PyDType& d) { return std::string(core::name_of(d.dtype)); })
      .def_prop_ro("number", [](const PyDType& d) { return static_cast<int>(d.dtype); })
      .def("__repr__",
           [](const PyDType& d) { return g_prefix + "." + std::string(core::name_of(d.dtype)); })
      .def("__reduce__", [](const PyDType& d) { return std::string(core::name_of(d.dtype)); })
      .def("__hash__", [](const PyDType& d) { return static_cast<int>(d.dtype); })
      .def(
          "__eq__",
          [](const PyDType& d, nb::handle other) {
            const auto o = dtype_of(other.ptr());
            return o && *o == d.dtype;
          },
          nb::arg("other").none());
  dtype_type = reinterpret_cast<PyTypeObject*>(dtype.ptr());
  for (core::DType each : core::kAllDTypes) {
    nb::object object = nb::cast(PyDType{each});
    m.attr(std::string(core::name_of(each)).c_str()) = object;
    g_dtypes[static_cast<std::size_t>(each)] = object.release().ptr();
  }

  auto device = nb::class_<PyDevice>(
      m, "device",
      "A device of the daemon (\"cpu\", \"cuda:0\"), or \"meta\", whose tensors have no data.");
  device
      .def(
          "__init__",
          [](PyDevice* self, nb::object name, std::optional<int> index) {
            std::string text;
            if (const auto given = device_of(name.ptr()); given && !index) {
              new (self) PyDevice{*given};
              return;
            }
            if (PyUnicode_Check(name.ptr())) text = nb::cast<std::string>(name);
            if (index) text += ":" + std::to_string(*index);
            const auto parsed = device_named(text);
            if (!parsed) {
              refuse_device((text.empty() ? name : nb::cast(text)).ptr());
              throw nb::python_error();
            }
            new (self) PyDevice{*parsed};
          },
          nb::arg("type"), nb::arg("index") = nb::none())
      .def_prop_ro("type",
                   [](const PyDevice& d) {
                     const std::string text = core::to_string(d.device);
                     return text.substr(0, text.find(':'));
                   })
      .def_prop_ro("index",
                   [](const PyDevice& d) -> nb::object {
                     const bool one = d.device.kind == core::DeviceKind::kCpu;
                     if (one || is_meta(d.device)) return nb::none();
                     return nb::int_(static_cast<int>(d.device.index));
                   })
      .def("__str__", [](const PyDevice& d) { return core::to_string(d.device); })
      .def("__repr__",
           [](const PyDevice& d) {
             const std::string text = core::to_string(d.device);
             const std::size_t colon = text.find(':');
             if (colon == std::string::npos) return "device(type='" + text + "')";
             return "device(type='" + text.substr(0, colon) + "', index=" + text.substr(colon + 1) +
                    ")";
           })
      .def("__reduce__",
           [](nb::handle self) {
             return nb::make_tuple(self.type(), nb::make_tuple(nb::str(self)));
           })
      .def("__hash__",
           [](const PyDevice& d) { return static_cast<int>(d.device.kind) * 256 + d.device.index; })
      .def(
          "__eq__",
          [](const PyDevice& d, nb::handle other) {
            const auto o = device_of(other.ptr());
            return Py_TYPE(other.ptr()) == device_type && o && *o == d.device;
          },
          nb::arg("other").none());
  device
      .def("__enter__",
           [](nb::pointer_and_handle<PyDevice> self) {
             nb::object place = nb::steal(call_python(g_default.check, self.h.ptr()));
             if (!place.is_valid()) throw nb::python_error();
             nb::list current = nb::borrow<nb::list>(g_default.current);
             nb::borrow<nb::list>(g_default.outer).append(nb::object(current[0]));
             current[0] = place;
             return nb::borrow(self.h);
           })
      .def(
          "__exit__",
          [](PyDevice&, nb::handle, nb::handle, nb::handle) {
            nb::list outer = nb::borrow<nb::list>(g_default.outer);
            nb::borrow<nb::list>(g_default.current)[0] = outer.attr("pop")();
          },
          nb::arg("type").none(), nb::arg("value").none(), nb::arg("trace").none());
  m.def(
      "set_default_device_lists",
      [](nb::list current, nb::list outer, nb::object check, nb::object refuse) {
        g_default = {current.release().ptr(), outer.release().ptr(), check.release().ptr(),
                     refuse.release().ptr()};
      },
      nb::arg("current"), nb::arg("outer"), nb::arg("check"), nb::arg("refuse"),
      "current[0] is where new tensors go; `with device:` makes it check(device), and keeps the "
      "one outside of it in `outer`. refuse(name) raises the error for a name that is no "
      "device's.");
  device_type = reinterpret_cast<PyTypeObject*>(device.ptr());

  m.def(
      "set_error_types",
      [](nb::dict types) {
        Py_XDECREF(g_error_types);
        g_error_types = types.release().ptr();
      },
      "Status code -> exception class.");
  m.def(
      "current_gpu", [] { return static_cast<int>(current_gpu); },
      "What \"cuda\" means on this thread.");
  m.def("set_current_gpu", [](std::uint8_t index) { current_gpu = index; });
  m.def("grad_mode", &grad_mode);
  m.def("set_grad_mode", &set_grad_mode);
  m.def("default_dtype", [] { return nb::steal(wrap_dtype(default_dtype())); });
  m.def("promote", [](nb::handle a, nb::handle b) {
    return nb::steal(wrap_dtype(core::promote(dtype_argument(a), dtype_argument(b))));
  });
  m.def("can_cast", [](nb::handle from, nb::handle to) {
    return core::can_cast(dtype_argument(from), dtype_argument(to));
  });
  m.def("set_default_dtype", [](nb::handle dtype) {
    const auto d = dtype_of(dtype.ptr());
    if (!d || !core::is_floating(*d)) {
      PyErr_SetString(PyExc_TypeError, "set_default_dtype: only floating-point dtypes");
      throw nb::python_error();
    }
    set_default_dtype(*d);
  });
}

}  // namespace teletensor::client
