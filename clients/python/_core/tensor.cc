// The native type Tensor: properties and flags, which need no I/O, and reading a value. Methods
// written in Python are added to this type (_tensors/tensor.py).

#include <algorithm>
#include <cstring>

#include "bindings.h"
#include "calls/autocast.h"
#include "calls/described.h"
#include "calls/tf32.h"
#include "clients/session/error_text.h"
#include "engine/core/complex.h"
#include "engine/core/half.h"
#include "session/row_gradients.h"

namespace teletensor::client {

PyTypeObject* tensor_type = nullptr;

PyTensor* tensor_of(PyObject* object) { return is_tensor(object) ? usable(object) : nullptr; }

PyTensor* usable(PyObject* object) {
  // The memory may be that of an earlier Tensor, so its contents do not tell.
  if (!nb::inst_ready(object)) [[unlikely]] {
    PyErr_SetString(PyExc_TypeError, "a Tensor whose __init__ was not called cannot be used");
    return nullptr;
  }
  PyTensor* tensor = nb::inst_ptr<PyTensor>(object);
  if (tensor->pending != nullptr && !tensor->session->pending().resolve(*tensor)) [[unlikely]]
    return nullptr;
  return tensor;
}

bool has_attributes(PyObject* tensor) {
  PyObject** const dict = _PyObject_GetDictPtr(tensor);
  return dict != nullptr && *dict != nullptr && PyDict_GET_SIZE(*dict) > 0;
}

bool requires_grad(const PyTensor& tensor) {
  if (tensor.pending != nullptr) return tensor.pending->requires_grad;
  return transforms::ground(*tensor.handle).requires_grad();
}

PyTensor::PyTensor(PySession* s, core::Ref<Pending> unmade, PyObject* object)
    : session_object(nb::borrow(s->self)), session(s), pending(std::move(unmade)), self(object) {
  pending->tensor = this;
}

PyTensor::~PyTensor() {
  if (pending != nullptr) session->pending().dropped(*this);
  if (handle != nullptr && handle->owner == self) handle->owner = nullptr;
}

PyObject* wrap(PySession& session, const HandleRef& h) {
  auto* living = static_cast<PyObject*>(h->owner);
  if (living != nullptr && Py_REFCNT(living) > 0) return Py_NewRef(living);
  const nb::handle type(reinterpret_cast<PyObject*>(tensor_type));
  const nb::handle object = nb::inst_alloc(type).release();
  if (!object.is_valid()) return nullptr;
  new (nb::inst_ptr<PyTensor>(object)) PyTensor(&session, h, object.ptr());
  nb::inst_mark_ready(object);
  return object.ptr();
}

namespace {

bool one_session(PySession& session, std::span<const Var> arguments) {
  for (const Var& argument : arguments) {
    if (argument.is_tensor() && argument.builder() != &session) return false;
  }
  return true;
}

// Returns null, with an error set, if the operands of a call cannot be used together.
PySession* joined(OpId id, bool inplace, std::span<const Var> arguments, Arguments& into) {
  for (const Var& argument : arguments) into.push_back(argument);
  const Status status = join_meta(id, inplace, into);
  if (status.ok()) return &meta_session();
  set_error(status);
  return nullptr;
}

bool finish_strict(PySession& session) {
  if (!session.strict) return true;
  try {
    raise_if(session.synchronize());
    raise_late(session);
  } catch (nb::python_error& error) {
    error.restore();
    return false;
  }
  return true;
}

nb::object own(PyObject* object) {
  if (object == nullptr) throw nb::python_error();
  return nb::steal(object);
}

}  // namespace

PyObject* call_op(PySession& session, OpId id, std::span<const Var> arguments,
                  std::span<const std::uint32_t> counts, const core::Attributes& attributes) {
  if (!one_session(session, arguments)) [[unlikely]] {
    Arguments operands;
    PySession* meta = joined(id, false, arguments, operands);
    if (meta == nullptr) return nullptr;
    return call_op(*meta, id, {operands.data(), operands.size()}, counts, attributes);
  }
  Handles results;
  Status status;
  Arguments casted;
  if (autocasting()) {
    for (const Var& argument : arguments) casted.push_back(argument);
    status = autocast(session, id, casted);
    arguments = {casted.data(), casted.size()};
  }
  if (status.ok()) {
    status = takes_tf32(id, arguments, attributes)
                 ? session.apply(id, arguments, counts, with_tf32(id, attributes), results)
                 : session.apply(id, arguments, counts, attributes, results);
  }
  if (session.stream().is_meta() && status.ok() && !results.empty() &&
      !is_meta(results[0]->layout.device)) [[unlikely]] {
    status = no_data();  // the tensor was to be copied to another device
  }
  if (!status.ok()) {
    set_error(status);
    return nullptr;
  }
  const ops::OpDef& def = session.catalog().at(id);
  if (!finish_strict(session)) return nullptr;
  if (!def.mutates.empty()) Py_RETURN_NONE;
  if (def.results == 1) return wrap(session, results[0]);
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(results.size()));
  if (tuple == nullptr) return nullptr;
  for (std::size_t i = 0; i < results.size(); ++i) {
    PyObject* each = wrap(session, results[i]);
    if (each == nullptr) {
      Py_DECREF(tuple);
      return nullptr;
    }
    PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), each);
  }
  return tuple;
}

PyObject* call_inplace(PySession& session, OpId id, PyObject* self, std::span<const Var> arguments,
                       std::span<const std::uint32_t> counts, const core::Attributes& attributes) {
  if (!one_session(session, arguments)) [[unlikely]] {
    Arguments operands;
    PySession* meta = joined(id, true, arguments, operands);
    if (meta == nullptr) return nullptr;
    return call_inplace(*meta, id, self, {operands.data(), operands.size()}, counts, attributes);
  }
  const Status status = session.apply_inplace(id, arguments, counts, attributes);
  if (!status.ok()) {
    set_error(status);
    return nullptr;
  }
  if (!finish_strict(session)) return nullptr;
  return Py_NewRef(self);
}

nb::object tuple_of(const core::Dims& numbers) {
  PyObject* tuple = PyTuple_New(numbers.size());
  for (int i = 0; i < numbers.size(); ++i) {
    PyTuple_SET_ITEM(tuple, i, PyLong_FromLongLong(numbers[i]));
  }
  return own(tuple);
}

PyTensor& checked_tensor(nb::handle object, const char* what) {
  PyTensor* t = tensor_of(object.ptr());
  if (t != nullptr) return *t;
  if (!PyErr_Occurred()) {
    PyErr_Format(PyExc_TypeError, "%s must be a Tensor, not %s", what ? what : "the argument",
                 described(object.ptr()).c_str());
  }
  throw nb::python_error();
}

namespace {

autograd::Handle& handle(const PyTensor& t) {
  if (t.pending != nullptr && !t.session->pending().resolve(const_cast<PyTensor&>(t))) [[unlikely]]
    throw nb::python_error();
  return *t.handle;
}

// Returns true for the result of a recorded instruction whose gradient was not requested to be
// kept.
bool is_inner(const PyTensor& t) {
  if (handle(t).retains || t.session->commands().tracer() != nullptr) return false;
  const auto node = t.session->node_of(transforms::ground(handle(t)));
  // An error of a view that can no longer have a gradient is reported elsewhere.
  return node.ok() && *node != nullptr;
}

void warn_of_inner_grad() {
  const char* text =
      "The .grad attribute of a Tensor that is not a leaf Tensor is being accessed. Its .grad "
      "attribute won't be populated during autograd.backward(). If you indeed want the .grad field "
      "to be populated for a non-leaf Tensor, use .retain_grad() on the non-leaf Tensor. If you "
      "access the non-leaf Tensor by mistake, make sure you access the leaf Tensor instead.";
  if (PyErr_WarnEx(PyExc_UserWarning, text, 1) < 0) throw nb::python_error();
}

// The shape as an object of the class Size, which is written in Python.
nb::object size_of_tensor(const PyTensor& t) {
  static PyObject* const type =
      nb::object(nb::module_::import_("teletensor._tensors.size").attr("Size")).release().ptr();
  return own(PyObject_CallOneArg(type, tuple_of(handle(t).shape()).ptr()));
}

// Properties of a pending tensor that are known before it is created.
core::DType dtype(const PyTensor& t) {
  return t.pending != nullptr ? t.pending->dtype : t.handle->layout.dtype;
}
core::Device device(const PyTensor& t) {
  return t.pending != nullptr ? t.pending->device : t.handle->layout.device;
}
std::int64_t rank(const PyTensor& t) {
  return t.pending != nullptr ? t.pending->rank : t.handle->shape().size();
}

wire::FetchedValue read(const PyTensor& t) {
  PySession& session = *t.session;
  ValueReads& reads = session.value_reads();
  if (auto known = reads.find(session, handle(t))) return std::move(*known);
  const ValueReads::Asked asked = value_or_raise(reads.ask(session, handle(t)));
  if (handle(t).geometry().numel() == 1) {
    const Site* const site = session.lines().find(asked.seq);
    if (site != nullptr) session.repeated_reads().note(*site);
  }
  auto value = reads.wait(session, asked);
  if (PyErr_Occurred()) throw nb::python_error();
  raise_late(session);
  wire::FetchedValue fetched = value_or_raise(std::move(value));
  if (!fetched.status.ok()) {
    raise_late_error(
        Status(fetched.status.code(), explained(session, fetched.status.message(), fetched.root)),
        fetched.root);
  }
  return fetched;
}

template <class T>
T element(const std::string& data, std::size_t i) {
  T value;
  std::memcpy(&value, data.data() + i * sizeof(T), sizeof(T));
  return value;
}

PyObject* scalar(core::DType dtype, const std::string& data, std::size_t i) {
  switch (dtype) {
    case core::DType::kBool:
      return PyBool_FromLong(element<std::uint8_t>(data, i) != 0);
    case core::DType::kU8:
      return PyLong_FromLong(element<std::uint8_t>(data, i));
    case core::DType::kI32:
      return PyLong_FromLong(element<std::int32_t>(data, i));
    case core::DType::kI64:
      return PyLong_FromLongLong(element<std::int64_t>(data, i));
    case core::DType::kF16: {
      return PyFloat_FromDouble(static_cast<double>(element<core::Half>(data, i)));
    }
    case core::DType::kBF16: {
      return PyFloat_FromDouble(static_cast<double>(element<core::BFloat16>(data, i)));
    }
    case core::DType::kF32:
      return PyFloat_FromDouble(element<float>(data, i));
    case core::DType::kF64:
      return PyFloat_FromDouble(element<double>(data, i));
    case core::DType::kI8:
      return PyLong_FromLong(element<std::int8_t>(data, i));
    case core::DType::kI16:
      return PyLong_FromLong(element<std::int16_t>(data, i));
    case core::DType::kU16:
      return PyLong_FromLong(element<std::uint16_t>(data, i));
    case core::DType::kU32:
      return PyLong_FromUnsignedLong(element<std::uint32_t>(data, i));
    case core::DType::kU64:
      return PyLong_FromUnsignedLongLong(element<std::uint64_t>(data, i));
    case core::DType::kC64: {
      const auto value = element<core::Complex64>(data, i);
      return PyComplex_FromDoubles(value.re, value.im);
    }
    case core::DType::kC128: {
      const auto value = element<core::Complex128>(data, i);
      return PyComplex_FromDoubles(value.re, value.im);
    }
  }
  return PyFloat_FromDouble(0);
}

nb::object item(const PyTensor& t) {
  if (handle(t).geometry().numel() != 1) {
    PyErr_Format(PyExc_RuntimeError, "a Tensor with %lld elements cannot be converted to Scalar",
                 static_cast<long long>(handle(t).geometry().numel()));
    throw nb::python_error();
  }
  if (is_meta(device(t))) {
    raise_if(core::invalid("Tensor.item() cannot be called on meta tensors"));
  }
  const wire::FetchedValue value = read(t);
  return own(scalar(value.dtype, value.data, 0));
}

// The tensors must be of the session of `first`.
std::vector<HandleRef> handles(nb::handle sequence, const PyTensor& first, bool none_allowed) {
  std::vector<HandleRef> out;
  for (nb::handle each : sequence) {
    if (none_allowed && each.is_none()) {
      out.emplace_back();
      continue;
    }
    PyTensor& t = checked_tensor(each, "each of the tensors");
    if (t.session != first.session) raise_if(two_sessions(device(first), device(t)));
    t.used = true;
    out.push_back(t.handle);
  }
  return out;
}

nb::object backward(nb::handle roots, nb::handle seeds, nb::handle inputs, bool retain_graph,
                    bool create_graph, bool allow_unused) {
  const nb::object root = nb::borrow(roots)[nb::int_(0)];
  const PyTensor& first = checked_tensor(root, "the root");
  PySession& session = *first.session;
  autograd::BackwardCall call;
  call.roots = handles(roots, first, false);
  call.seeds = handles(seeds, first, true);
  call.has_inputs = !inputs.is_none();
  if (call.has_inputs) call.inputs = handles(inputs, first, false);
  call.retain_graph = retain_graph;
  call.allow_unused = allow_unused;
  const std::vector<HandleRef> wanted = call.inputs;
  std::vector<HandleRef> results;
  RowGradients rows;
  const Status status = call.has_inputs && transforms::depth > 0
                            ? transforms::gradient(session, call, create_graph, results)
                            : session.backward(std::move(call), create_graph, results);
  if (PyErr_Occurred()) throw nb::python_error();
  raise_if(status);
  if (!finish_strict(session)) throw nb::python_error();
  nb::list out;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i]) {
      out.append(own(wrap(session, results[i])));
      continue;
    }
    const Handle& h = transforms::ground(*wanted[i]);
    const nb::object sparse = rows.result(h.leaf ? *h.leaf : h);
    out.append(sparse.is_valid() ? sparse : nb::none());
  }
  return out;
}

}  // namespace

nb::bytes PyFetch::read() {
  if (bulk_ || std::exchange(ended_, true))
    throw nb::value_error("the value of a fetch can be read only once");
  auto value = session_.wait_fetched(seq_);
  if (PyErr_Occurred()) throw nb::python_error();
  raise_late(session_);
  const wire::FetchedValue fetched = value_or_raise(std::move(value));
  if (!fetched.status.ok()) raise_late_error(fetched.status, fetched.root);
  return nb::bytes(fetched.data.data(), fetched.data.size());
}

void bind_tensor(nb::module_& m) {
  nb::class_<PyFetch>(m, "Fetch", "A bulk fetch, whose value the daemon keeps until this ends.")
      .def_prop_ro("seq", &PyFetch::seq, "The number of its command.")
      .def_prop_ro("bulk", &PyFetch::bulk, "The value comes by a download.")
      .def("read", &PyFetch::read, "The bytes of a value that is not bulk. Waits.")
      .def("__enter__",
           [](nb::pointer_and_handle<PyFetch> self) {
             self.p->enter();
             return nb::borrow(self.h);
           })
      .def(
          "__exit__", [](PyFetch& self, nb::handle, nb::handle, nb::handle) { self.end(); },
          nb::arg("type").none(), nb::arg("value").none(), nb::arg("trace").none());
  auto type = nb::class_<PyTensor>(
      m, "Tensor", nb::type_slots(tensor_slots), nb::is_weak_referenceable(), nb::dynamic_attr(),
      nb::pooled(256),  // Most tensors of a program live for a few lines.
      "A tensor that lives on the daemon. Shape, dtype, device and gradient facts are known here "
      "without a round trip; reading values waits.");
  tensor_type = reinterpret_cast<PyTypeObject*>(type.ptr());
  type.def("__init__",
           [](nb::pointer_and_handle<PyTensor> self, nb::args data, nb::kwargs options) {
             nb::object given = nb::len(data) == 1 ? nb::borrow(data[0]) : nb::none();
             if (tensor_of(given.ptr()) == nullptr) {
               if (PyErr_Occurred()) throw nb::python_error();
               given = nb::module_::import_("teletensor._tensors.tensor_types")
                           .attr("of_default_type")(*data, **options);
             }
             PyTensor& source = checked_tensor(given, "data");
             // Creates a new handle for the same memory, without history.
             static const ops::OpRef detach("detach");
             const Var argument = source.var();
             Handles results;
             raise_if(source.session->apply(detach, {&argument, 1}, {}, {}, results));
             new (self.p) PyTensor(source.session, results[0], self.h.ptr());
           })
      .def_prop_ro("shape", size_of_tensor, "The size of each dimension.")
      .def_prop_ro("_shape", [](const PyTensor& t) { return tuple_of(handle(t).shape()); })
      .def_prop_ro(
          "dtype", [](const PyTensor& t) { return own(wrap_dtype(dtype(t))); }, "The element type.")
      .def_prop_ro(
          "device", [](const PyTensor& t) { return own(wrap_device(device(t))); },
          "The daemon's device that holds it.")
      .def_prop_ro("ndim", [](const PyTensor& t) { return rank(t); })
      .def(
          "dim", [](const PyTensor& t) { return rank(t); }, "The number of dimensions.")
      .def(
          "numel", [](const PyTensor& t) { return handle(t).geometry().numel(); },
          "The number of elements.")
      .def(
          "element_size", [](const PyTensor& t) { return core::size_of(dtype(t)); },
          "Bytes of one element.")
      .def("_strides", [](const PyTensor& t) { return tuple_of(handle(t).geometry().strides); })
      .def(
          "_strides_like",
          [](const PyTensor& t) -> nb::object {
            const core::Geometry& own = handle(t).geometry();
            const core::Geometry* const like[] = {&own};
            const core::Dims strides =
                own.dense() ? own.strides : core::elementwise_layout(own.shape, like).strides;
            if (strides == core::contiguous_strides(own.shape)) return nb::none();
            return tuple_of(strides);
          },
          "Those of a new tensor like it; None: row-major.")
      .def(
          "storage_offset", [](const PyTensor& t) { return handle(t).geometry().offset; },
          "Elements before the first, in the storage.")
      .def(
          "is_contiguous", [](const PyTensor& t) { return handle(t).geometry().contiguous(); },
          "Row-major without gaps?")
      .def("_is_view",
           [](const PyTensor& t) { return t.pending == nullptr && handle(t).is_view(); })
      .def_prop_ro("_base",
                   [](const PyTensor& t) -> nb::object {
                     if (!handle(t).is_view()) return nb::none();
                     return own(wrap(*t.session, handle(t).base));
                   })
      .def("_shares_storage",
           [](const PyTensor& t, const PyTensor& o) { return handle(t).cell == handle(o).cell; })
      .def_prop_ro("_session", [](const PyTensor& t) { return t.session_object; })
      .def_prop_rw(
          "requires_grad", &requires_grad,
          [](PyTensor& t, bool on) { raise_if(t.session->set_requires_grad(handle(t), on)); },
          "Whether gradients are recorded for it.")
      .def_prop_ro(
          "is_leaf",
          [](const PyTensor& t) {
            if (t.pending != nullptr) return !t.pending->requires_grad;
            return value_or_raise(t.session->node_of(transforms::ground(handle(t)))) == nullptr;
          },
          "True where no recorded instruction made it.")
      .def_prop_ro(
          "_version", [](const PyTensor& t) { return handle(t).clock->now(); },
          "Counts the writes to it, its views and its detach()ed names.")
      .def_prop_rw(
          "grad",
          [](PyTensor& t) -> nb::object {
            if (t.sparse_grad.is_valid()) return with_sparse_grad(t);
            if (autograd::Tracer* trace = t.session->commands().tracer())
              trace->on_grad_read(handle(t));
            const HandleRef& grad = handle(t).grad;
            if (!grad && is_inner(t)) warn_of_inner_grad();
            return grad ? own(wrap(*t.session, grad)) : nb::none();
          },
          [](PyTensor& t, nb::handle grad) {
            Handle* other = nullptr;
            nb::object sparse;
            if (!grad.is_none() && !is_tensor(grad.ptr())) {
              sparse = checked_sparse_grad(t, grad);
            } else if (!grad.is_none()) {
              PyTensor& g = checked_tensor(grad, "grad");
              if (is_meta(device(g)) != is_meta(device(t))) {
                raise_if(core::invalid(
                    "attempting to assign a gradient with device type '" +
                    core::to_string(device(g)) + "' to a tensor with device type '" +
                    core::to_string(device(t)) +
                    "'. Please ensure that the gradient and the tensor are on the same device"));
              }
              if (g.session != t.session) {
                raise_if(core::invalid("grad belongs to another session"));
              }
              other = g.handle.get();
            }
            if (sparse.is_valid() || t.sparse_grad.is_valid()) refuse_in_capture(t);
            if (other != nullptr || handle(t).grad) {
              raise_if(t.session->assign_grad(handle(t), other));
            }
            t.sparse_grad = std::move(sparse);
          },
          nb::arg("grad").none(), "The accumulated gradient, or None.")
      .def_prop_ro(
          "_has_grad",
          [](const PyTensor& t) { return handle(t).grad != nullptr || t.sparse_grad.is_valid(); })
      .def_prop_ro(
          "grad_fn",
          [](const PyTensor& t) -> nb::object {
            Handle& h = transforms::ground(handle(t));
            autograd::Node* node = value_or_raise(t.session->node_of(h));
            return node == nullptr ? nb::none() : node_object(*t.session, node, nullptr);
          },
          "The node that made it, or None for a leaf.")
      .def(
          "is_inference", [](const PyTensor& t) { return handle(t).inference; },
          "Was it made in inference mode?")
      .def_prop_ro("_inside",
                   [](const PyTensor& t) { return t.pending == nullptr && handle(t).id == 0; })
      .def_prop_ro(
          "output_nr", [](const PyTensor& t) { return handle(t).output; },
          "Which output of its grad_fn it is.")
      .def("_set_data",
           [](PyTensor& t, const PyTensor& other) {
             if (is_meta(device(t)) != is_meta(device(other))) {
               raise_if(core::invalid(
                   "Attempted to call `variable.set_data(tensor)`, but `variable` and `tensor` "
                   "have incompatible tensor type."));
             }
             raise_if(t.session->set_data(handle(t), handle(other)));
           })
      .def("_become",
           [](PyTensor& t, PyTensor& other) {
             if (t.session != other.session) {
               raise_if(core::invalid("set_: the source belongs to another session"));
             }
             if (t.session->commands().tracer() != nullptr) {
               raise_if(core::invalid(
                   "a captured function cannot change the shape of a tensor in place: write "
                   "x = x.t(), x = x.unsqueeze(0), ..."));
             }
             handle(t).owner = nullptr;
             handle(other).owner = t.self;
             t.handle = other.handle;
             t.kept.reset();
           })
      .def(
          "retain_grad", [](PyTensor& t) { raise_if(t.session->retain_grad(handle(t))); },
          "Keeps .grad of a tensor that is no leaf.")
      .def_prop_ro("retains_grad", [](const PyTensor& t) { return handle(t).retains; })
      .def("_add_post_hook",
           [](PyTensor& t, nb::object callable) {
             const autograd::HookId id = t.session->hooks().add(std::move(callable));
             handle(t).post_hooks.push_back(id);
             return id;
           })
      .def("_add_hook",
           [](PyTensor& t, nb::object callable) {
             if (handle(t).id == 0) raise_if(core::invalid("register_hook: not inside vmap"));
             const autograd::HookId id = t.session->hooks().add(std::move(callable));
             const Status status = t.session->register_hook(handle(t), id);
             if (!status.ok()) t.session->hooks().drop(id);
             raise_if(status);
             return id;
           })
      .def("_hooks", [](const PyTensor& t) { return t.session->hooks().list(handle(t).hooks); })
      .def("_post_hooks",
           [](const PyTensor& t) { return t.session->hooks().list(handle(t).post_hooks); })
      .def("_remove_hook",
           [](PyTensor& t, autograd::HookId id) {
             handle(t).remove_hook(id);
             t.session->hooks().drop(id);
           })
      .def("item", item, "The value of a tensor of one element, as a Python number.")
      .def("_read",
           [](const PyTensor& t) {
             const wire::FetchedValue value = read(t);
             return nb::bytes(value.data.data(), value.data.size());
           })
      .def("_keep",
           [](PyTensor& t, nb::bytes data) {
             t.kept = std::move(data);
             t.kept_at = handle(t).clock->now();
           })
      .def("_kept",
           [](const PyTensor& t) -> nb::object {
             const bool good = t.kept.is_valid() && !handle(t).clock->moved_since(t.kept_at);
             return good ? t.kept : nb::none();
           })
      .def(
          "_fetch_bulk",
          [](const PyTensor& t) {
            return new PyFetch(t.session_object, *t.session,
                               value_or_raise(t.session->fetch(handle(t), true)), true);
          },
          nb::rv_policy::take_ownership);
  m.def(
      "any_complex",
      [](nb::handle tensors) {
        for (nb::handle each : tensors) {
          if (core::is_complex(dtype(checked_tensor(each)))) return true;
        }
        return false;
      },
      nb::arg("tensors"), "Has one of these Tensors a complex dtype?");
  m.def(
      "has_attributes", [](nb::handle tensor) { return has_attributes(tensor.ptr()); },
      nb::arg("tensor"), "Has the program set attributes of its own on a Tensor?");
  m.def("backward", backward, nb::arg("roots"), nb::arg("seeds"), nb::arg("inputs").none(),
        nb::arg("retain_graph"), nb::arg("create_graph"), nb::arg("allow_unused"));
}

}  // namespace teletensor::client
