// Binds memory of the session that the daemon of this machine passes as a file descriptor.

#include "clients/session/stream/share.h"

#include <optional>
#include <tuple>

#include "bindings.h"

namespace teletensor::client {
namespace {

// Raises the loss of the session if a wait has ended with it.
template <class T>
void check_session(PySession& session, const core::Result<T>& waited) {
  if (!PyErr_Occurred() && !waited.ok() && session.stream().over()) {
    raise_if(session.stream().loss());
  }
}

// Ends the wait for a value on Ctrl-C, and when the session is lost, because its daemon may not
// have received the command that asks for the value.
Stop wait_of(PySession& session) {
  return [&session] { return signalled() || session.stream().over(); };
}

template <class T>
T value_of(core::Result<T> result) {
  if (PyErr_Occurred()) throw nb::python_error();
  return value_or_raise(std::move(result));
}

// The tensor of an upload. If a signal handler has raised, a complete upload is bound to a handle
// nevertheless, which is then dropped so that the daemon frees the upload.
nb::object bound(PySession& session, const core::Result<std::uint64_t>& upload, core::DType dtype,
                 core::Device device, const core::Dims& shape) {
  if (PyErr_Occurred()) {
    nb::python_error interrupted;
    if (upload.ok()) (void)session.uploaded(*upload, dtype, device, shape);
    PyErr_Clear();
    throw interrupted;
  }
  raise_if(upload.status());
  return nb::steal(wrap(session, value_or_raise(session.uploaded(*upload, dtype, device, shape))));
}

// The contents through Python's buffer protocol; valid as long as a view exists.
int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  const Mapping& mapping = *nb::inst_ptr<Mapping>(nb::handle(self));
  return PyBuffer_FillInfo(view, self, mapping.data(), static_cast<Py_ssize_t>(mapping.bytes()), 0,
                           flags);
}

PyType_Slot kMappingSlots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
                               {0, nullptr}};

}  // namespace

void bind_share(nb::module_& m) {
  m.def(
      "take_gpu",
      [](const ShareAddress& from, PySession& session, std::uint64_t seq, std::uint64_t bytes) {
        raise_if(from.origin.check());
        auto memory = [&] {
          const WithoutGil released;
          return take_gpu(from, seq, bytes, wait_of(session));
        }();
        check_session(session, memory);
        const GpuMemory taken = value_of(std::move(memory));
        return std::tuple(taken.descriptor, taken.hold, nb::bytes(taken.gpu, sizeof taken.gpu));
      },
      nb::arg("address"), nb::arg("session"), nb::arg("seq"), nb::arg("bytes"),
      "The value of a bulk fetch on a GPU, copied: descriptors of the memory and of its hold, both "
      "the caller's, and the GPU's UUID.");
  nb::class_<ShareAddress>(m, "ShareAddress", "Where a session's memory can be had, and as whom.")
      .def(
          "__init__",
          [](ShareAddress* self, const nb::bytes& socket, std::uint64_t session,
             const std::string& ticket) {
            new (self) ShareAddress{{socket.c_str(), socket.size()}, session, ticket};
          },
          nb::arg("socket"), nb::arg("session"), nb::arg("ticket"))
      .def_ro("ticket", &ShareAddress::ticket, "The session's; a secret.")
      .def_prop_ro("live", &ShareAddress::live, "How many mappings there are of its memory.");
  nb::class_<Mapping>(m, "Mapping", nb::type_slots(kMappingSlots), nb::is_weak_referenceable(),
                      "Mapped memory of a session: a buffer.")
      .def_static(
          "take",
          [](const ShareAddress& from, PySession& session, std::uint64_t seq, std::uint64_t bytes) {
            raise_if(from.origin.check());
            auto mapping = [&] {
              const WithoutGil released;
              return Mapping::take(from, seq, bytes, wait_of(session));
            }();
            check_session(session, mapping);
            if (PyErr_Occurred()) throw nb::python_error();
            std::optional<Mapping> taken;
            if (mapping.ok()) taken.emplace(std::move(*mapping));
            return taken;
          },
          nb::arg("address"), nb::arg("session"), nb::arg("seq"), nb::arg("bytes"),
          "The value of a bulk fetch. None: use the stream, which also says what is wrong.")
      .def_static(
          "open",
          [](const ShareAddress& from, std::uint64_t bytes, bool way) {
            raise_if(from.origin.check());
            auto mapping = [&] {
              const WithoutGil released;
              return Mapping::open(from, bytes, way, signalled);
            }();
            return value_of(std::move(mapping));
          },
          nb::arg("address"), nb::arg("bytes"), nb::arg("way") = false,
          "New memory that the daemon can read; `way`: for send(), and gone a second after the "
          "last.")
      .def_prop_ro("readable", &Mapping::readable, "Memory that upload() reads.")
      .def("readable_at", &Mapping::readable_at, nb::arg("address"), "The same, of this session.")
      .def(
          "upload",
          [](Mapping& self, const ShareAddress& to, PySession& session, nb::handle dtype,
             nb::handle device, const std::vector<std::int64_t>& shape, std::uint64_t from,
             std::uint64_t bytes) {
            raise_if(to.origin.check());
            const core::Dims dims = dims_of(shape);
            const auto place = *device_of(device.ptr());
            auto upload = [&] {
              const WithoutGil released;
              return self.upload(to, place, from, bytes, signalled);
            }();
            return bound(session, upload, *dtype_of(dtype.ptr()), place, dims);
          },
          nb::arg("address"), nb::arg("session"), nb::arg("dtype"), nb::arg("device"),
          nb::arg("shape"), nb::arg("at"), nb::arg("bytes"),
          "A tensor with a copy of the bytes from `at` on, once the daemon has made it.")
      .def(
          "send",
          [](Mapping& self, const ShareAddress& to, PySession& session, nb::handle data,
             nb::handle dtype, nb::handle device, const std::vector<std::int64_t>& shape) {
            raise_if(to.origin.check());
            const core::Dims dims = dims_of(shape);
            Py_buffer view;
            if (PyObject_GetBuffer(data.ptr(), &view, PyBUF_SIMPLE) != 0) throw nb::python_error();
            const auto place = *device_of(device.ptr());
            auto upload = [&] {
              const WithoutGil released;
              return self.send(
                  to, place,
                  {static_cast<const char*>(view.buf), static_cast<std::size_t>(view.len)},
                  signalled);
            }();
            PyBuffer_Release(&view);
            return bound(session, upload, *dtype_of(dtype.ptr()), place, dims);
          },
          nb::arg("address"), nb::arg("session"), nb::arg("data"), nb::arg("dtype"),
          nb::arg("device"), nb::arg("shape"),
          "A tensor with a copy of other bytes, which go by way of this memory.");
}

}  // namespace teletensor::client
